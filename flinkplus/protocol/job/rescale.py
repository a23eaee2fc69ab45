"""A rescale of a job that is interrupted for it: from the request to the new subtasks.

Rules: the division is ordered once, when the interrupted job is quiet, and nothing behind the checkpoint is visible.
Before its answer the old subtasks are those of the job, afterwards the new ones. Late answers have no effect.
"""

from __future__ import annotations

from flinkplus.protocol.job.slots import SlotTable
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.effects import JobEffect
from flinkplus.protocol.vocabulary.ids import CheckpointId, invariant, parallelism_of


class Rescale:
    """One rescale at a time."""

    def __init__(self) -> None:
        self._wanted: events.RescaleRequested | None = None
        self._divided = False
        self._until_ms: int | None = None

    @property
    def active(self) -> bool:
        """Whether the job is interrupted for a rescale, or its new subtasks do not run yet."""
        return self._wanted is not None

    @property
    def undecided(self) -> bool:
        """Whether the interrupted job has yet to find out if it can be divided."""
        return self._wanted is not None and not self._divided and self._until_ms is None

    @property
    def until_ms(self) -> int | None:
        """The deadline of the division; ``None`` when it is not ordered, or answered."""
        return self._until_ms

    def begin(self, event: events.RescaleRequested, slots: SlotTable) -> str:
        """Begin the rescale; returns what is to happen, for the record."""
        invariant(bool(event.subtasks), "a job has subtasks", requested=event.subtasks)
        slots.check_needed(event.slots)
        self._wanted, self._divided = event, False
        return f"parallelism {parallelism_of(event.subtasks)}"

    def advance(self, checkpoint: CheckpointId | None, until_ms: int) -> list[JobEffect] | None:
        """The interrupted job is quiet: order the division of ``checkpoint``. ``None`` when it may be deployed."""
        if self._wanted is None or self._divided:
            return None
        if self._until_ms is not None:
            return []
        assert checkpoint is not None, "a running job that has a complete checkpoint keeps one"
        self._until_ms = until_ms
        return [effects.RescaleCheckpoint(checkpoint, self._wanted.subtasks)]

    def failed(self, event: events.RescalingFailed) -> list[JobEffect]:
        """The checkpoint was not divided: the job has the subtasks of before."""
        self._wanted = self._until_ms = None
        return [effects.ReportRescale("refused" if event.again else "cancelled", event.reason)]

    def divided(self) -> events.RescaleRequested:
        """The division that was ordered has ended: the job has the subtasks that this returns."""
        assert self._wanted is not None
        self._divided, self._until_ms = True, None
        return self._wanted

    def started(self) -> list[JobEffect]:
        """The subtasks run."""
        if self._wanted is None:
            return []
        self._wanted = None
        return [effects.ReportRescale("done")]
