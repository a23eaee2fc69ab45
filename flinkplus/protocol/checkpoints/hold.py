"""The checkpoint behind which sinks hold back rows that would be visible at once.

The job is about to be divided, or to stop, at a checkpoint. What is made of it cannot repeat the steps behind it, so
nothing of these steps may be visible.

Rules:

- the order to hold goes to all slots before the checkpoint is triggered. It says which barrier rows may not pass, so it
  is the same for a sink that has seen the barrier, and for one that repeats the steps before it;
- each deployment begins with the last order, and gets it again when it has started: an order in between is lost;
- one checkpoint at a time. While sinks hold back behind it, no other one is triggered: it could not be acknowledged;
- a hold ends when its checkpoint is aborted, when the one that has requested it says so, and with the job's
  interruption. That of a stop with a savepoint lasts for as long as the savepoint's request, over deployments, and to
  the end of the job if it stops.

Without a sink whose rows are visible at once nothing is held.
"""

from __future__ import annotations

from flinkplus.protocol.vocabulary import effects
from flinkplus.protocol.vocabulary.effects import CheckpointingEffect
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation


class OutputHold:
    """``needed``: whether the job has such sinks. ``behind``: the checkpoint of the last order; ``None``: nothing is
    held. ``requested``: the next checkpoint is to be held."""

    def __init__(self, needed: bool) -> None:
        self._needed = needed
        self._of_request: CheckpointId | None = None
        self.behind: CheckpointId | None = None
        self.requested = False

    @property
    def active(self) -> bool:
        """Whether the hold of a request is under way."""
        return self._of_request is not None

    def triggered(self, checkpoint: CheckpointId) -> None:
        """``checkpoint`` is about to be triggered."""
        if self.requested and self._needed:
            self._of_request = checkpoint
        self.requested = False

    def aborted(self, checkpoint: CheckpointId) -> None:
        if checkpoint == self._of_request:
            self._of_request = None

    def release(self) -> None:
        """What was requested is over."""
        self._of_request, self.requested = None, False

    def look(self, stops_at: CheckpointId | None, generation: Generation) -> list[CheckpointingEffect]:
        """The order to give, if it is another than before. ``stops_at``: the checkpoint with which the job stops."""
        behind = (stops_at or self._of_request) if self._needed else None
        if behind == self.behind:
            return []
        self.behind = behind
        return [effects.HoldOutput(behind, generation)]

    def started(self, generation: Generation) -> list[CheckpointingEffect]:
        """The subtasks of ``generation`` run."""
        return [effects.HoldOutput(self.behind, generation)] if self._needed else []
