"""Texts in memory: the tokens of a student, and the unit vectors of teachers on the device.

`distill_packed.py` takes the vectors of any teacher from the library. Here a teacher is a sentence-transformers folder
of an encoder with mean or CLS pooling, such as all-mpnet-base-v2 and bge-small-en-v1.5: forked processes tokenise, and
the teacher computes batches of texts of similar length, in 16 bits on a GPU. 2,162,031 texts took four minutes on one
H200 with 16 cores. With a cache folder a second run reads tokens and vectors instead.

Used by `continue_training.py`, `ablations.py` and `../rerankers/study.py`. To fill the cache ahead:

Run: python experiments/general/packed_pool.py POOL CACHE --teachers mpnet=FOLDER bge=FOLDER [--texts pairs]
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import choose_device
from decoder2vec.config import DEFAULT_MAX_LENGTH, fingerprint
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.storage import atomic_file
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser
from distill_packed import Pool, read_pool
from token_table import TokenTable

START = "smollm2-135m-general"
"""The student: an encoder whose LoRA is trained on."""
_TEXTS_AT_ONCE = 5_000
"""Texts that a process tokenises between two results."""
_BATCH_TOKENS = 131_072
"""Tokens of a teacher's batch, padding included."""
_STUDENT = "student"

Ids = Callable[[Sequence[str]], list[list[int]]]
"""Texts to their token ids."""


