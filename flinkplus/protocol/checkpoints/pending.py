"""A checkpoint that is triggered, and has neither become complete nor been aborted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flinkplus.protocol.vocabulary import effects
from flinkplus.protocol.vocabulary.config import CheckpointConfig
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import AbortCause

NAMED_AT_MOST = 4
"""Maximum number of subtasks named in a reason."""


@dataclass(slots=True)
class PendingCheckpoint:
    """``handles``: the snapshots so far. ``in_flight_bytes``: of those with channel state. ``acknowledged_ms``: when it
    became ready. ``overtakes``: its barriers were ordered to overtake."""

    checkpoint: CheckpointId
    final: bool
    triggered_ms: int
    handles: dict[SubtaskId, object] = field(default_factory=dict)
    in_flight_bytes: dict[SubtaskId, int] = field(default_factory=dict)
    acknowledged_ms: int | None = None
    may_overtake: bool = True
    overtakes: bool = False

    def excess(self, index: int, config: CheckpointConfig) -> str | None:
        """Why it holds too much channel state, after an answer of a subtask with ``index``, or None."""
        held = self.in_flight_bytes
        in_slot = sum(size for subtask, size in held.items() if subtask.index == index)
        for where, size, limit in (
            (f"to subtasks {index}", in_slot, config.in_flight_slot_bytes),
            ("in the job", sum(held.values()), config.in_flight_job_bytes),
        ):
            if size > limit:
                return f"{size:,} bytes were in flight {where}, and the maximum is {limit:,}"
        return None

    def missing(self, subtasks: Sequence[SubtaskId], config: CheckpointConfig) -> str:
        """Why it is not complete when its time has passed. ``subtasks``: all of the job."""
        missing = [str(subtask) for subtask in subtasks if subtask not in self.handles]
        if not missing:
            return f"an older manifest was still being stored after {config.timeout_ms} ms"
        others = f" and {len(missing) - NAMED_AT_MOST} others" if len(missing) > NAMED_AT_MOST else ""
        return f"not acknowledged within {config.timeout_ms} ms by {', '.join(missing[:NAMED_AT_MOST])}{others}"

    def stats(
        self,
        generation: Generation,
        outcome: effects.CheckpointOutcome,
        reason: str,
        ended_ms: int,
        subtasks: int,
        cause: AbortCause | None,
    ) -> effects.CheckpointStats:
        """What is recorded of it. ``subtasks``: number of those of the job."""
        return effects.CheckpointStats(
            checkpoint=self.checkpoint,
            generation=generation,
            final=self.final,
            outcome=outcome,
            reason=reason,
            triggered_ms=self.triggered_ms,
            acknowledged_ms=self.acknowledged_ms,
            ended_ms=ended_ms,
            acknowledged=len(self.handles),
            subtasks=subtasks,
            cause=cause,
        )
