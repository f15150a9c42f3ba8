"""Evaluate anything with `encode` by mteb 2: `evaluate_mteb` runs tasks, `as_mteb_model` adapts an encoder to mteb.

mteb recognises a model's abilities by its methods, so there are three classes. `MTEBEncoder` returns vectors.
`MTEBSearch` also ranks documents by scores of its own (BM25). `MTEBCrossEncoder` scores pairs, for reranking only. mteb
stores results by name and revision; the revision is the encoder's fingerprint, so results of two encoders never mix.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.config import DOCUMENT_PROMPTS, fingerprint
from decoder2vec.errors import (
    DataFileError,
    EncoderError,
    InputError,
    MissingExtraError,
    UnknownNameError,
)
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.suite import encoder_kind
from decoder2vec.evaluation.trec_metrics import provide_pytrec_eval, pytrec_eval_version
from decoder2vec.maths.similarity import pairwise_similarity, similarity_matrix
from decoder2vec.progress import current_progress
from decoder2vec.storage import versions, write_json

Batches = Iterable[Mapping[str, Any]]
"""mteb's input: batches with the texts under "text"."""

_HUB_TIMEOUT = 5.0
"""Seconds in which the hub must answer."""
_INSTRUCTION = "{instruction}"
_ROLE_PROMPTS = {"query": ("query",), "document": DOCUMENT_PROMPTS}


def evaluate_mteb(
    encoder: Any,
    tasks: Sequence[str],
    *,
    name: str | None = None,
    instruction: str | None = None,
    results_folder: Path | None = None,
    json_file: Path | None = None,
    device: str | None = None,
    show_progress_bar: bool = False,
    **choices: Any,
) -> dict[str, Any]:
    """Score an encoder on tasks of mteb. Results that mteb has stored are not computed again.

    Args:
        encoder: Anything with `encode`, `fingerprint` and `dim`, or a name for `load_encoder`.
        tasks: Names of mteb tasks, such as STSBenchmark.
        name: Organisation and name under which mteb stores results; by default decoder2vec/ and the encoder's name.
        instruction: A prompt with {instruction} in it, which is filled with mteb's instruction for the task.
        results_folder: mteb's results folder; by default its own cache.
        json_file: Write the returned document here after every task.
        device: For an encoder given by name.
        show_progress_bar: Show mteb's progress bars.
        choices: layer, pooling, template or attention of a model given by name; dtype of a model or saved encoder.

    Returns:
        {"encoder", "kind", "name", "fingerprint", "instruction", "results", "versions"}, with one entry in results for
        each task.
    """
    if not tasks:
        raise InputError("Name a task of mteb, such as --tasks STSBenchmark.")
    mteb_tasks = _get_tasks(tasks)  # an unknown name is refused before a model is loaded
    if isinstance(encoder, str | Path):
        source, encoder = str(encoder), load_encoder(encoder, device=device, **choices)
    else:
        source = type(encoder).__name__
    model = as_mteb_model(encoder, name or _default_name(source), instruction)
    document: dict[str, Any] = {
        "encoder": source,
        "kind": encoder_kind(encoder),
        "name": model.name,
        "fingerprint": encoder.fingerprint,
        "instruction": instruction,
        "results": [],
    }
    for result in _run_tasks(model, mteb_tasks, results_folder, show_progress_bar):
        document["results"].append(result)
        document["versions"] = {
            **versions(),
            "mteb": metadata.version("mteb"),
            "pytrec_eval": pytrec_eval_version(),
        }
        if json_file:  # after every task, so that an interrupted run keeps its results
            write_json(json_file, document)
    return document


