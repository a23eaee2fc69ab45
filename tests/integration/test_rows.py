"""Expressions, dead letters and side outputs in jobs that lose a slot, and beside Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.api.streams.stream import Stream
from tests.integration.failover_jobs import SCHEMA, Victim
from tests.integration.test_failover import assert_local

pytestmark = pytest.mark.integration

POISON = 7
"""Every row whose number is a multiple of it fails somewhere."""


def kept(key: str, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
    """Counts the rows of a key, before it fails on some of them; every tenth goes aside as well."""
    state = ctx.state("rows")
    state.put(state.get(0) + 1)
    if row.i % 10 == 0:
        ctx.side_output("tens", (row.i, state.get()))
    yield row.word, row.i, row["count"], state.get()
    if row.i % POISON == 0:
        raise ValueError(f"row {row.i}")


def hurt(spark: SparkSession, path: Path, **options: Any) -> dict[str, Any]:
    """Rows pass expressions, one of which fails for some of them; and a function with state that fails for others."""

    def before(numbers: Stream) -> Stream:
        parsed = numbers.with_columns(
            {"i": f"i + 0 * (1 div (i % {POISON} - 3))"}, on_error="dead-letter", name="parsed"
        )
        parsed.dead_letters().select("i", "word", "error").to_parquet(str(path / "dead"), name="dead")
        return parsed.where("word is not null")

    def between(counted: Stream) -> Stream:
        rows = counted.key_by("word").process(
            kept,
            schema=f"{SCHEMA}, count long, seen long",
            on_error="dead-letter",
            side_outputs={"tens": "i long, seen long"},
            name="kept",
        )
        rows.dead_letters().to_parquet(str(path / "dead-too"), name="dead-too")
        rows.side_output("tens").to_parquet(str(path / "tens"), name="tens")
        return rows

    with Rows(spark, path, before=before, between=between, rate=600.0, **options) as victim:
        victim.wait_for_strength()
        victim.kill_slot(0)
        victim.wait_for_failovers(1)
        victim.wait_for_strength()
        metrics = victim.finish()
    if not options:
        assert_local(victim, 1)
    return metrics


class Rows(Victim):
    """As ``Victim``; of the rows that were read, each is once in one of the outputs where it belongs."""

    def check(self) -> None:
        path, parallelism = self.out.parent, self.job._running.coordinator.options.parallelism
        out, dead, late = (pq.read_table(path / name).to_pydict() for name in ("out", "dead", "dead-too"))
        assert set(dead["error"]) == {"i: divide by zero"}
        assert all(
            error.startswith(f"ValueError: row {i} (test_rows.py:")
            for i, error in zip(late["i"], late["error"], strict=True)
        )
        numbers = sorted([*out["i"], *dead["i"], *late["i"]])
        for index in range(parallelism):
            mine = [i for i in numbers if i % parallelism == index]
            assert mine == list(range(index, index + parallelism * len(mine), parallelism))
        assert all(i % POISON == 3 for i in dead["i"]) and all(i % POISON == 0 for i in late["i"])
        assert not any(i % POISON in (0, 3) for i in out["i"])
        seen: dict[str, list[int]] = {}
        for word, count in zip(out["word"], out["seen"], strict=True):
            seen.setdefault(word, []).append(count)
        assert all(sorted(counts) == list(range(1, len(counts) + 1)) for counts in seen.values())
        tens = pq.read_table(path / "tens").to_pydict()
        seen_at = dict(zip(out["i"], out["seen"], strict=True))
        assert sorted(tens["i"]) == sorted(i for i in out["i"] if i % 10 == 0)
        assert all(seen_at[i] == count for i, count in zip(tens["i"], tens["seen"], strict=True))


def test_dead_letters_and_side_outputs_are_exact_when_a_slot_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    operators = hurt(spark, tmp_path)["operators"]
    assert operators["parsed"]["dead_letters"] == operators["parsed dead letters"]["rows_out"] > 0
    assert operators["kept"]["dead_letters"] == operators["kept dead letters"]["rows_out"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"recovery": "rollback"},
        {"recovery": "partial"},
        {"checkpoint_mode": "unaligned"},
    ],
    ids=str,
)
def test_dead_letters_are_exact_with_every_recovery(spark: SparkSession, tmp_path: Path, options: Any) -> None:
    hurt(spark, tmp_path, **options)
