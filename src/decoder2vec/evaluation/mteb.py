"""Anything with `encode` behind the protocols of mteb 2: pass `bridge(encoder)` to `mteb.evaluate`.

mteb takes a model for what its methods say it is, so there are three classes. `MTEBEncoder` gives vectors.
`MTEBSearch` also ranks by scores of its own (BM25). `MTEBCrossEncoder` scores pairs, for reranking only. Results are
kept by mteb under name and revision; the revision is the encoder's fingerprint, so that two encoders never mix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.config import fingerprint
from decoder2vec.errors import DataFileError, EncoderError, InputError, MissingExtraError, UnknownNameError
from decoder2vec.maths.similarity import pairwise_similarity, similarity_matrix

Batches = Iterable[Mapping[str, Any]]
"""What mteb hands over: batches with the texts under "text"."""

INSTRUCTION = "{instruction}"
_ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}


class _Model:
    """What the three share: the encoder, its name, the choice of a prompt, and its description."""

    model_type = "dense"

    def __init__(self, encoder: Any, name: str = "decoder2vec/encoder", instruction: str | None = None) -> None:
        """`instruction` is a prompt with {instruction} in it, filled with what mteb says about a task.

        It is used for queries and single texts, never for documents, and where the encoder has no prompt of its own.
        """
        if "/" not in name:
            raise InputError(f"mteb keeps results by organisation and name, such as me/{name}; {name!r} lacks one.")
        if instruction is not None and INSTRUCTION not in instruction:
            raise InputError(f"The instruction {instruction!r} has no {INSTRUCTION} in it.")
        self.encoder = encoder
        self.name = name
        self.instruction = instruction

    def _vectors(self, texts: Sequence[str], task: Any, role: str | None, options: Mapping[str, Any]) -> Any:
        """Vectors under the prompt for this task and role."""
        encode = getattr(self.encoder, f"encode_{role}", self.encoder.encode)
        vectors = np.asarray(encode(list(texts), **self._prompt(task, role), **options))
        if not np.isfinite(vectors).all():
            raise EncoderError(f"{self.name} gave vectors that are not finite; run `d2v doctor` on its model.")
        return vectors

    def _prompt(self, task: Any, role: str | None) -> dict[str, str]:
        """The prompt that fits best, in mteb's order: task and role, task, kind of task and role, kind of task, role.

        Where only the role fits, nothing is said here: `encode_query` and `encode_document` know their own.
        """
        prompts = _prompts(self.encoder)
        for what in filter(None, (getattr(task, "name", None), getattr(task, "type", None))):
            for name in (f"{what}-{role}", what):
                if name in prompts:
                    return {"prompt_name": name}
        own = any(name in prompts for name in _ROLES.get(role or "", ()))
        if self.instruction is None or own or role == "document":
            return {}
        said = _instruction_of(task, role)
        return {"prompt": self.instruction.replace(INSTRUCTION, said)} if said else {}

    @cached_property
    def mteb_model_meta(self) -> Any:
        """Name, revision and the choices made, so that two encoders are two models to mteb."""
        try:
            from mteb.models import ModelMeta
            from mteb.models.model_meta import ScoringFunction
        except ImportError as error:
            raise missing_mteb(error) from None
        encoder = self.encoder
        similarity = getattr(encoder, "similarity_fn_name", "cosine")
        return ModelMeta.create_empty(
            overwrites={
                "name": self.name,
                "revision": encoder.fingerprint,
                "embed_dim": encoder.dim,
                "max_tokens": getattr(encoder, "max_seq_length", None),
                "n_parameters": _parameters(encoder),
                "similarity_fn_name": ScoringFunction(similarity),
                "adapted_from": getattr(getattr(encoder, "spec", None), "backbone", None),
                "use_instructions": bool(self.instruction or any(_prompts(encoder).values())),
                "model_type": [self.model_type],
                "experiment_kwargs": {"instruction": fingerprint(self.instruction)[:8]} if self.instruction else None,
            }
        )


class MTEBEncoder(_Model):
    """mteb's encoder protocol."""

    def encode(
        self,
        inputs: Batches,
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **options: Any,
    ) -> Any:
        """Vectors of the texts in a loader of batches, under the prompt for the task and role.

        mteb always says a batch size of texts; it is not used, since batches are cut by tokens.
        """
        shown = {"show_progress_bar": options["show_progress_bar"]} if "show_progress_bar" in options else {}
        return self._vectors(_texts(inputs), task_metadata, getattr(prompt_type, "value", prompt_type), shown)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, m] similarities: the encoder's own, a pair head's too, else cosines."""
        own = getattr(self.encoder, "similarity", None)
        return own(embeddings1, embeddings2) if own else similarity_matrix("cosine", embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n] similarities, row by row."""
        own = getattr(self.encoder, "similarity_pairwise", None)
        return own(embeddings1, embeddings2) if own else pairwise_similarity("cosine", embeddings1, embeddings2)


