"""How much a source reads at a time, and when: batches of a useful size, and a steady rate where one is asked for.

A steady rate means *arrival*: record k is there at ``anchor + k / rate``, as if something outside produced it. A
source that went back to a checkpoint finds everything that has arrived since, and reads it as fast as it can. One that
is up to date reads at the ticks of a clock, one every ``flush_s`` seconds; the subtasks of a source have their ticks in
turn, so that what they feed hears from one of them all the time.

Rules: no clock of its own; the caller passes ``now`` in seconds, on the same clock as the anchor. The rate counts
the rows
that leave one chosen operator (a source, or the operator under ``throttle``), so that "words per second" means words
although the source reads lines.
"""

from __future__ import annotations

import math

FIRST_READ_ROWS = 1024
TICK_TOLERANCE = 1e-6
SMOOTHING = 0.3


class Pacer:
    """Pacing of one source subtask.

    ``rate``: rows per second for this subtask, ``None`` for as fast as possible. ``batch_rows``: rows aimed at per
    read,
    counted where the stream is widest. ``flush_s``: seconds between two reads at a steady rate. ``turn``: where between
    two ticks of the first subtask this one's are, from 0 to 1. ``counted``: rows that have left the operator that the
    rate counts at, all in all.
    """

    def __init__(self, rate: float | None, batch_rows: int, flush_s: float, turn: float = 0.0) -> None:
        self._rate = rate
        self._batch_rows = batch_rows
        self._flush_s = flush_s
        self._offset = turn * flush_s
        self._anchor = 0.0
        self._others: tuple[float, ...] = ()
        self._expansion: float | None = None
        self._rate_expansion: float | None = None

    def begin(self, anchor: float) -> None:
        """Row 0 arrives at ``anchor``."""
        self._anchor = anchor

    def ready_at(self, now: float, counted: int) -> float:
        """When the next read may start; not after ``now`` means at once."""
        if self._rate is None:
            return now
        arrives = self._anchor + counted / self._rate
        own = self._tick(self._offset, arrives)
        return min(own, *self._others) if self._others else own

    def _tick(self, offset: float, since: float) -> float:
        """The first tick, of those that are ``offset`` behind the first subtask's, at ``since`` or later."""
        return offset + math.ceil((since - offset) / self._flush_s - TICK_TOLERANCE) * self._flush_s

    def stand_in(self, now: float, turn: float, patience_s: float) -> None:
        """Read also when it is next the ``turn`` of another subtask, which cannot, and at once when it has been within
        ``patience_s``. Without a rate there are no turns.
        """
        if self._rate is not None:
            ticks = (self._tick(turn * self._flush_s, since) for since in (now - patience_s, now))
            self._others = (*self._others, *ticks)

    def rows(self, now: float, counted: int) -> int:
        """How many source rows to read now."""
        if self._others:
            self._others = tuple(tick for tick in self._others if tick > now)
        if self._expansion is None or self._rate_expansion is None:
            return FIRST_READ_ROWS if self._rate is None else 1
        rows = self._batch_rows / max(self._expansion, 1e-9)
        if self._rate is not None:
            arrived = (now - self._anchor) * self._rate - counted
            rows = min(rows, arrived / max(self._rate_expansion, 1e-9))
        return max(1, min(round(rows), self._batch_rows))

    def behind(self, now: float, counted: int) -> int | None:
        """Rows that have arrived by now and have not left the operator that the rate counts at; ``None``: no rate."""
        if self._rate is None or not self._anchor:
            return None
        return max(0, int((now - self._anchor) * self._rate) - counted)

    def after(self, read: int, widest: int, counted: int) -> None:
        """A read of ``read`` rows became ``widest`` rows where the stream is widest, ``counted`` where the rate
        counts.
        """
        if read > 0:
            self._expansion = _smooth(self._expansion, widest / read)
            self._rate_expansion = _smooth(self._rate_expansion, counted / read)


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