def _run_tasks(
    model: MTEBEncoder, tasks: Sequence[Any], results_folder: Path | None, show_progress_bar: bool
) -> Iterator[dict[str, Any]]:
    """Yield the scores of an mteb model, task by task. Results that mteb has stored are not computed again."""
    mteb = _import_mteb()
    cache = mteb.ResultCache(cache_path=results_folder) if results_folder else mteb.ResultCache()
    for task in tasks:
        task.load_data = _download_or_explain(task.metadata.name, task.load_data)
        options = {"show_progress_bar": show_progress_bar}
        with current_progress().stage(task.metadata.name), nullcontext() if show_progress_bar else _no_bars():
            evaluated = mteb.evaluate(model, task, cache=cache, co2_tracker=False, encode_kwargs=options, **options)
        for result in evaluated.task_results:
            yield {
                "task": result.task_name,
                "type": str(task.metadata.type),
                "metric": str(task.metadata.main_score),
                "score": round(100 * float(result.get_score()), 2),
                "seconds": round(result.evaluation_time or 0.0, 2),
                "dataset_revision": result.dataset_revision,
                "scores": result.scores,
            }


def as_mteb_model(encoder: Any, name: str = "decoder2vec/encoder", instruction: str | None = None) -> MTEBEncoder:
    """A model for `mteb.evaluate`, with a search of its own if the encoder ranks documents lexically.

    Args:
        encoder: Anything with `encode`, `fingerprint` and `dim`.
        name: Organisation and name under which mteb stores results, such as me/my-encoder.
        instruction: A prompt with {instruction} in it, see `MTEBEncoder`.
    """
    model_class = MTEBSearch if hasattr(encoder, "build_index") else MTEBEncoder
    return model_class(encoder, name, instruction)


class _MTEBModel:
    """Common part of the three models: the encoder, its name, the choice of a prompt, and its metadata.

    Args:
        encoder: Anything with `encode`, `fingerprint` and `dim`.
        name: Organisation and name under which mteb stores results.
        instruction: A prompt with {instruction} in it, which is filled with mteb's instruction for the task. It is used
            for queries and plain texts, never for documents, and only if the encoder has no prompt for them.
    """

    model_type = "dense"

    def __init__(self, encoder: Any, name: str = "decoder2vec/encoder", instruction: str | None = None) -> None:
        if "/" not in name:
            raise InputError(
                f"mteb stores results by organisation and name; write for example me/{name} instead of {name!r}."
            )
        if instruction is not None and _INSTRUCTION not in instruction:
            raise InputError(f"The instruction {instruction!r} must contain {_INSTRUCTION}.")
        provide_pytrec_eval()  # for the caller, who will import mteb
        self.encoder = encoder
        self.name = name
        self.instruction = instruction

    def _encode(self, texts: Sequence[str], task: Any, role: str | None, options: Mapping[str, Any]) -> Any:
        """[texts, dim] vectors with the prompt for this task and role."""
        encode = getattr(self.encoder, f"encode_{role}", self.encoder.encode)
        with current_progress().phase("encoding", len(texts)):
            vectors = np.asarray(encode(list(texts), **self._prompt_options(task, role), **options))
        if not np.isfinite(vectors).all():
            raise EncoderError(f"{self.name} returned vectors that are not finite; run `d2v doctor` on its model.")
        return vectors

    def _prompt_options(self, task: Any, role: str | None) -> dict[str, str]:
        """The prompt as an option of `encode`, by mteb's order: task-role, task, type-role, type, role.

        If only the role has a prompt, nothing is passed: `encode_query` and `encode_document` add theirs.
        """
        prompts = _encoder_prompts(self.encoder)
        for task_name in filter(None, (getattr(task, "name", None), getattr(task, "type", None))):
            for prompt_name in (f"{task_name}-{role}", task_name):
                if prompt_name in prompts:
                    return {"prompt_name": prompt_name}
        has_role_prompt = any(prompt_name in prompts for prompt_name in _ROLE_PROMPTS.get(role or "", ()))
        if self.instruction is None or has_role_prompt or role == "document":
            return {}
        instruction = _task_instruction(task, role)
        return {"prompt": self.instruction.replace(_INSTRUCTION, instruction)} if instruction else {}

    @cached_property
    def mteb_model_meta(self) -> Any:
        """The `ModelMeta`: name, revision and settings, so that two encoders or dtypes are two models to mteb."""
        _import_mteb()
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        encoder = self.encoder
        similarity = getattr(encoder, "similarity_fn_name", "cosine")
        dtype = str(getattr(getattr(encoder, "backbone", None), "dtype", "float32")).removeprefix("torch.")
        experiment = {"instruction": fingerprint(self.instruction)[:8]} if self.instruction else {}
        if dtype != "float32":
            experiment["dtype"] = dtype
        return ModelMeta.create_empty(
            overwrites={
                "name": self.name,
                "revision": encoder.fingerprint,
                "embed_dim": encoder.dim,
                "max_tokens": getattr(encoder, "max_seq_length", None),
                "n_parameters": _count_parameters(encoder),
                "similarity_fn_name": ScoringFunction(similarity),
                "adapted_from": getattr(getattr(encoder, "spec", None), "backbone", None),
                "use_instructions": bool(self.instruction or any(_encoder_prompts(encoder).values())),
                "model_type": [self.model_type],
                "experiment_kwargs": experiment or None,
            }
        )


