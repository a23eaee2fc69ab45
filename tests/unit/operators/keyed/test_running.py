"""Running aggregates against plain Python, cut and restored anywhere."""

from __future__ import annotations

import datetime
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base import parts
from flinkplus.operators.base.columns import plain
from flinkplus.operators.expressions.sql import parsed
from flinkplus.operators.keyed import distinct
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.running import RunningAggregates
from flinkplus.state.hashing import hash_keys
from tests.unit.operators.operator_fakes import FakeState, context

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float32()),
        ("d", pa.decimal128(6, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("w", pa.bool_()),
    ]
)
KINDS = ("count", "sum", "min", "max", "mean", "count_distinct", "first", "last")
AGGREGATES = (
    Aggregate("rows", "count"),
    *(Aggregate(f"{kind}_{column}", kind, column) for kind in KINDS for column in "nxd"),
    *(Aggregate(f"{kind}_at", kind, "at") for kind in ("min", "max", "last", "count_distinct")),
    Aggregate("marked", "sum", "n", where=parsed("w")),
    Aggregate("marked_values", "count_distinct", "n", where=lambda batch: batch["w"]),
)
RUNNING = RunningAggregates("running", ("k",), AGGREGATES)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def drawn(rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    for _ in range(rng.randrange(60)):
        row: dict[str, Any] = {
            "k": rng.choice(["a", "b", None]),
            "n": rng.randrange(-4, 5),
            "x": rng.randrange(-8, 8) / 4,
            "d": Decimal(rng.randrange(-500, 500)) / 100,
            "at": EPOCH + datetime.timedelta(milliseconds=rng.randrange(-5, 5)),
            "w": rng.random() < 0.5,
        }
        rows.append({name: None if name != "k" and rng.random() < 0.2 else value for name, value in row.items()})
    return rows


def reckoned(kind: str, values: list[Any]) -> Any:
    if kind in ("count", "count_distinct"):
        return len(values) if kind == "count" else len(set(values))
    if not values:
        return None
    if kind in ("first", "last"):
        return values[0 if kind == "first" else -1]
    if kind == "mean":
        mean = sum(values) / len(values)
        return mean.quantize(Decimal("0.000001"), "ROUND_HALF_UP") if isinstance(mean, Decimal) else mean
    reduced: dict[str, Callable[[list[Any]], Any]] = {"sum": sum, "min": min, "max": max}
    return reduced[kind](values)


def model(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    so_far: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    found = []
    for row in rows:
        so_far[row["k"]].append(row)
        result = {"k": row["k"]}
        for a in AGGREGATES:
            members = [each for each in so_far[row["k"]] if a.where is None or each["w"]]
            values = [1 if a.column is None else each[a.column] for each in members]
            result[a.output] = reckoned(a.kind, [value for value in values if value is not None])
        found.append(result)
    return found


def check(seed: int) -> None:
    rng = random.Random(seed)
    rows, state, out, at = drawn(rng), FakeState(), [], 0
    instance = RUNNING.create(context(RUNNING, SCHEMA, state))
    while at < len(rows):
        part = rows[at : at + rng.choice([1, 3, 20])]
        at += len(part)
        for batch in instance.process(pa.RecordBatch.from_pylist(part, SCHEMA)):
            out += plain(batch, RUNNING.output_schema(SCHEMA)).to_pylist()
        if rng.random() < 0.3:
            saved = json.loads(json.dumps(instance.snapshot(1)))
            instance = RUNNING.create(context(RUNNING, SCHEMA, state))
            instance.restore(saved)
    assert out == model(rows)


@pytest.mark.parametrize("few_hashes", [False, True])
def test_running_aggregates_as_by_a_model(few_hashes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``few_hashes``: different values have equal hashes."""
    real = hash_keys

    def few(keys: pa.Array) -> npt.NDArray[np.uint64]:
        return real(keys) % np.uint64(3)

    if few_hashes:
        monkeypatch.setattr(distinct, "hash_keys", few)
    with mock.patch.object(parts, "MAX_WAITING_ROWS", 3), mock.patch.object(distinct, "KEPT_ROWS", 4):
        for seed in range(12):
            check(seed)


def test_a_value_is_written_once() -> None:
    """Not the whole set: with as many values again, what is written grows with the new ones."""
    state = FakeState()
    running = RunningAggregates("running", ("k",), (Aggregate("c", "count_distinct", "n"),))
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    instance = running.create(context(running, schema, state))
    pages = state.objects["running#aggregate 0"]
    written = 0

    def put(keys: list[bytes], values: list[Any]) -> None:
        nonlocal written
        written += sum(map(len, values))
        type(pages).put_many(pages, keys, values)

    pages.put_many = put  # type: ignore[method-assign]
    for number in range(64):
        numbers = list(range(number * 100, number * 100 + 100))
        batch = pa.RecordBatch.from_pydict({"k": ["a"] * 100, "n": numbers}, schema=schema)
        (out,) = instance.process(batch)
        assert out.column("c")[-1].as_py() == 100 * (number + 1)
        instance.snapshot(number)
    one_pair = 40
    assert written < 64 * 100 * one_pair * 8, "each pair is merged a logarithm of times"


def test_not_a_number_and_sums_beyond_64_bits() -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
    running = RunningAggregates(
        "running",
        ("k",),
        (
            Aggregate("m", "max", "x"),
            Aggregate("l", "min", "x"),
            Aggregate("d", "count_distinct", "x"),
            Aggregate("s", "sum", "n"),
        ),
    )
    instance = running.create(context(running, schema, FakeState()))
    x = [1.0, math.nan, 2.0, math.nan, -0.0, 0.0]
    (out,) = instance.process(pa.RecordBatch.from_pydict({"k": ["a"] * 6, "n": [1] * 6, "x": x}, schema=schema))
    assert out.column("d").to_pylist() == [1, 2, 3, 3, 4, 4]
    assert out.column("m")[0].as_py() == 1.0 and all(map(math.isnan, out.column("m").to_pylist()[1:]))
    assert out.column("l").to_pylist() == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    big = pa.RecordBatch.from_pydict({"k": ["a"], "n": [2**63 - 1], "x": [None]}, schema=schema)
    with pytest.raises(UserFunctionError, match=r"running\[1\].*beyond 64 bits"):
        list(instance.process(big))


def test_a_mean_keeps_the_fractions_that_an_earlier_program_had() -> None:
    """The state of a mean is the same for floating-point and whole numbers, so the type of the column may change."""
    running, state, means = RunningAggregates("running", ("k",), (Aggregate("m", "mean", "n"),)), FakeState(), []
    for value, dtype in ((0.5, pa.float64()), (1, pa.int64())):
        schema = pa.schema([("k", pa.string()), ("n", dtype)])
        instance = running.create(context(running, schema, state))
        (out,) = instance.process(pa.record_batch([["a"], [value]], schema=schema))
        means += out.column("m").to_pylist()
    assert means == [0.5, 0.75]


def test_the_type_of_distinct_values_is_described() -> None:
    """What is kept of them depends on it."""
    running = RunningAggregates("running", ("k",), (Aggregate("c", "count_distinct", "n"),))
    whole, text = (pa.schema([("k", pa.string()), ("n", dtype)]) for dtype in (pa.int64(), pa.string()))
    assert running.described_state(whole) != running.described_state(text)


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ((), "name at least one aggregate"),
        ((Aggregate("l", "collect_list", "n"),), "collect_list is for windows"),
        ((Aggregate("k", "count"),), "the column 'k' twice"),
        ((Aggregate("c", "count", where=parsed("n")),), "operator 'running': where: .*condition"),
        ((Aggregate("c", "count", where=parsed("no > 1")),), "operator 'running': where: no column 'no'"),
        ((Aggregate("c", "count", where=3),), "where is SQL text, a column of flinkplus.functions or a function"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_aggregated(aggregates: tuple[Aggregate, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RunningAggregates("running", ("k",), aggregates).output_schema(SCHEMA)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (lambda batch: batch["n"], "returned int32, not a boolean array"),
        (lambda batch: [True], "returned list, not a boolean array"),
        (lambda batch: pa.array([True] * 7), "not a boolean array with a value for each of the rows"),
        (lambda batch: batch["none"], "KeyError"),
        (parsed("1 / n > 0"), r"\(\(1 / n\) > 0\): division by zero.*n=0"),
    ],
)
def test_filters_that_fail(where: Any, message: str) -> None:
    running = RunningAggregates("running", ("k",), (Aggregate("c", "count", where=where),))
    instance = running.create(context(running, SCHEMA, FakeState()))
    with pytest.raises(UserFunctionError, match=message):
        list(instance.process(pa.RecordBatch.from_pylist([{"k": "a", "n": 1}, {"k": "b", "n": 0}], SCHEMA)))
