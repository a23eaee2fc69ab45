"""Progress of sources: sent instead of determinants where steps are not repeated (at most once).

Messages carry it in place of determinants: instead of a step, the number of rows that a source has read; a span is
always empty. A subtask that has seen an effect of a row knows a higher number; the source's successor skips so many
rows.
"""

from __future__ import annotations

from typing_extensions import override

from flinkplus.protocol.determinants.determinants import (
    AncestorLog,
    Choice,
    KnownSteps,
    Span,
    StepLog,
    encode_ancestor,
    encode_span,
)
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId


class ProgressLog(StepLog):
    """The progress of one source. ``rows``: number of rows read, sent with all that is made of them."""

    __slots__ = ("rows",)

    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.rows = rows

    @property
    @override
    def next_step(self) -> int:
        return self.rows

    @override
    def begin(self, choice: Choice, value: int) -> None:
        return None

    @override
    def since(self, step: int) -> bytes:
        return encode_span(self.rows, ()) if step != self.rows else b""

    @override
    def clear(self) -> None:
        return None


class AncestorProgress(AncestorLog):
    """The progress of upstream sources: the highest number of each that came with messages taken."""

    __slots__ = ()

    @override
    def take(self, number: int, first: int, determinants: tuple[int, ...]) -> None:
        if first > self._reached.get(number, 0):
            self._reached[number] = first
            self._entries.append((number, first, ()))

    @override
    def since(self, position: int, *, name_all: bool = False) -> bytes:
        news = (
            self._reached if name_all else {number: rows for number, rows, _ in self._entries[position - self._first :]}
        )
        return b"".join([encode_ancestor(number, rows, ()) for number, rows in sorted(news.items())])


class KnownProgress(KnownSteps):
    """What one subtask knows of upstream sources."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[SubtaskId, int] = {}

    @override
    def learn(self, subtask: SubtaskId, first: int, determinants: object) -> None:
        self._rows[subtask] = max(first, self._rows.get(subtask, 0))

    @override
    def barrier(self, checkpoint: CheckpointId, subtask: SubtaskId, step: int) -> None:
        return None

    @override
    def complete(self, checkpoint: CheckpointId) -> None:
        return None

    @override
    def of(self, subtask: SubtaskId) -> Span | None:
        rows = self._rows.get(subtask)
        return None if not rows else (rows, ())

    @override
    def subtasks(self) -> tuple[SubtaskId, ...]:
        return tuple(self._rows)