class MTEBEncoder(_MTEBModel):
    """An encoder behind mteb's encoder protocol. See `as_mteb_model` for the parameters."""

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
        """[texts, dim] vectors of the texts in batches, with the prompt for the task and role.

        mteb always passes a batch size in texts; it is ignored, since batches are built by tokens.
        """
        passed = {"show_progress_bar": options["show_progress_bar"]} if "show_progress_bar" in options else {}
        return self._encode(_batch_texts(inputs), task_metadata, getattr(prompt_type, "value", prompt_type), passed)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, m] similarities by the encoder's own function (a pair head, for example), else cosines."""
        similarity = getattr(self.encoder, "similarity", None)
        return (
            similarity(embeddings1, embeddings2)
            if similarity
            else similarity_matrix("cosine", embeddings1, embeddings2)
        )

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n] similarities of corresponding rows."""
        similarity = getattr(self.encoder, "similarity_pairwise", None)
        return (
            similarity(embeddings1, embeddings2)
            if similarity
            else pairwise_similarity("cosine", embeddings1, embeddings2)
        )


class MTEBSearch(MTEBEncoder):
    """An encoder with `build_index(documents)` behind mteb's search protocol and its encoder protocol."""

    model_type = "sparse"
    _ids: tuple[str, ...] = ()
    _index: Any = None

    def index(self, corpus: Any, *, task_metadata: Any, encode_kwargs: Any = None, **_: Any) -> None:
        """Index the documents, title and text, joined as mteb joins them for every model."""
        self._ids = tuple(corpus["id"])
        self._index = self.encoder.build_index(_read_texts(corpus, task_metadata, "document", encode_kwargs))

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
        """Query -> document -> score: the best `top_k` documents, or all candidates in `top_ranked`."""
        column_of = {document: column for column, document in enumerate(self._ids)}
        texts = _read_texts(queries, task_metadata, "query", encode_kwargs)
        results = {}
        for query, text in zip(queries["id"], texts, strict=True):
            scores = self._index.scores([text])[0]
            if top_ranked is None:
                columns = np.argsort(-scores, kind="stable")[:top_k]
            else:
                columns = np.array([column_of[document] for document in top_ranked.get(query, ())], dtype=int)
            results[query] = {self._ids[column]: float(scores[column]) for column in columns}
        return results


class MTEBCrossEncoder(_MTEBModel):
    """An encoder's pair scores behind mteb's cross-encoder protocol, which mteb uses for reranking only."""

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
        """[n] scores of query and document: the encoder's `score`, or its similarity if it has prompts."""
        queries, documents = _batch_texts(inputs1), _batch_texts(inputs2)
        score = getattr(self.encoder, "score", None)
        if score and not self.instruction and not any(_encoder_prompts(self.encoder).values()):
            return np.asarray(score(queries, documents))
        left = self._encode_unique(queries, task_metadata, "query")
        right = self._encode_unique(documents, task_metadata, "document")
        similarity = getattr(self.encoder, "similarity_pairwise", None)
        return np.asarray(similarity(left, right) if similarity else pairwise_similarity("cosine", left, right))

    def _encode_unique(self, texts: list[str], task: Any, role: str) -> Any:
        """[texts, dim] vectors; a repeated text is encoded once, since a query comes with each of its documents."""
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        return self._encode(list(row_of), task, role, {})[[row_of[text] for text in texts]]


