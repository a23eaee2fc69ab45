"""Only the latest row of each key, from barrier to barrier."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, InvariantViolation
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import KeyedOperator
from flinkplus.operators.keyed import latest
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.running import RunningAggregates
from tests.unit.operators.operator_fakes import FakeState, create, run

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
AGGREGATES = (Aggregate("rows", "count"), Aggregate("top", "max", "n"), Aggregate("kinds", "count_distinct", "n"))


def operators(emit: latest.Emit) -> dict[str, KeyedOperator]:
    return {
        "count": Count("op", ("k",), emit=emit),
        "sum": Sum("op", ("k",), "n", emit=emit),
        "aggregates": RunningAggregates("op", ("k",), AGGREGATES, emit=emit),
        "one key": RunningAggregates("op", (), AGGREGATES, emit=emit),
    }


def drawn(rng: random.Random, rows: int) -> pa.RecordBatch:
    keys = [rng.choice(["a", "b", "c", None]) for _ in range(rows)]
    return pa.record_batch([pa.array(keys, pa.string()), pa.array(range(rows))], schema=SCHEMA)


@pytest.mark.parametrize("kind", operators("every"))
@pytest.mark.parametrize("rows", [3, 300])
def test_at_each_barrier_the_last_row_of_each_key(kind: str, rows: int) -> None:
    rng = random.Random(rows)
    every, last = operators("every")[kind], operators("latest")[kind]
    output = every.output_schema(SCHEMA)
    state, of_every = FakeState(), create(every, SCHEMA, FakeState())
    instance = create(last, SCHEMA, state)
    for checkpoint in range(1, 6):
        wanted: dict[Any, dict[str, Any]] = {}
        for _ in range(rng.randrange(3)):
            batch = drawn(rng, rng.randrange(rows))
            for out in of_every.process(batch):
                wanted |= {row["k"] if last.keys else None: row for row in plain(out, output).to_pylist()}
            assert list(instance.process(batch)) == []
        found = [row for out in instance.before_barrier() for row in plain(out, output).to_pylist()]
        assert sorted(found, key=str) == sorted(wanted.values(), key=str)
        assert list(instance.before_barrier()) == []
        saved = instance.snapshot(checkpoint)
        instance = create(last, SCHEMA, state)
        instance.restore(saved)


def test_the_end_of_input_lets_rows_go() -> None:
    batches = [drawn(random.Random(1), 50), drawn(random.Random(2), 50)]
    found = run(operators("latest")["count"], batches, SCHEMA, FakeState())
    assert sorted(str(row["k"]) for row in found) == ["None", "a", "b", "c"]
    assert sum(row["count"] for row in found) == 100


def test_too_many_rows_leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "MAX_HELD_ROWS", 10)
    counts = Count("op", ("n",), emit="latest")
    instance = create(counts, SCHEMA, FakeState())
    few = pa.record_batch([pa.array(["a"] * 4), pa.array(range(4))], schema=SCHEMA)
    for _ in range(20):  # of few keys no more than a row each is held
        assert list(instance.process(few)) == []
    many = pa.record_batch([pa.array(["a"] * 9), pa.array(range(9))], schema=SCHEMA)
    (out,) = instance.process(many)
    assert out.num_rows == 9 and list(instance.before_barrier()) == []


def test_many_small_batches_are_merged_now_and_then() -> None:
    instance = create(Count("op", ("n",), emit="latest"), SCHEMA, FakeState())
    assert isinstance(instance, latest.LatestRows)
    for at in range(500):
        assert list(instance.process(pa.record_batch([pa.array(["a"]), pa.array([at % 100])], schema=SCHEMA))) == []
        assert len(instance._held) <= 3 * latest.MERGED_PARTS
        assert instance._rows == sum(part.num_rows for part in instance._held)
        assert instance._bytes == sum(part.nbytes for part in instance._held)
    (out,) = instance.before_barrier()
    assert out.column("n").to_pylist() == list(range(100)) and set(out.column("count").to_pylist()) == {5}
    assert instance._rows == instance._bytes == 0


def test_no_snapshot_holds_rows() -> None:
    instance = create(operators("latest")["sum"], SCHEMA, FakeState())
    list(instance.process(drawn(random.Random(3), 5)))
    with pytest.raises(InvariantViolation, match="rows are held back at a snapshot"):
        instance.snapshot(1)


def test_what_it_says_of_itself() -> None:
    for every, last in zip(operators("every").values(), operators("latest").values(), strict=True):
        assert not (every.holds_to_barrier or every.holds_rows or every.stops_watermarks)
        assert last.holds_to_barrier and last.holds_rows and last.stops_watermarks
        assert every.described_state(SCHEMA) == last.described_state(SCHEMA)
    with pytest.raises(ConfigurationError, match="emit is 'every' or 'latest', not 'last'"):
        Count("op", ("k",), emit="last").output_schema(SCHEMA)  # type: ignore[arg-type]
