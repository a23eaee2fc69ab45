"""Joins in jobs that are hurt: pairs and unmatched rows are those of plain loops, whichever slot dies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.streams.keyed import KeyedStream
from flinkplus.api.streams.stream import Stream
from tests.integration.test_event_time import HurtWindows, event_time_ms, marks

pytestmark = [pytest.mark.integration, pytest.mark.long]

SIZE_MS, KEYS = 50, 40
Draw = Callable[[KeyedStream, KeyedStream], Stream]


def is_left(i: int) -> bool:
    return i % 3 != 0


def is_right(i: int) -> bool:
    return i % 3 != 1


def windows(left: KeyedStream, right: KeyedStream) -> Stream:
    return left.tumbling_window("ts", "50 ms").join(right.tumbling_window("ts", "50 ms"), how="full", name="pairs")


def interval(left: KeyedStream, right: KeyedStream) -> Stream:
    return left.interval_join(
        right, left_time="ts", right_time="ts", lower=0, upper="left.ts + left.i % 90", how="full", name="pairs"
    )


def regular(left: KeyedStream, right: KeyedStream) -> Stream:
    return left.join(right, how="full", name="pairs")


KINDS: dict[str, tuple[Draw, Callable[[int, int], bool]]] = {
    "windows": (windows, lambda a, b: event_time_ms(a) // SIZE_MS == event_time_ms(b) // SIZE_MS),
    "interval": (interval, lambda a, b: 0 <= event_time_ms(b) - event_time_ms(a) <= a % 90),
    "regular": (regular, lambda a, b: True),
}


def key_of(kind: str, i: int) -> int:
    """Of a regular join, a key has a few rows, and some keys are on one side alone."""
    return i // 2 if kind == "regular" else i % KEYS


def joined(kind: str) -> Callable[[Stream], Stream]:
    def draw(stream: Stream) -> Stream:
        timed = stream.map(
            lambda row: (key_of(kind, row.i), event_time_ms(row.i), row.i), schema="k long, ts long, i long"
        )
        left, right = timed.where("i % 3 <> 0", name="left"), timed.where("i % 3 <> 1", name="right")
        return KINDS[kind][0](left.key_by("k"), right.key_by("k")).select("left_i", "right_i")

    return draw


class HurtPairs(HurtWindows):
    kind = ""

    def check(self) -> None:
        read, matches = self.rows_read(), KINDS[self.kind][1]
        rights = defaultdict(list)
        for i in filter(is_right, read):
            rights[key_of(self.kind, i)].append(i)
        pairs = [(i, o) for i in filter(is_left, read) for o in rights[key_of(self.kind, i)] if matches(i, o)]
        lefts_met, rights_met = {a for a, _ in pairs}, {b for _, b in pairs}
        alone = [(i, -1) for i in filter(is_left, read) if i not in lefts_met]
        alone += [(-1, i) for i in filter(is_right, read) if i not in rights_met]
        columns = pq.read_table(self.out).columns
        found = [
            tuple(-1 if i is None else i for i in row) for row in zip(*(c.to_pylist() for c in columns), strict=True)
        ]
        assert sorted(found) == sorted(pairs + alone)
        assert len(read) > 100 and len(pairs) > 50 and len(alone) > 10


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("windows", {}),
        ("interval", {}),
        ("regular", {}),
        ("interval", {"checkpoint_mode": "unaligned"}),
        ("regular", {"checkpoint_mode": "unaligned", "recovery": "rollback"}),
    ],
    ids=str,
)
def test_a_join_of_a_job_whose_slot_is_killed(spark: SparkSession, tmp_path: Path, kind: str, options: Any) -> None:
    job = HurtPairs(spark, tmp_path, before=marks, between=joined(kind), rate=1_000.0, **options)
    job.kind = kind
    with job as victim:
        victim.wait_for_strength()
        victim.wait_for_checkpoints(1)
        victim.kill_slot(1)
        if options.get("recovery") == "rollback":
            victim.wait(lambda: victim.metrics["slot_restarts"] >= 1, "a rollback")
        else:
            victim.wait_for_failovers(1)
            victim.wait_for_strength()
        victim.wait_for_checkpoints(1)
        victim.finish()