def _default_name(encoder: str) -> str:
    """decoder2vec/ and the last component of the encoder's path, with characters that a folder's name can have."""
    component = re.sub(r"[^\w.-]+", "-", Path(encoder).expanduser().resolve().name).strip("-.")
    return f"decoder2vec/{component or 'encoder'}"


def _encoder_prompts(encoder: Any) -> Mapping[str, str]:
    return getattr(encoder, "prompts", None) or {}


def _batch_texts(inputs: Batches) -> list[str]:
    return [text for batch in inputs for text in batch["text"]]


def _read_texts(rows: Any, task: Any, role: str, options: Mapping[str, Any] | None) -> list[str]:
    """The texts of queries or documents as mteb joins them: title and text, query and instruction."""
    from mteb._create_dataloaders import create_dataloader
    from mteb.types import PromptType

    return _batch_texts(create_dataloader(rows, task_metadata=task, prompt_type=PromptType(role), **(options or {})))


def _task_instruction(task: Any, role: str | None) -> str:
    """The instruction that mteb has for a task, or for its type if the task has none."""
    instruction = getattr(task, "prompt", None)
    if isinstance(instruction, Mapping):
        instruction = instruction.get(role or "query")
    if instruction:
        return str(instruction)
    from mteb.abstasks.abstask import get_abstask_prompt

    return str(get_abstask_prompt(task.name))


def _count_parameters(encoder: Any) -> Any:
    """The number of parameters, if it can be known."""
    parameters = getattr(encoder, "parameters", None)
    model = getattr(getattr(encoder, "backbone", None), "model", None)
    if isinstance(parameters, int) or model is None:
        return parameters
    return sum(weights.numel() for weights in model.parameters())


def _import_mteb() -> Any:
    provide_pytrec_eval()
    try:
        import mteb
    except ImportError:
        raise MissingExtraError("mteb", "mteb") from None
    return mteb


def _get_tasks(names: Sequence[str]) -> list[Any]:
    mteb, tasks = _import_mteb(), []
    for name in names:
        try:
            tasks.append(mteb.get_task(name))
        except KeyError as error:  # its message suggests the nearest task
            suggestion = str(error.args[0]).removeprefix("KeyError: ")
            raise UnknownNameError(f"mteb has no task {name!r}. {suggestion}") from None
    return tasks


def _download_or_explain(name: str, load: Callable[..., Any]) -> Callable[..., Any]:
    """`load_data` that fails at once where the hub does not answer, with one error and its cure.

    Data that were downloaded before are loaded without it.
    """

    def load_data(*args: Any, **kwargs: Any) -> Any:
        with current_progress().phase("loading the data"):
            answers = _hub_answers()
            try:
                with nullcontext() if answers else _offline():
                    return load(*args, **kwargs)
            except Exception as cause:
                reason = type(cause).__name__ if answers else "it does not answer"
                raise DataFileError(
                    f"The data of {name} could not be downloaded from the Hugging Face Hub ({reason}); "
                    "`d2v mteb` needs a network the first time. For your own files, use `d2v eval`."
                ) from cause

    return load_data


def _hub_answers() -> bool:
    """Whether the hub answers within a few seconds: its client would try again and again for minutes.

    It is asked in a thread, since a name that cannot be looked up takes longer than any timeout of a connection.
    """
    from huggingface_hub import constants, get_session

    answers: list[Any] = []

    def ask() -> None:
        with suppress(Exception):  # the client raises a dozen classes
            answers.append(get_session().head(constants.ENDPOINT, timeout=_HUB_TIMEOUT))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_HUB_TIMEOUT)
    return bool(answers)


@contextmanager
def _offline() -> Iterator[None]:
    """Context in which the clients of the hub use what they have downloaded, and nothing else."""
    import datasets.config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _no_bars() -> Iterator[None]:
    """Context in which datasets and the hub's client show no progress bars, which would be drawn into ours."""
    import datasets
    import huggingface_hub.utils

    clients = [client for client in (datasets, huggingface_hub.utils) if not client.are_progress_bars_disabled()]
    for client in clients:
        client.disable_progress_bars()
    try:
        yield
    finally:
        for client in clients:
            client.enable_progress_bars()
