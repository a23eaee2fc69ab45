"""How much a source reads at a time, and when: batches of a useful size, and a steady rate where one is asked for.

Rules: no clock of its own; the caller passes ``now`` in seconds. The rate counts the rows that leave one chosen
operator (a
source, or the operator under ``throttle``), so that "words per second" means words although the source reads lines. A
stall is not made up for by more than ``CATCH_UP_S`` of extra rate.
"""

from __future__ import annotations

CATCH_UP_S = 1.0
FIRST_READ_ROWS = 1024
SMOOTHING = 0.3


class Pacer:
    """Pacing of one source subtask.

    ``rate``: rows per second for this subtask, ``None`` for as fast as possible. ``batch_rows``: rows aimed at per
    read, counted where the stream is widest. ``flush_s``: seconds between two reads at a steady rate.
    """

    def __init__(self, rate: float | None, batch_rows: int, flush_s: float) -> None:
        self._rate = rate
        self._batch_rows = batch_rows
        self._flush_s = flush_s
        self._due: float | None = None
        self._expansion: float | None = None
        self._rate_expansion: float | None = None

    def ready_at(self, now: float) -> float:
        """When the next read may start; not after ``now`` means at once."""
        return now if self._rate is None or self._due is None else self._due

    def rows(self) -> int:
        """How many source rows to read now."""
        if self._expansion is None or self._rate_expansion is None:
            return 1 if self._rate is not None else FIRST_READ_ROWS
        rows = self._batch_rows / max(self._expansion, 1e-9)
        if self._rate is not None:
            rows = min(rows, self._rate * self._flush_s / max(self._rate_expansion, 1e-9))
        return max(1, min(round(rows), self._batch_rows))

    def after(self, now: float, read: int, widest: int, counted: int) -> None:
        """A read of ``read`` rows became ``widest`` rows where the stream is widest, ``counted`` rows where the
        rate counts.
        """
        if read > 0:
            self._expansion = _smooth(self._expansion, widest / read)
            self._rate_expansion = _smooth(self._rate_expansion, counted / read)
        if self._rate is not None:
            start = now if self._due is None else max(self._due, now - CATCH_UP_S)
            self._due = start + (counted / self._rate if counted else self._flush_s * (read == 0))


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
