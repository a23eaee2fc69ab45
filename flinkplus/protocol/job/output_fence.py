"""The fence of sinks whose rows are visible at once, before each deployment of a job.

Such a sink refuses the transactions of earlier generations from then on, and its recipe says what the subtasks must
repeat (``determinants.recipe``). A part of ``JobProtocol``: it knows for which generation the output is fenced, and
until when it waits for an answer.

Before a division the output of the old subtasks is fenced, since only they can repeat what their recipes say: the
checkpoint is divided if nothing behind it is visible. After it, that of the new ones is.
"""

from __future__ import annotations

from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.effects import JobEffect
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation


class OutputFence:
    """``needed``: whether the job has such sinks. ``until_ms``: the deadline of an answer; ``None``: it awaits none.
    ``repeats``: the last answer says that there are steps to repeat."""

    def __init__(self, needed: bool) -> None:
        self._needed = needed
        self._ordered = self._fenced = Generation(0)
        self.until_ms: int | None = None
        self.repeats = False

    def reset(self) -> None:
        """The job is interrupted, has other subtasks, or ends: an answer that comes later has no effect."""
        self._ordered = self._fenced = Generation(0)
        self.until_ms = None

    def advance(self, generation: Generation, checkpoint: CheckpointId | None, until_ms: int) -> list[JobEffect] | None:
        """``None``: a deployment of ``generation`` from ``checkpoint`` need not wait; otherwise what comes first."""
        if not self._needed or self._fenced == generation:
            return None
        if self._ordered == generation:
            return []
        self._ordered, self.until_ms = generation, until_ms
        return [effects.FenceOutput(generation, checkpoint)]

    def answered(self, event: events.OutputFenced | events.OutputFenceFailed) -> str | None:
        """Takes an answer; returns why the job cannot continue, if so."""
        if self.until_ms is None or event.generation != self._ordered:
            return None
        self.until_ms = None
        if isinstance(event, events.OutputFenceFailed):
            return f"the recipe of the output could not be read: {event.reason}; resume the job"
        self._fenced, self.repeats = event.generation, event.repeats
        return None
