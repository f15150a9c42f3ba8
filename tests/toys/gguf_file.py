"""A small GGUF file, written by the gguf package alone."""

from __future__ import annotations

import json

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from decoder2vec.backbone.tiny import tiny_folder

F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
EOS, BOS, PAD = 0, 1, 2


def in_llama_cpp_order(weight, heads):
    """Rows of a query or key projection in the order of llama.cpp: rotary pairs side by side."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def add_architecture(writer, config):
    writer.add_name("tiny")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def add_tokenizer(writer, pre):
    spec = json.loads((tiny_folder("tiny-llama") / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(spec["vocab"], key=spec["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token_id <= PAD else 1 for token_id in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in spec["merges"]])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)


def write_gguf(file, kind=F32, *, bos=True, eos=None, causal=None, pre="gpt-2", scale=1.0):
    """tiny-llama as a GGUF file, written by the gguf package alone."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder("tiny-llama"), dtype=torch.float32)
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    add_architecture(writer, config)
    add_tokenizer(writer, pre)
    for add, value in (
        (writer.add_add_bos_token, bos),
        (writer.add_add_eos_token, eos),
        (writer.add_causal_attention, causal),
    ):
        if value is not None:
            add(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        weight = tensor.numpy() * np.float32(scale)
        for projection, count in heads.items():
            if projection in name:
                weight = in_llama_cpp_order(weight, count)
        stored = kind if weight.ndim == 2 else F32
        data = gguf.quantize(np.ascontiguousarray(weight), stored)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
