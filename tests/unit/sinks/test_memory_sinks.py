"""Text lines, collected rows, discarded rows."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import ConfigurationError
from flinkplus.sinks.collect import CollectCommitter, CollectSink
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sinks.text import TextSink, lines
from tests.unit.sinks.harness import SCHEMA, Job, rows

TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))


@given(
    st.lists(st.tuples(TEXTS, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))), min_size=1), st.integers(0, 3)
)
def test_lines_are_the_columns_joined(pairs: list[tuple[str | None, int | None]], skipped: int) -> None:
    def text(value: object) -> str:
        return "" if value is None else str(value)

    batch = pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, pair, strict=True)) for pair in pairs], schema=SCHEMA)
    batch, pairs = (batch.slice(skipped), pairs[skipped:]) if len(pairs) > skipped else (batch, pairs)
    expected = "".join(f"{text(word)}, {text(count)}\n" for word, count in pairs)
    assert lines(batch, ", ").to_pybytes().decode() == expected
    assert lines(batch.select(["word"]), ", ").to_pybytes().decode() == "".join(text(w) + "\n" for w, _ in pairs)


def test_every_allowed_type_has_a_text_form() -> None:
    values = {
        "flag": True,
        "amount": Decimal("1.50"),
        "ratio": 0.5,
        "day": datetime.date(2026, 1, 2),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5),
    }
    batch = pa.RecordBatch.from_pylist([values])
    TextSink("out", "out").bind(batch.schema, "job-1")
    assert lines(batch, "|").to_pybytes() == b"true|1.50|0.5|2026-01-02|2026-01-02 03:04:05.000000\n"


@pytest.mark.parametrize("dtype", [pa.binary(), pa.list_(pa.string()), pa.struct([("a", pa.int64())])])
def test_what_has_no_text_form_is_refused(dtype: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"column 'a' .* has no text form"):
        TextSink("out", "out").bind(pa.schema([("a", dtype)]), "job-1")


def collected(job: Job) -> list[tuple[str, int]]:
    assert isinstance(job.committer, CollectCommitter)
    table = job.committer.table()
    assert table.schema == SCHEMA
    return sorted((row["word"], row["count"]) for row in table.to_pylist())


def expected(*checkpoints: int) -> list[tuple[str, int]]:
    return sorted((f"r{checkpoint:04d}", index) for checkpoint in checkpoints for index in range(2))


def test_collected_rows_are_those_committed() -> None:
    job = Job(CollectSink("out"))
    assert collected(job) == []
    job.stage(1)
    described = job.stage(2)
    assert collected(job) == []
    job.committer.commit(2, described)
    job.committer.commit(2, described)
    job.committer.commit(3, job.stage(3))
    assert collected(job) == expected(1, 2, 3)
    job.committer.retract_after(2)
    assert collected(job) == expected(1, 2)
    job.deploy()
    job.checkpoint(4)
    assert collected(job) == expected(1, 2, 4)
    job.committer.retract_after(None)
    assert collected(job) == []


def test_collected_rows_come_in_the_order_of_their_subtask() -> None:
    job = Job(CollectSink("out"))
    for checkpoint in range(1, 13):
        job.writers[0].write(rows(("a", checkpoint), ("b", checkpoint)))
        job.committer.commit(checkpoint, job.stage(checkpoint, with_rows=False))
    assert isinstance(job.committer, CollectCommitter)
    assert job.committer.table().column("count").to_pylist() == [c for c in range(1, 13) for _ in range(2)]


def test_too_many_rows_to_collect_are_refused() -> None:
    job = Job(CollectSink("out", max_rows=3))
    job.checkpoint(1)
    with pytest.raises(ConfigurationError, match="more than 3 rows"):
        job.checkpoint(2)
    with pytest.raises(ConfigurationError, match="more than 3 rows"):
        job.writers[0].write(rows(*[("a", 1)] * 4))


def test_discarded_rows_are_counted_once(tmp_path: Path) -> None:
    job = Job(DiscardSink("out"))
    job.stage(1)
    described = job.stage(2)
    assert [(f.name, f.rows) for f in described] == [
        (f"c{checkpoint:08d}-s{index}-g2", 1) for index in range(2) for checkpoint in (1, 2)
    ]
    job.committer.commit(2, described)
    job.complete(2)
    assert job.stage(3, with_rows=False) == []
    job.committer.retract_after(1)
    job.committer.finish()
    job.committer.discard()