class Tokens(NamedTuple):
    """The tokens of texts, one text after the other, and the number of tokens of each text."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]


def some_pairs(pool: Pool, per_source: int) -> Pool:
    """The pool with at most `per_source` random pairs of each source."""
    pairs = {source: np.random.default_rng(3).permutation(of)[:per_source] for source, of in pool.pairs.items()}
    return pool._replace(pairs=pairs)


def texts_of_pairs(pool: Pool) -> Pool:
    """The pool with the texts of its pairs alone, in random order."""
    kept = np.unique(np.concatenate([of.ravel() for of in pool.pairs.values()]))
    return keep_texts(pool, np.random.default_rng(0).permutation(kept))


def keep_texts(pool: Pool, kept: NDArray[np.intp]) -> Pool:
    """The pool with some of its texts alone, in a given order, among them all texts of its pairs."""
    new_row = np.full(len(pool.texts), -1)
    new_row[kept] = np.arange(len(kept))
    return Pool(
        [pool.texts[row] for row in kept],
        [pool.sources[row] for row in kept],
        {source: new_row[of] for source, of in pool.pairs.items()},
    )


# --- tokens ---------------------------------------------------------------------------------------------------------

_worker: dict[str, Any] = {}
"""Texts and tokenisers of a forked process."""


def student_tokeniser(backbone: Backbone, max_length: int) -> Ids:
    """Tokenises as an encoder with the plain template does."""
    tokeniser = Tokeniser(backbone, Template.of("plain"), max_length)
    return lambda texts: [list(prompt.ids) for prompt in tokeniser(texts).prompts]


@contextmanager
def tokenised(texts: Sequence[str], tokenisers: Mapping[str, Ids], processes: int) -> Iterator[dict[str, Any]]:
    """The `Tokens` of chunks of the texts by tokeniser, computed by processes while they are waited for.

    Args:
        texts: The texts; forked processes share them.
        tokenisers: Tokenisers by name; all texts are tokenised by the first one first.
        processes: Number of processes; 0 tokenises in this one. Fork before the GPU is used.
    """
    chunks = range(0, len(texts), _TEXTS_AT_ONCE)
    jobs = {name: [(name, begin) for begin in chunks] for name in tokenisers}
    if not processes:
        _start_worker(texts, tokenisers)
        yield {name: map(_tokenise_chunk, of) for name, of in jobs.items()}
        return
    gc.freeze()  # counting references would copy the texts
    with multiprocessing.get_context("fork").Pool(processes, _start_worker, (texts, tokenisers)) as pool:
        yield {name: pool.imap(_tokenise_chunk, of) for name, of in jobs.items()}
    gc.unfreeze()


def _start_worker(texts: Sequence[str], tokenisers: Mapping[str, Ids]) -> None:
    if multiprocessing.parent_process():
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process is one thread
    _worker.update(texts=texts, tokenisers=tokenisers)


def _tokenise_chunk(chunk: tuple[str, int]) -> Tokens:
    name, begin = chunk
    ids = _worker["tokenisers"][name](_worker["texts"][begin : begin + _TEXTS_AT_ONCE])
    lengths = np.array([len(row) for row in ids], np.int64)
    return Tokens(np.fromiter((token for row in ids for token in row), np.int32, int(lengths.sum())), lengths)


def _joined(chunks: Iterable[Tokens]) -> Tokens:
    ids, lengths = zip(*chunks, strict=True)
    return Tokens(np.concatenate(ids), np.concatenate(lengths))


# --- teachers -------------------------------------------------------------------------------------------------------


class Teacher:
    """An encoder of sentence-transformers, with mean or CLS pooling.

    Args:
        folder: Its folder.

    Raises:
        InputError: It has other modules, or another pooling.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "modules.json").is_file():
            raise InputError(f"{folder} is no sentence-transformers folder: it has no modules.json.")
        kinds = [module["type"].rpartition(".")[2] for module in self._read("modules.json")]
        pooling = self._read("1_Pooling/config.json")
        self.uses_cls = bool(pooling.get("pooling_mode_cls_token") or pooling.get("pooling_mode") == "cls")
        is_mean = pooling.get("pooling_mode_mean_tokens") or pooling.get("pooling_mode") == "mean"
        if not set(kinds) <= {"Transformer", "Pooling", "Normalize"} or not (self.uses_cls or is_mean):
            raise InputError(f"{folder} has the modules {', '.join(kinds)}; a teacher here has mean or CLS pooling.")
        settings = self._read("sentence_bert_config.json") if (folder / "sentence_bert_config.json").is_file() else {}
        self.max_length = settings.get("max_seq_length") or self._read("tokenizer_config.json")["model_max_length"]
        self.pad_token_id = self._read("config.json").get("pad_token_id") or 0

    def _read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def fingerprint(self) -> str:
        """Hash of its files."""
        total = hashlib.sha256()
        for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            with file.open("rb") as content:
                total.update(file.name.encode() + hashlib.file_digest(content, "sha256").digest())
        return total.hexdigest()[:16]

    def tokeniser(self) -> Ids:
        """Tokenises as the teacher does, cut to its maximum number of tokens."""
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_length)
        return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]

    def load(self, device: torch.device) -> nn.Module:
        """The model, in float16 on a GPU."""
        from transformers import AutoModel

        dtype = torch.float16 if device.type == "cuda" else torch.float32
        model = AutoModel.from_pretrained(self.folder, dtype=dtype, add_pooling_layer=False)
        return model.to(device).eval()  # type: ignore[no-any-return]

    @torch.inference_mode()
    def vectors(self, tokens: Tokens, device: torch.device) -> Tensor:
        """[texts, dim] unit vectors in float16, on the device."""
        model = self.load(device)
        lengths, starts = tokens.lengths, np.cumsum(tokens.lengths) - tokens.lengths
        dim = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        vectors = torch.empty(len(lengths), dim, dtype=torch.float16, device=device)
        order = np.argsort(-lengths, kind="stable")
        begin = 0
        while begin < len(order):
            width = min(-(-int(lengths[order[begin]]) // 8) * 8, self.max_length)
            rows = order[begin : begin + max(1, _BATCH_TOKENS // width)]
            begin += len(rows)
            columns = np.arange(width)[None]
            inside = columns < lengths[rows, None]
            ids = np.full((len(rows), width), self.pad_token_id, np.int64)
            ids[inside] = tokens.ids[(starts[rows, None] + columns)[inside]]
            mask = torch.from_numpy(inside).to(device)
            states = model(input_ids=torch.from_numpy(ids).to(device), attention_mask=mask.long()).last_hidden_state
            pooled = self._pooled(states.float(), mask[:, :, None].float())
            vectors[torch.from_numpy(rows).to(device)] = functional.normalize(pooled, dim=1).half()
        if not bool(vectors.isfinite().all()):
            raise EncoderError(f"The teacher {self.folder} gives vectors that are not finite.")
        return vectors

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        return states[:, 0] if self.uses_cls else (states * mask).sum(1) / mask.sum(1)


def read_teachers(arguments: Sequence[str]) -> dict[str, Teacher]:
    """The teachers of arguments such as mpnet=FOLDER, by name."""
    folders = {name: folder for name, equals, folder in (word.partition("=") for word in arguments) if equals}
    if len(folders) < len(arguments):
        raise InputError("Teachers are given as NAME=FOLDER, each with a name of its own.")
    return {name: Teacher(Path(folder)) for name, folder in folders.items()}


# --- both -----------------------------------------------------------------------------------------------------------


def pack_texts(
    texts: Sequence[str],
    backbone: Backbone,
    teachers: Mapping[str, Teacher],
    device: torch.device,
    *,
    max_length: int = DEFAULT_MAX_LENGTH,
    cache: Path | None = None,
    processes: int = 0,
) -> tuple[TokenTable, list[Tensor]]:
    """Tokenise texts for a student, and compute the vectors of teachers.

    Args:
        texts: The texts.
        backbone: The student's model, whose tokenizer is used.
        teachers: The teachers by name.
        device: Where the teachers compute, and where their vectors stay.
        max_length: Tokens of a text for the student, unless its context is shorter.
        cache: Folder of results, which are read if they are there and written if not.
        processes: Number of forked processes that tokenise; 0: this one.

    Returns:
        The tokens of the student, and [texts, dim] unit vectors of each teacher in float16.
    """
    texts = list(texts)
    max_length = min(max_length, backbone.context_length or max_length)
    of_texts = fingerprint(texts) if cache else ""
    keys = {name: teacher.fingerprint() for name, teacher in teachers.items()} if cache else dict.fromkeys(teachers, "")
    keys[_STUDENT] = fingerprint(backbone.fingerprint, max_length)
    files = {name: cache / f"{name}-{of_texts}-{key}.npz" for name, key in keys.items()} if cache else {}
    stored = {name: dict(np.load(file)) for name, file in files.items() if file.is_file()}
    tokenisers = {name: teacher.tokeniser() for name, teacher in teachers.items()}
    tokenisers[_STUDENT] = student_tokeniser(backbone, max_length)
    missing = {name: tokeniser for name, tokeniser in tokenisers.items() if name not in stored}
    vectors = []
    with tokenised(texts, missing, processes if missing else 0) as chunks:
        for name, teacher in teachers.items():
            started = time.perf_counter()
            if name not in stored:
                of_teacher = teacher.vectors(_joined(chunks[name]), device)
                stored[name] = {"vectors": of_teacher.cpu().numpy()}
                _write(files.get(name), stored[name])
            vectors.append(torch.from_numpy(stored.pop(name)["vectors"]).to(device))
            print(f"{name}: vectors of {len(texts):,} texts in {time.perf_counter() - started:.1f} s", flush=True)
        if _STUDENT not in stored:
            stored[_STUDENT] = _joined(chunks[_STUDENT])._asdict()
            _write(files.get(_STUDENT), stored[_STUDENT])
    lengths = stored[_STUDENT]["lengths"].astype(np.intp)
    table = TokenTable(stored[_STUDENT]["ids"], lengths, np.cumsum(lengths) - lengths, grouped=False)
    return table, vectors


def _write(file: Path | None, arrays: Mapping[str, NDArray[Any]]) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as temporary, temporary.open("wb") as content:
            np.savez(content, **arrays)  # type: ignore[arg-type]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is packed, and how."""
    parser.add_argument("--teachers", nargs="+", required=True, metavar="NAME=FOLDER", help="sentence-transformers")
    parser.add_argument("--start", default=START, help="an encoder, from which training starts")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that tokenise")


def main() -> None:
    """Read the options and fill the cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--texts", choices=("all", "pairs"), default="all", help="pairs: what the rerankers need")
    parser.add_argument("--pairs", type=int, default=60_000, help="of a source, at most, with --texts pairs")
    add_arguments(parser)
    arguments = parser.parse_args()
    pool = read_pool(arguments.pool)
    if arguments.texts == "pairs":
        pool = texts_of_pairs(some_pairs(pool, arguments.pairs))
    backbone = Encoder.load(arguments.start, device="cpu", dtype="float32").backbone
    teachers = read_teachers(arguments.teachers)
    pack_texts(
        pool.texts, backbone, teachers, choose_device(None), cache=arguments.cache, processes=arguments.processes
    )


if __name__ == "__main__":
    main()
