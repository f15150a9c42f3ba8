"""Which prompt does a text get? Encoders may have prompts for a task, for a kind of task, or for a role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from decoder2vec.evaluation.sts import CanEncode
from decoder2vec.evaluation.tasks.task import Role, Task

_ROLES: dict[Role, tuple[str, ...]] = {"plain": (), "query": ("query",), "document": ("document", "passage", "corpus")}


@dataclass(frozen=True)
class Way:
    """How some texts are encoded. Equal ways give equal vectors for equal texts."""

    prompt: str = ""
    method: str = "encode"

    def of(self, encoder: CanEncode) -> Callable[[list[str]], Any]:
        """A function from texts to vectors."""
        encode = getattr(encoder, self.method)
        return (lambda texts: encode(texts, prompt=self.prompt)) if self.prompt else encode


def way_for(encoder: CanEncode, task: Task, role: Role, prompts: Mapping[str, str] | None = None) -> Way:
    """The first prompt that is there: for the task and role, the task, the kind and role, the kind, the role.

    `prompts` come before those of the encoder. One that has methods for queries and documents, but no list of prompts,
    is asked by these methods.
    """
    own = getattr(encoder, "prompts", None)
    known = {**(own if isinstance(own, Mapping) else {}), **(prompts or {})}
    names = (f"{task.name}-{role}", task.name, f"{task.kind}-{role}", task.kind, *_ROLES[role])
    prompt = next((known[name] for name in names if name in known), None)
    if prompt is not None:
        return Way(prompt)
    method = f"encode_{role}"
    return Way(method=method) if not isinstance(own, Mapping) and hasattr(encoder, method) else Way()
