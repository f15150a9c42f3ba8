"""T26: a GGUF file is converted once and completely, with the tokenizer settings that transformers drops."""

from contextlib import contextmanager

import gguf
import pytest
import torch
from tokenizers import processors
from transformers import AutoModel

from decoder2vec.backbone import gguf as conversion
from decoder2vec.backbone import sources
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError
from toys.gguf_file import BOS, EOS, F32, Q8_0, in_llama_cpp_order, write_gguf


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """files(**options) -> a GGUF file written with these options; each is written once."""
    folder, written = tmp_path_factory.mktemp("gguf"), {}

    def get(kind=F32, **options):
        key = (kind, *sorted(options.items()))
        if key not in written:
            written[key] = write_gguf(folder / f"tiny-{len(written)}.gguf", kind, **options)
        return written[key]

    return get


@pytest.fixture
def empty_cache(tmp_path, monkeypatch, files):
    """An empty cache; returns its folder of models."""
    files(), files(scale=0.5)
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def load(file):
    return Backbone.load(file, device="cpu", dtype="float32")


def dequantised_model(kind):
    """The source model with its matrices quantised and dequantised by the gguf package."""
    model = AutoModel.from_pretrained(tiny_folder("tiny-llama"), dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                rounded = gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind)
                weight.copy_(torch.from_numpy(rounded.reshape(weight.shape)))
    return model


@pytest.mark.parametrize(("kind", "rounding"), [(F32, 1e-6), (Q8_0, 0.1)])
def test_vectors_equal_those_of_the_source_model(
    kind, rounding, files, backbone, texts, tokenise, encode_batch, pool_by_loop, gap
):
    """Up to the rounding of the weights; and exactly those of a model with equally rounded weights."""
    model, origin = load(files(kind)), backbone("tiny-llama")
    prompts = tokenise(model, texts)
    assert [prompt.ids for prompt in prompts] == [prompt.ids for prompt in tokenise(origin, texts)]
    readings = [Reading(4, "mean", True)]
    vectors = encode_batch(model, prompts, readings)
    assert gap(vectors, encode_batch(origin, prompts, readings)) < rounding

    reference = dequantised_model(kind)
    with torch.inference_mode():
        states = [reference(input_ids=torch.tensor([prompt.ids])).last_hidden_state[0] for prompt in prompts]
    assert gap(vectors[:, 0], [pool_by_loop("mean", tokens) for tokens in states]) < 1e-5
    weights = dict(model.model.named_parameters())
    for name, weight in reference.named_parameters():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=0, msg=name)


def test_rows_in_llama_cpp_order_would_be_detected(files, backbone, texts, tokenise, encode_batch, gap):
    """The faulty variant of a conversion: the right weights in the wrong rows."""
    model, origin = load(files()), backbone("tiny-llama")
    prompts = tokenise(model, texts)
    with torch.no_grad():
        for block in model.blocks:
            weight = block.self_attn.q_proj.weight
            weight.copy_(torch.from_numpy(in_llama_cpp_order(weight.numpy(), 4)))
    assert (
        gap(encode_batch(model, prompts, [Reading(4, "mean")]), encode_batch(origin, prompts, [Reading(4, "mean")]))
        > 1e-2
    )


def test_file_is_converted_only_once(files, empty_cache, monkeypatch):
    """Converting at every load, the faulty variant, costs most of a minute for a real model."""
    calls = []
    original = sources.convert_gguf
    monkeypatch.setattr(sources, "convert_gguf", lambda *args: (calls.append(args), original(*args))[1])
    messages = []
    first = Backbone.load(files(), device="cpu", notify=messages.append)
    second = Backbone.load(files(), device="cpu", notify=messages.append)
    assert len(calls) == len(messages) == 1
    assert first.fingerprint == second.fingerprint
    assert len(list(empty_cache.iterdir())) == 1


def test_changed_file_of_the_same_name_is_converted_again(files, empty_cache, tmp_path, monkeypatch):
    """A cache keyed by file name, the faulty variant, returns the old weights."""
    contents = [files().read_bytes(), files(scale=0.5).read_bytes()]
    file = tmp_path / "tiny.gguf"

    def load_both():
        for content in contents:
            file.write_bytes(content)
            yield load(file).model.get_input_embeddings().weight

    old, new = load_both()
    torch.testing.assert_close(old * 0.5, new)

    monkeypatch.setattr(sources, "file_sha256", lambda _: "0" * 64)
    old, new = load_both()
    torch.testing.assert_close(old, new)


def drop_special_tokens(tokenizer, _):
    """The faulty variant of `_repair_tokenizer`: what transformers before 5.23 makes of a GGUF tokenizer."""
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel()


