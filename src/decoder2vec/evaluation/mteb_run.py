"""Run tasks of mteb by name; needs mteb, and a network for data that is not yet on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError, UnknownNameError
from decoder2vec.evaluation.mteb_bridge import missing_mteb


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
