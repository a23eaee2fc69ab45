"""When an input is to blame for the loss of processes: a process ended twice at the same place.

Each lost process can leave a note of the *place* at which it ended: subtask, operator, and what the operator was
working on. Rules:

- Only a process that ended inside an operator leaves a place. One that ended between two steps, or at a snapshot, does
  not, and one that FlinkPlus has ended itself is not reported here.
- Two places are the same when subtask and operator are the same, and one of these holds: both name the row, and it is
  the same one; at most one of them names it, and the message is the same, or the rows of a source overlap; at most one
  names it, and both processes ended by a signal of their own (``SIGSEGV``, ``SIGABRT`` and the like). The last rule is
  for a rollback, after which messages are cut in another way.
- A complete checkpoint is no sign that the place was passed: its barrier may lie before the input. So a place is
  remembered for ``KEPT_CHECKPOINTS`` more checkpoints. Messages and rows of a source have numbers of their own, so
  those that were passed do not come again.

A ``kill -9`` from outside leaves no signal of its own. It is blamed on an input only when it hits the same operator at
the same message twice. A call must last as long as the time between the two
kills for that; a job with such calls gets nowhere while it is killed like this.
"""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId

KEPT_CHECKPOINTS = 16
"""Checkpoints that may complete between two losses at the same place; while so few have since a loss, subtasks that
start again note the rows that they work on."""
MAX_PLACES = 64
"""Places that are remembered; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process ended. ``message``: the channel and number of the message (empty: the subtask is a source).
    ``rows``: the first row and the one behind the last that the operator was given, counted from the start of the job.
    ``row``: the row as text (empty: not known). ``signal``: that the process died of by itself (empty: not known)."""

    subtask: SubtaskId
    operator: str
    message: str = ""
    rows: tuple[int, int] = (0, 0)
    row: str = ""
    signal: str = ""

    def is_same(self, other: Place) -> bool:
        """Whether a process that ended here, and one that ended there, ended at the same input."""
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
    """Remembers where processes of one job ended."""

    def __init__(self) -> None:
        self._places: list[tuple[Place, CheckpointId]] = []

    def ended(self, place: Place, triggered: CheckpointId) -> Place | None:
        """A process ended at ``place``, when ``triggered`` was the newest checkpoint. Returns the place, with
        the row if either note names it, when that is the second time; else ``None``."""
        for known, _ in self._places:
            if known.is_same(place):
                return place if place.row else known
        self._places = [*self._places, (place, triggered)][-MAX_PLACES:]
        return None

    def on_progress(self, checkpoint: CheckpointId) -> None:
        """``checkpoint`` became complete."""
        oldest = checkpoint - KEPT_CHECKPOINTS
        self._places = [(place, triggered) for place, triggered in self._places if triggered >= oldest]