@pytest.mark.parametrize("bos", [True, False])
def test_bos_is_added_as_the_file_says(bos, files, backbone, texts, gap, monkeypatch, tmp_path):
    """Older versions of transformers ignore the setting, and the first token of a prompt changes every vector."""
    file = files(bos=bos)
    encoder = Encoder.from_pretrained(file, template="plain", pooling="mean", normed=True, device="cpu")
    ids = encoder.tokenizer.encode("bread")
    assert (ids[0] == BOS) == bos and ids.count(BOS) == int(bos)
    origin = Encoder.from_pretrained("tiny-llama", template="plain", pooling="mean", normed=True, device="cpu")
    assert origin.tokenizer.encode("bread")[0] == BOS
    assert (gap(encoder.encode(texts), origin.encode(texts)) < 1e-5) == bos

    monkeypatch.setenv("D2V_CACHE", str(tmp_path))
    monkeypatch.setattr(conversion, "_repair_tokenizer", drop_special_tokens)
    faulty = Encoder.from_pretrained(file, template="plain", pooling="mean", normed=True, device="cpu")
    assert (gap(faulty.encode(texts), origin.encode(texts)) > 1e-2) and faulty.tokenizer.encode("bread")[0] != BOS


def test_bos_is_added_if_the_pre_tokenizer_implies_it(files):
    """Llama 3 files may lack the setting: llama.cpp adds BOS for their pre-tokenizer by default."""
    assert load(files(bos=None, pre="llama-bpe")).tokenizer.encode("bread")[0] == BOS
    assert load(files(bos=False, pre="llama-bpe")).tokenizer.encode("bread")[0] != BOS
    assert load(files(bos=None, pre="gpt-2")).tokenizer.encode("bread")[0] != BOS


@pytest.mark.parametrize("bos", [True, False])
def test_eos_is_added_as_the_file_says(bos, files):
    """Embedding models pool an appended EOS token; without it the last token is another one."""
    ids = load(files(bos=bos, eos=True)).tokenizer.encode("bread")
    assert ids[-1] == EOS and ids.count(EOS) == 1
    assert (ids[0] == BOS) == bos


def test_bidirectional_file_is_not_loaded_as_causal(files):
    """llama.cpp supports `attention.causal = false`; a conversion that drops it silently gives a causal model."""
    assert load(files(causal=False)).attention == "bidirectional"
    assert load(files()).attention == "causal"


def test_digits_are_split_for_smollm(files):
    """SmolLM splits numbers into digits; transformers uses GPT-2's word pattern for it."""

    def pieces(tokenizer):
        return [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 1984")]

    assert pieces(load(files()).tokenizer) == ["in", "Ġ1984"]
    assert pieces(load(files(pre="smollm")).tokenizer)[-4:] == ["1", "9", "8", "4"]


@pytest.mark.parametrize("share", [0.0, 0.00005, 0.01, 0.1, 0.5, 0.9, 0.99999])
def test_truncated_file_is_refused_and_leaves_no_folder(share, files, empty_cache, tmp_path, monkeypatch):
    """In the header or in the weights; a conversion in place, the faulty variant, would leave a folder."""
    content = files().read_bytes()
    file = tmp_path / "truncated.gguf"
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BackboneError, match=r"truncated\.gguf.*download it again"):
        load(file)
    assert not empty_cache.exists() or list(empty_cache.iterdir()) == []

    monkeypatch.setattr(sources, "atomic_folder", in_place)
    with pytest.raises(BackboneError):
        load(file)
    assert list(empty_cache.iterdir()) != []


@contextmanager
def in_place(target, replace):
    """The faulty variant of `atomic_folder`: the folder exists before it is complete."""
    target.mkdir(parents=True)
    yield target


def test_failed_conversion_leaves_no_folder(files, empty_cache, monkeypatch):
    """A later load converts the file again and succeeds."""
    original = conversion._repair_tokenizer

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(conversion, "_repair_tokenizer", fail)
    with pytest.raises(OSError, match="disk full"):
        load(files())
    assert list(empty_cache.iterdir()) == []
    monkeypatch.setattr(conversion, "_repair_tokenizer", original)
    assert load(files()).n_layers == 4


def test_incomplete_folder_is_converted_again(files, empty_cache):
    fingerprint = load(files()).fingerprint
    (folder,) = empty_cache.iterdir()
    (folder / "source.json").unlink()
    assert load(files()).fingerprint == fingerprint
    assert (folder / "source.json").is_file()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all", bytes(4096)])
def test_file_that_is_not_gguf_is_refused(content, tmp_path):
    """Its name alone does not make it one."""
    file = tmp_path / "fake.gguf"
    file.write_bytes(content)
    with pytest.raises(BackboneError, match=r"fake\.gguf"):
        load(file)


def test_file_is_parsed_once(tmp_path, monkeypatch):
    parsed = []

    class Counted(gguf.GGUFReader):
        def __init__(self, *args):
            parsed.append(args)
            super().__init__(*args)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    write_gguf(tmp_path / "model.gguf")
    (tmp_path / "model").mkdir()
    conversion.convert_gguf(tmp_path / "model.gguf", tmp_path / "model")
    assert len(parsed) == 1
    assert gguf.GGUFReader is Counted  # others read as before
