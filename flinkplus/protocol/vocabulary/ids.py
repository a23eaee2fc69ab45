"""Identifiers common to all machines, and the check of internal invariants.

Rules: numbers that must not be confused have their own types. Identifiers are frozen and ordered, so that results
derived from them have the same order on every host. They are named tuples because each message is looked up by
them, and tuples are hashed and compared without running Python code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, NewType

from flinkplus.errors import InvariantViolation

CheckpointId = NewType("CheckpointId", int)
"""Number of a checkpoint: 1, 2, ...; never used twice in a job, not even after a rollback or a resume."""

Generation = NewType("Generation", int)
"""Fencing number of a subtask: 1, 2, ...; raised at each deployment or promotion. Every message carries it; messages
with a lower one are refused."""

Seq = NewType("Seq", int)
"""Position of a message on its channel: 0, 1, 2, ... without gaps."""


class SubtaskId(NamedTuple):
    """One parallel instance of a vertex, written ``count+out[1]``."""

    vertex: str
    index: int  # type: ignore[assignment]  # hides ``tuple.index``

    def __str__(self) -> str:
        return f"{self.vertex}[{self.index}]"


class ChannelId(NamedTuple):
    """The ordered link from one subtask to another: ``edge`` of the job graph, and the two subtasks' indexes."""

    edge: int
    producer: int
    consumer: int

    def __str__(self) -> str:
        return f"{self.edge}:{self.producer}->{self.consumer}"


def invariant(condition: bool, message: str, **context: object) -> None:
    """Raise ``InvariantViolation`` with ``message`` and ``context`` unless ``condition``; not off in ``python -O``."""
    if not condition:
        details = ", ".join(f"{name}={value}" for name, value in context.items())
        raise InvariantViolation(f"{message} ({details})" if details else message)


def parallelism_of(subtasks: Iterable[SubtaskId]) -> int:
    """The number of subtasks of each vertex, from all subtasks of a job; 1 for none."""
    return 1 + max((subtask.index for subtask in subtasks), default=0)
