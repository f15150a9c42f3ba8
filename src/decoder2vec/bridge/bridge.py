"""The bridge: a projector in front of an encoder or a language model, with LoRA or without, and its folder.

In front of an encoder, soft tokens take the place of a text in its template, so that an item gets a vector in the space
of the texts. In front of a language model, they are followed by a prompt, so that the model continues with a caption.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.saving import load_adapter, save_adapter
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.machine import any_shape_attention
from decoder2vec.bridge.generation import generate
from decoder2vec.bridge.projector import Projector, soft_token_batch, template_pieces
from decoder2vec.bridge.vectors import Vectors, to_table_of_numbers
from decoder2vec.config import fingerprint
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, InputError, StorageError, UnsupportedError
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.maths.similarity import normalise
from decoder2vec.package import __version__
from decoder2vec.progress import current_progress
from decoder2vec.storage import atomic_folder, check_replaceable, parse_json
from decoder2vec.tensor_files import load_tensors, save_tensors
from decoder2vec.text.template import Template

OBJECTIVES = ("contrastive", "lm")
BRIDGE_FILE = "bridge.json"
PROJECTOR_FILE = "projector.safetensors"
ENCODER_FOLDER = "encoder"
LORA_FOLDER = "lora"
EXTRA_FILES = ("README.md", "results.json", "log-*.jsonl")
"""What training adds to the folder."""
BRIDGE_FORMAT = 1
DEFAULT_PROMPT = "Description:"
"""What follows the soft tokens in front of a language model."""
DESCRIPTION_TOKENS = 64
_GENERATED_AT_ONCE = 64


class Bridge:
    """Reads vectors of any origin: as items in the space of an encoder, or as words of a language model.

    Train one with `train_bridge`, load one with `from_pretrained`.

    Args:
        base: An `Encoder`, for items that are searched by text, or a causal `Backbone`, for descriptions.
        projector: Makes soft tokens of vectors.
        prompt: Text after the soft tokens.
        lora: LoRA with which the model reads them, instead of the adapter of the base.
        base_name: Name or folder under which a saved bridge finds an encoder again; None: it is saved with the bridge.

    Raises:
        UnsupportedError: The base is not causal, or has an adapter or templates that soft tokens cannot pass.
    """

    def __init__(
        self,
        base: Encoder | Backbone,
        projector: Projector,
        prompt: str = "",
        lora: Lora | None = None,
        base_name: str | None = None,
    ) -> None:
        check_base(base)
        self.base, self.projector, self.prompt, self.lora, self.base_name = base, projector, prompt, lora, base_name
        backbone = base.backbone if isinstance(base, Encoder) else base
        self.backbone = backbone.with_adapter(lora) if lora else backbone
        template = Template(base.spec.template) if isinstance(base, Encoder) else Template.of("plain")
        self.pieces = template_pieces(self.backbone, template, prompt, closed=isinstance(base, Encoder))
        self._capture = Capture(self.backbone, base.spec.readings) if isinstance(base, Encoder) else None

    @property
    def objective(self) -> str:
        """What it is trained by: "contrastive" in front of an encoder, "lm" in front of a language model."""
        return "contrastive" if isinstance(self.base, Encoder) else "lm"

    @property
    def dim(self) -> int:
        """Dimension of the vectors that it takes."""
        return self.projector.dim

    @property
    def encoder(self) -> Encoder:
        """The encoder of the texts that items are searched by.

        Raises:
            InputError: The bridge leads to a language model.
        """
        if not isinstance(self.base, Encoder):
            raise InputError("This bridge describes vectors; to search items, train one with --loss contrastive.")
        return self.base

    @cached_property
    def head(self) -> LMHead:
        """The head of the language model.

        Raises:
            InputError: The bridge leads to an encoder.
        """
        if isinstance(self.base, Encoder):
            raise InputError("This bridge makes items searchable; to describe vectors, train one with --loss lm.")
        return LMHead(self.backbone)

    @property
    def blank(self) -> Vectors:
        """[dim] the vector that says nothing: the mean of the training vectors, which the projector sees as zeros."""
        return self.projector.mean.cpu().numpy()  # type: ignore[no-any-return]

    @property
    def fingerprint(self) -> str:
        """Identifies what the bridge computes."""
        base = self.base.fingerprint if isinstance(self.base, Encoder) else self.base.effective_fingerprint
        return fingerprint(base, self.projector.digest(), self.prompt, self.lora.digest() if self.lora else None)

    def __repr__(self) -> str:
        tokens = f"{self.dim} dimensions to {self.projector.tokens} soft tokens"
        return f"Bridge({self.objective}: {tokens} of {self.backbone.name}{', with LoRA' if self.lora else ''})"

    # --- items ------------------------------------------------------------------------------------------------------

    def encode(self, vectors: Any) -> Vectors:
        """[items, encoder.dim] vectors of items in the space of the encoder's documents.

        Args:
            vectors: [items, dim] vectors.

        Raises:
            InputError: The vectors cannot be used, or the bridge is for descriptions.
        """
        table, spec = to_table_of_numbers(vectors, "The array", dim=self.dim), self.encoder.spec
        length = sum(map(len, self.pieces)) + self.projector.tokens * (len(self.pieces) - 1)
        size = max(1, self.backbone.token_budget() // length)
        with torch.inference_mode(), self.backbone.lock:
            parts = [self.item_vectors(batch).cpu().numpy() for batch in _batches(table, size)]
        return normalise(np.concatenate(parts), spec.normalize)

    def item_vectors(self, vectors: Any) -> Tensor:
        """[items, encoder.dim] vectors of items, with gradients, before they are normalised."""
        assert self._capture is not None
        latents = self._capture(self.input_batch(vectors))
        head = self.encoder.head
        if head is None:
            return latents.flatten(1)
        if isinstance(head, LayerwiseHead):  # its own methods have no gradients
            codes: Tensor = head.net(latents.transpose(0, 1))
            return codes if head.projection is None else functional.normalize(codes @ head.projection, dim=-1)
        mean, weight = (torch.from_numpy(array).to(latents.device) for array in (head.mean, head.map))
        centred = latents.flatten(1) - mean
        return centred * weight if weight.ndim == 1 else centred @ weight

    def input_batch(self, vectors: Any) -> TokenBatch:
        """What the model reads of [items, dim] vectors: soft tokens, template and prompt."""
        return soft_token_batch(self.backbone, self.pieces, self.projector(vectors))

    # --- descriptions -----------------------------------------------------------------------------------------------

    def describe(
        self, vectors: Any, max_tokens: int = DESCRIPTION_TOKENS, batch_size: int = _GENERATED_AT_ONCE
    ) -> list[str]:
        """Describe vectors in words: the most likely continuation, so that equal vectors have equal descriptions.

        Args:
            vectors: [items, dim] vectors.
            max_tokens: Tokens of a description, at most.
            batch_size: Vectors that are described at a time.

        Raises:
            InputError: The vectors cannot be used, or the bridge is for search.
        """
        if min(max_tokens, batch_size) < 1:
            raise InputError("max_tokens and batch_size must be 1 or more.")
        head, table = self.head, to_table_of_numbers(vectors, "The array", dim=self.dim)
        texts = []
        for batch in _batches(table, batch_size):
            with torch.inference_mode():
                embeds = self.input_batch(batch).embeds
            assert embeds is not None
            for ids in generate(self.backbone, head, embeds, max_tokens, self.backbone.closing_token_id):
                texts.append(self.backbone.tokenizer.decode(ids, skip_special_tokens=True).strip())
            current_progress().advance(len(batch))
        return texts

    def caption_ids(self, captions: Sequence[str], max_tokens: int = DESCRIPTION_TOKENS) -> list[list[int]]:
        """Tokens that the model learns to continue with: a caption and the stop token; a longer one is cut."""
        backend, stop = self.backbone.tokenizer.backend_tokenizer, self.backbone.closing_token_id
        space = "" if not self.prompt or self.prompt[-1].isspace() else " "
        encodings = backend.encode_batch([space + caption for caption in captions], add_special_tokens=False)
        return [[*encoding.ids, stop][:max_tokens] for encoding in encodings]

    def target_states(self, vectors: Any, targets: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """[tokens, width] states that predict all tokens of the targets, one target after the other, and the tokens.

        No other position is in the loss: neither soft tokens, prompt nor padding.
        """
        backbone, device = self.backbone, self.backbone.device
        width = max(map(len, targets))
        ids = torch.full((len(targets), width), backbone.pad_token_id)
        real = torch.zeros(len(targets), width, dtype=torch.bool)
        for row, target in enumerate(targets):
            ids[row, : len(target)] = torch.tensor(target)
            real[row, : len(target)] = True
        ids, real = ids.to(device), real.to(device)
        batch = self.input_batch(vectors)
        assert batch.embeds is not None
        embed = backbone.model.get_input_embeddings()  # type: ignore[operator]
        embeds = torch.cat([batch.embeds, embed(ids[:, :-1])], dim=1)  # the last token predicts nothing
        with backbone.adapter_enabled(), any_shape_attention(device):
            # padding is on the right, where a causal model does not see it
            states = backbone.model(inputs_embeds=embeds, use_cache=False).last_hidden_state
        return states[:, batch.width - 1 :][real], ids[real]

    @torch.inference_mode()
    def caption_losses(
        self, vectors: Any, captions: Sequence[str], max_tokens: int = DESCRIPTION_TOKENS
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """[items] cross-entropy of each caption, summed over its tokens, and [items] the numbers of tokens."""
        targets = self.caption_ids(captions, max_tokens)
        table, losses = to_table_of_numbers(vectors, "The array", dim=self.dim), []
        for start in range(0, len(targets), _GENERATED_AT_ONCE):
            chunk = slice(start, start + _GENERATED_AT_ONCE)
            states, ids = self.target_states(table[chunk], targets[chunk])
            likelihoods = self.head.log_likelihoods(states, ids).double().cpu().numpy()
            ends = np.cumsum([len(target) for target in targets[chunk]])
            losses += [-part.sum() for part in np.split(likelihoods, ends[:-1])]
        return np.array(losses), np.array([len(target) for target in targets])

    # --- folder -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, extra_files: Mapping[str, bytes] | None = None) -> Path:
        """Save the bridge to a folder; one that is already there is replaced.

        A language model is referenced by its name, an encoder by its name if it has one; else it is saved, too.

        Args:
            folder: The folder to write.
            extra_files: Further files to write, by name: the card and the results of a training.
        """
        target = Path(folder)
        check_bridge_folder(target)
        saves_base = isinstance(self.base, Encoder) and self.base_name is None
        description = {
            "decoder2vec": __version__,
            "format": BRIDGE_FORMAT,
            "objective": self.objective,
            "base": None if saves_base else self.base_name or self.backbone.name,
            "base_fingerprint": self.base.fingerprint,
            "projector": self.projector.settings(),
            "prompt": self.prompt,
            "lora": self.lora is not None,
            "fingerprint": self.fingerprint,
        }
        with atomic_folder(target, replace=True) as temporary:
            save_tensors(self.projector.state_dict(), temporary / PROJECTOR_FILE, {})
            if saves_base:
                assert isinstance(self.base, Encoder)
                self.base.save(temporary / ENCODER_FOLDER)
            if self.lora:
                save_adapter(self.lora, temporary / LORA_FOLDER, self.backbone)
            for name, content in (extra_files or {}).items():
                (temporary / name).write_bytes(content)
            (temporary / BRIDGE_FILE).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        return target

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str | None = None, dtype: str | None = None) -> Bridge:
        """Load a bridge that `save` wrote.

        Args:
            folder: The folder.
            device: Device such as "cuda" or "cpu"; by default the best one available.
            dtype: Dtype of the model; by default the one that suits the device.

        Raises:
            InputError: There is no bridge in the folder.
            EncoderError: It is damaged, or its encoder or language model has changed.
        """
        path = Path(folder).expanduser()
        description = read_description(path)
        try:
            projector = Projector(**description["projector"])
            projector.load_state_dict(load_tensors(path / PROJECTOR_FILE)[0])
        except (KeyError, TypeError, ValueError, RuntimeError, StorageError) as error:
            raise EncoderError(f"{folder} is damaged: {error}") from error
        source = description["base"] or path / ENCODER_FOLDER
        base: Encoder | Backbone
        if description["objective"] == "lm":
            base = Backbone.load(source, attention="causal", device=device, dtype=dtype)
        else:
            base = Encoder.from_pretrained(source, device=device, dtype=dtype)
        if base.fingerprint != description["base_fingerprint"]:
            raise EncoderError(f"{source} is not the model that the bridge {folder} was trained with; train it again.")
        backbone = base.backbone if isinstance(base, Encoder) else base
        lora = load_adapter(path / LORA_FOLDER, backbone) if description["lora"] else None
        assert lora is None or isinstance(lora, Lora)
        projector.requires_grad_(False).to(backbone.device)
        return cls(base, projector, description["prompt"], lora, description["base"])


def check_base(base: Encoder | Backbone) -> None:
    """Raise UnsupportedError if soft tokens cannot stand in front of the prompts of a model."""
    backbone = base.backbone if isinstance(base, Encoder) else base
    if isinstance(base, Encoder) and any(reading.template for reading in base.spec.readings):
        raise UnsupportedError("This encoder reads several prompts; give one that reads a text under one template.")
    if backbone.adapter is not None and not isinstance(backbone.adapter, Lora):
        raise UnsupportedError(
            f"This model has an adapter of the kind {backbone.adapter.kind}, which changes tokens by itself; give one "
            "with LoRA or without an adapter."
        )
    if not isinstance(base, Encoder) and backbone.attention != "causal":
        raise UnsupportedError(
            f"A model with {backbone.attention} attention cannot write texts; load {backbone.name} as it is, causal."
        )


def is_bridge_folder(folder: str | Path) -> bool:
    """Whether a folder contains a saved bridge."""
    return (Path(folder).expanduser() / BRIDGE_FILE).is_file()


def read_description(folder: Path) -> dict[str, Any]:
    """What `bridge.json` of a saved bridge says.

    Raises:
        InputError: There is none.
        EncoderError: It is damaged, or of another version.
    """
    try:
        description: dict[str, Any] = parse_json((folder / BRIDGE_FILE).read_text(encoding="utf-8"))
        if description["format"] != BRIDGE_FORMAT:
            raise ValueError(f"it has format {description['format']!r}, and this version reads {BRIDGE_FORMAT}")
        if description["objective"] not in OBJECTIVES:
            raise ValueError(f"its objective is {description['objective']!r}")
        for key, kind in (("projector", dict), ("prompt", str), ("lora", bool), ("base_fingerprint", str)):
            if not isinstance(description[key], kind):
                raise TypeError(f"{key} is {description[key]!r}")
        if not isinstance(description["base"], str | None):
            raise TypeError(f"base is {description['base']!r}")
    except OSError as error:
        raise InputError(f"{folder} is not the folder of a bridge: it has no {BRIDGE_FILE}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EncoderError(f"The bridge {folder} is damaged: {error}") from error
    return description


def check_bridge_folder(target: Path) -> None:
    """Raise an error if a path holds anything other than what `save` wrote, or cannot be written."""
    written = (BRIDGE_FILE, PROJECTOR_FILE, f"{ENCODER_FOLDER}/*", f"{LORA_FOLDER}/*", *EXTRA_FILES)
    check_replaceable(target, written if is_bridge_folder(target) else ())


def _batches(table: Vectors, size: int) -> Iterator[Vectors]:
    return (table[start : start + size] for start in range(0, len(table), size))
