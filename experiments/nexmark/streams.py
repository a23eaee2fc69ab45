"""The streams that the queries read: one source of numbers, and of each kind of event those that a query asks for.

Rules: the source deals all numbers, and each stream makes the events of its kind, so a query makes only the kinds that
it reads. The rate and the number of events count all kinds. Flink's side does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from experiments.nexmark.events import AUCTION, BID, EVENTS_PER_S, PERSON, SCHEMAS, events
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.streams.stream import Stream

NUMBERS = "events"
DELAY = "4 seconds"
"""Of watermarks, as in Nexmark's own table definitions."""


class _Numbers:
    """Numbers ``start`` to ``start + count``."""

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": np.arange(start, start + count, dtype=np.int64)})


@dataclass(frozen=True)
class _Made:
    """The events of ``kind`` among those with the numbers of a batch."""

    kind: str
    events_per_s: int

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        made = events(self.kind, batch["number"].to_numpy(), self.events_per_s)
        if made.num_rows:
            yield made


class Events:
    """The input of one query.

    ``count``: number of events of all kinds, ``None``: no end. ``rate``: events per second, ``None``: unlimited.
    """

    def __init__(
        self,
        env: StreamEnvironment,
        count: int | None = None,
        rate: float | None = None,
        events_per_s: int = EVENTS_PER_S,
    ) -> None:
        self._numbers = env.generate(
            _Numbers(), schema="number long", count=count, rate=rate, batches=True, name=NUMBERS
        )
        self._events_per_s = events_per_s

    def _of(self, kind: str) -> Stream:
        made = _Made(kind, self._events_per_s)
        stream = self._numbers.map_batches(made, schema=SCHEMAS[kind], name=f"{kind}s")
        return stream.with_watermark("dateTime", DELAY, name=f"time of {kind}s")

    def persons(self) -> Stream:
        """Persons, with event time."""
        return self._of(PERSON)

    def auctions(self) -> Stream:
        """Auctions, with event time."""
        return self._of(AUCTION)

    def bids(self) -> Stream:
        """Bids, with event time."""
        return self._of(BID)
