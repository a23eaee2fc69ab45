"""Decides when an input has caused the loss of processes: a process ended twice at the same place.

Each lost process can record the *place* at which it ended: subtask, operator, and the operator's input. Rules:

- Only a process that ended inside an operator, and that FlinkPlus has not ended itself, has a place.
- Two places are the same when subtask and operator are the same, and one of these holds: both name the same row; at
  most one names a row, and the message is the same, or the rows of a source overlap; at most one names a row, and both
  processes ended by a signal of their own (``SIGSEGV``, ``SIGABRT`` and the like). The last rule is for a rollback,
  after which rows are divided into other messages.
- A complete checkpoint does not prove that the input was processed: its barrier may precede the input. So a place is
  kept for ``KEPT_CHECKPOINTS`` more checkpoints. Messages and rows of a source have unique numbers, so inputs that were
  processed do not match later ones.

A ``kill -9`` from outside leaves no signal of its own. It counts against an input only when it hits the same operator
at the same message twice: a job whose calls last as long as the time between two kills makes no progress anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId

KEPT_CHECKPOINTS = 16
"""Maximum number of checkpoints between two losses at the same place. Until so many have completed after a loss,
restarted subtasks record the rows that they process."""
MAX_PLACES = 64
"""Maximum number of places kept; the oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process ended.

    ``message``: channel and number of the message (empty: the subtask is a source).
    ``rows``: the operator's first row and the one after its last, counted from the start of the job.
    ``row``: the row as text (empty: unknown).
    ``signal``: the signal of its own that ended the process (empty: unknown).
    """

    subtask: SubtaskId
    operator: str
    message: str = ""
    rows: tuple[int, int] = (0, 0)
    row: str = ""
    signal: str = ""

    def is_same(self, other: Place) -> bool:
        """Whether this and ``other`` are the same input."""
        if (self.subtask, self.operator) != (other.subtask, other.operator):
            return False
        if self.row and other.row:
            return self.row == other.row
        if self.signal and other.signal:
            return True
        if self.message or other.message:
            return self.message == other.message
        return self.rows[0] < other.rows[1] and other.rows[0] < self.rows[1]

    @property
    def where(self) -> str:
        """The message, or the rows of a source, as text."""
        return f"message {self.message}" if self.message else f"rows {self.rows[0]} to {self.rows[1] - 1}"

    def __str__(self) -> str:
        row = f"; input row: {self.row}" if self.row else ""
        return f"{self.where}{row}"


class Crashes:
    """The places where processes of one job ended."""

    def __init__(self) -> None:
        self._places: list[tuple[Place, CheckpointId]] = []

    def ended(self, place: Place, triggered: CheckpointId) -> Place | None:
        """A process ended at ``place``, when ``triggered`` was the newest checkpoint. Returns the place, with the row
        if either record names it, the second time; otherwise ``None``."""
        for known, _ in self._places:
            if known.is_same(place):
                return place if place.row else known
        self._places = [*self._places, (place, triggered)][-MAX_PLACES:]
        return None

    def on_progress(self, checkpoint: CheckpointId) -> None:
        """``checkpoint`` became complete."""
        oldest = checkpoint - KEPT_CHECKPOINTS
        self._places = [(place, triggered) for place, triggered in self._places if triggered >= oldest]
