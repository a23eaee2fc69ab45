"""Operators whose output depends on the order of all rows, or on the clock, in a job that loses a slot."""

from __future__ import annotations

from decimal import Decimal
from itertools import accumulate
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.streams.stream import Stream
from tests.integration.failover_jobs import Victim
from tests.integration.test_failover import assert_local

pytestmark = pytest.mark.integration

K = 5
PRICED = "word string, i long, count long, price decimal(12, 2)"


def price(i: int) -> Decimal:
    return Decimal(i) / 4


@pytest.mark.long
def test_union_deduplicate_total_and_top(spark: SparkSession, tmp_path: Path) -> None:
    """Counted rows, each twice, and once again by their number; the sum of these so far; the most frequent words.

    Slot 0 has all of the totals and of the ranking.
    """

    def between(counted: Stream) -> Stream:
        counted.gather().top(K, by="count", item="word", name="top").to_parquet(str(tmp_path / "top"), name="ranks")
        once = counted.union(counted).deduplicate("i", ttl="10 minutes")
        return once.map(lambda row: (*row, price(row.i)), schema=PRICED).total("price")

    with Victim(spark, tmp_path, between=between) as victim:
        victim.wait_for_strength()
        victim.kill_slot(0)
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        metrics = victim.finish()
    assert_local(victim, 1)
    assert_totals(victim)
    assert_ranking(victim, tmp_path / "top")
    operators = metrics["operators"]
    assert operators["deduplicate"]["rows_in"] == 2 * operators["deduplicate"]["rows_out"]


def assert_totals(victim: Victim) -> None:
    """In the order of the totals, each is the one before it and the row's own number."""
    table = pq.read_table(victim.out)
    rows = sorted(zip(table["total"].to_pylist(), table["i"].to_pylist(), strict=True), key=lambda r: (r[0], -r[1]))
    assert [total for total, _ in rows] == list(accumulate(price(i) for _, i in rows))


def assert_ranking(victim: Victim, path: Path) -> None:
    """No change of the ranking is there twice, and the last ones are the largest counts there are."""
    table = pq.read_table(path)
    changes = list(zip(*(table[name].to_pylist() for name in ("rank", "word", "count")), strict=True))
    assert len(set(changes)) == len(changes)
    final: dict[str, int] = {}
    out = pq.read_table(victim.out)
    for word, count in zip(out["word"].to_pylist(), out["count"].to_pylist(), strict=True):
        final[word] = max(count, final.get(word, 0))
    best = sorted(final.values(), reverse=True)[:K]
    for rank, count in enumerate(best, 1):
        last = max(value for at, _, value in changes if at == rank)
        assert last == count
        assert any(final[word] == count for at, word, value in changes if (at, value) == (rank, last))
