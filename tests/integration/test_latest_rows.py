"""``emit="latest"`` in jobs that lose a slot: the last row of each key is its result, and each checkpoint has one."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.streams.stream import Stream
from flinkplus.errors import ConfigurationError
from flinkplus.sinks.file_names import PartName
from tests.integration.failover_jobs import Victim
from tests.integration.test_event_time import HurtWindows
from tests.integration.test_failover import assert_local

pytestmark = [pytest.mark.integration, pytest.mark.long]
BUCKETS = 40


def latest(stream: Stream) -> Stream:
    """The latest aggregates of each bucket, and how often they leave, by a second such operator."""
    rows = stream.map(lambda row: (row.i % BUCKETS, row.i), schema="bucket long, i long")
    totals = rows.key_by("bucket").aggregate(
        n="count", total=("sum", "i"), top=("max", "i"), emit="latest", name="totals"
    )
    return totals.key_by("bucket").count(output="times", emit="latest", name="times")


class HurtLatest(HurtWindows):
    """Files have the number of their checkpoint in their names."""

    def check(self) -> None:
        expected: dict[int, list[int]] = defaultdict(list)
        for i in self.rows_read():
            expected[i % BUCKETS].append(i)
        last: dict[int, tuple[int, int, int]] = {}
        seen: set[tuple[int, int]] = set()
        for path in sorted(self.out.glob("*.parquet"), key=lambda path: PartName.parse(path.name).checkpoint):  # type: ignore[union-attr]
            part = PartName.parse(path.name)
            assert part is not None
            for row in pq.read_table(path).to_pylist():
                assert (part.checkpoint, row["bucket"]) not in seen, "a bucket has two rows of one checkpoint"
                seen.add((part.checkpoint, row["bucket"]))
                before = last.get(row["bucket"], (0, 0, -1))
                assert row["n"] > before[0]
                last[row["bucket"]] = row["n"], row["total"], row["top"]
        assert last == {bucket: (len(rows), sum(rows), max(rows)) for bucket, rows in expected.items()}
        assert len(seen) > 2 * BUCKETS, "several checkpoints have rows"
        assert len(seen) < sum(map(len, expected.values())) / 4, "most rows are held back"


@pytest.mark.parametrize("options", [{}, {"recovery": "rollback"}, {"recovery": "partial"}], ids=str)
def test_the_last_rows_are_exact_when_slots_are_killed(spark: SparkSession, tmp_path: Path, options: Any) -> None:
    with HurtLatest(spark, tmp_path, between=latest, rate=1_000.0, **options) as victim:
        for count, slot in ((1, 1), (2, 0)):
            victim.wait_for_strength()
            victim.wait_for_checkpoints(1)
            victim.kill_slot(slot)
            victim.wait(lambda: len(victim.job.recoveries()) >= count, f"{count} recoveries")  # noqa: B023
        victim.wait_for_strength()
        victim.finish()
    if not options:
        assert_local(victim, 2)


def test_barriers_that_overtake_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"emit='latest' \('totals', 'times'\) cannot be used with checkpoint_mode"
    ):
        Victim(spark, tmp_path, between=latest, checkpoint_mode="unaligned").__enter__()