class MTEBSearch(MTEBEncoder):
    """mteb's search protocol beside the encoder's: for encoders that have `index_of(documents)`."""

    model_type = "sparse"
    _ids: tuple[str, ...] = ()
    _index: Any = None

    def index(self, corpus: Any, *, task_metadata: Any, encode_kwargs: Any = None, **_: Any) -> None:
        """Index the documents, title and text, as every model of mteb reads them."""
        self._ids = tuple(corpus["id"])
        self._index = self.encoder.index_of(_read(corpus, task_metadata, "document", encode_kwargs))

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        encode_kwargs: Any = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Query -> document -> score: the best `top_k`, or all of the documents that are to be reranked."""
        column = {name: number for number, name in enumerate(self._ids)}
        texts = _read(queries, task_metadata, "query", encode_kwargs)
        results = {}
        for name, text in zip(queries["id"], texts, strict=True):
            row = self._index.scores([text])[0]
            if top_ranked is None:
                chosen = np.argsort(-row, kind="stable")[:top_k]
            else:
                chosen = np.array([column[document] for document in top_ranked.get(name, ())], dtype=int)
            results[name] = {self._ids[number]: float(row[number]) for number in chosen}
        return results


class MTEBCrossEncoder(_Model):
    """mteb's cross-encoder protocol: the scores an encoder gives to pairs of texts. Reranking only, as mteb has it."""

    model_type = "cross-encoder"

    def predict(
        self,
        inputs1: Batches,
        inputs2: Batches,
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **_: Any,
    ) -> Any:
        """[n] scores of query and document: the encoder's `score`, or where it has prompts, its similarity."""
        queries, documents = _texts(inputs1), _texts(inputs2)
        score = getattr(self.encoder, "score", None)
        if score and not self.instruction and not any(_prompts(self.encoder).values()):
            return np.asarray(score(queries, documents))
        left, right = (
            self._unique(texts, task_metadata, role) for texts, role in ((queries, "query"), (documents, "document"))
        )
        own = getattr(self.encoder, "similarity_pairwise", None)
        return np.asarray(own(left, right) if own else pairwise_similarity("cosine", left, right))

    def _unique(self, texts: list[str], task: Any, role: str) -> Any:
        """Vectors of texts that repeat: a query stands there once for each of its documents."""
        place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        return self._vectors(list(place), task, role, {})[[place[text] for text in texts]]


def as_mteb_model(encoder: Any, name: str = "decoder2vec/encoder", instruction: str | None = None) -> MTEBEncoder:
    """The encoder as mteb wants it: with a search of its own where it has one."""
    kind = MTEBSearch if hasattr(encoder, "index_of") else MTEBEncoder
    return kind(encoder, name, instruction)


def _prompts(encoder: Any) -> Mapping[str, str]:
    return getattr(encoder, "prompts", None) or {}


def _texts(inputs: Batches) -> list[str]:
    return [text for batch in inputs for text in batch["text"]]


def _read(rows: Any, task: Any, role: str, options: Mapping[str, Any] | None) -> list[str]:
    """The texts of queries or documents as mteb puts them together: title and text, query and instruction."""
    from mteb._create_dataloaders import create_dataloader
    from mteb.types import PromptType

    return _texts(create_dataloader(rows, task_metadata=task, prompt_type=PromptType(role), **(options or {})))


def _instruction_of(task: Any, role: str | None) -> str:
    """What mteb says about a task to models that follow instructions: the task's own words, or its kind's."""
    said = getattr(task, "prompt", None)
    if isinstance(said, Mapping):
        said = said.get(role or "query")
    if said:
        return str(said)
    from mteb.abstasks.abstask import get_abstask_prompt

    return str(get_abstask_prompt(task.name))


def _parameters(encoder: Any) -> int | None:
    """How many numbers the model has, where that can be known."""
    own = getattr(encoder, "parameters", None)
    model = getattr(getattr(encoder, "backbone", None), "model", None)
    return own if isinstance(own, int) or model is None else sum(weights.numel() for weights in model.parameters())


def missing_mteb(error: ImportError) -> Exception:
    """Why mteb cannot be imported, in one sentence."""
    if (error.name or "").split(".")[0] == "pytrec_eval":
        return InputError("mteb needs pytrec_eval, which is not installed; docs/mteb.md says how to do without.")
    return MissingExtraError("mteb", "mteb")


def run_tasks(
    model: Any, names: Sequence[str], results: Path | None = None, show_progress_bar: bool = False
) -> Iterator[dict[str, Any]]:
    """Scores of the model, task by task. What mteb finds in its results of before, it does not compute again.

    `results` is the folder of these; by default mteb's own in the user's cache.
    """
    mteb = _mteb()
    tasks = [_task(mteb, name) for name in names]  # a wrong name is refused before any work is done
    cache = mteb.ResultCache(cache_path=results) if results else mteb.ResultCache()
    for task in tasks:
        task.load_data = _with_a_sentence(task.metadata.name, task.load_data)
        options = {"show_progress_bar": show_progress_bar}
        done = mteb.evaluate(model, task, cache=cache, co2_tracker=False, encode_kwargs=options, **options)
        for result in done.task_results:
            yield {
                "task": result.task_name,
                "type": str(task.metadata.type),
                "metric": str(task.metadata.main_score),
                "score": round(100 * float(result.get_score()), 2),
                "seconds": round(result.evaluation_time or 0.0, 2),
                "dataset_revision": result.dataset_revision,
                "scores": result.scores,
            }


def _mteb() -> Any:
    try:
        import mteb
    except ImportError as error:
        raise missing_mteb(error) from None
    return mteb


def _task(mteb: Any, name: str) -> Any:
    try:
        return mteb.get_task(name)
    except KeyError as error:  # it names the nearest task itself
        raise UnknownNameError(f"mteb has no task {name!r}. {str(error.args[0]).removeprefix('KeyError: ')}") from None


def _with_a_sentence(name: str, load: Callable[..., Any]) -> Callable[..., Any]:
    """`load_data` whose failure says what to do: the data hub is out of reach in a dozen ways."""

    def load_data(*args: Any, **kwargs: Any) -> Any:
        try:
            return load(*args, **kwargs)
        except Exception as cause:
            raise DataFileError(
                f"The data of {name} could not be fetched from the data hub ({type(cause).__name__}); `d2v mteb` needs "
                "a network the first time. On files of your own, use `d2v eval`."
            ) from cause

    return load_data
