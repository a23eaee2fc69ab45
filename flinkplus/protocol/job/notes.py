"""What the machine of a job remembers of failures, and of output that must be retracted.

Rules: pure data.
"""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.protocol.vocabulary.phases import FailureKind


@dataclass(frozen=True, slots=True)
class Retraction:
    """Output committed after ``checkpoint`` must be retracted; ``until_ms``: None until that is ordered."""

    checkpoint: CheckpointId | None
    reason: str
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    subtasks: tuple[SubtaskId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StartFailure:
    """The last failed start of a slot, and how many there were since it last registered."""

    count: int
    reason: str
    error: object
