"""Every keyed operator renamed, carried on, and with other rows, at any parallelism; and deliberate faults."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import CorruptState, FlinkPlusError
from flinkplus.operators.base.operator import KeyedOperator
from flinkplus.operators.joins.bounds import Bounds
from flinkplus.operators.joins.sides import JoinSide
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.keyed.aggregates import Aggregate
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.operators.keyed.keyed_rows import Process, Reduce
from flinkplus.operators.keyed.top import Top
from flinkplus.protocol.program.comparison import Requests
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.runtime.job.rescaling import rewriting, vertex_state
from flinkplus.runtime.job.rescaling.keyed import OldStates
from flinkplus.runtime.job.rescaling.rewriting import FormerState, TakenState
from flinkplus.runtime.job.upgrading.programs import NO_CHANGE
from tests.unit.operators.event_time.drawn import tumbling
from tests.unit.runtime.job.rescaling.test_rescaling import OPERATORS, ROUNDS, batch, process
from tests.unit.runtime.job.rescaling.vertices import SCHEMA, Vertex

Output = Counter[tuple[tuple[str, str], ...]]
NARROW = SCHEMA.set(2, pa.field("n", pa.int32())).set(4, pa.field("d", pa.decimal128(8, 2)))
WIDE = pa.schema([SCHEMA.field("ts"), *(SCHEMA.field(at) for at in (0, 1, 2, 4)), pa.field("more", pa.string())])


@dataclass(frozen=True)
class Stop:
    """Where a run stops, to go on with ``operator`` for rows of ``schema``."""

    operator: KeyedOperator
    schema: pa.Schema
    parallelism: int
    requests: Requests = NO_CHANGE


def run(folder: Path, begin: Stop, stops: Sequence[Stop], seed: int) -> Output:
    """All output, without columns that only a later program has."""
    folder.mkdir()
    rng = random.Random(seed)
    vertex = Vertex(begin.operator, begin.schema, folder, begin.parallelism)
    schema = begin.schema
    try:
        for number in range(ROUNDS):
            if number and stops and number % (ROUNDS // (len(stops) + 1)) == 0:
                at = number // (ROUNDS // (len(stops) + 1)) - 1
                if at < len(stops):
                    stop = stops[at]
                    vertex.upgrade(stop.operator, stop.schema, stop.parallelism, stop.requests)
                    schema = stop.schema
            for position in range(len(vertex.graph.exchanges)):
                vertex.feed(as_rows(batch(rng, number), schema), position)
            vertex.now_ms += 40
            vertex.tick()
            if number % 3 != 1:
                vertex.advance(number * 40)
        vertex.advance(1 << 40)
        vertex.now_ms += 1 << 40
        vertex.tick()
        return Counter(
            tuple(sorted((name, repr(value)) for name, value in one.items() if not name.endswith("more")))
            for one in vertex.rows
        )
    finally:
        vertex.close()


def as_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with other types, and nulls in columns that they do not have."""
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def renamed(kind: str) -> tuple[Stop, list[Stop]]:
    """Renamed, and back at another parallelism, then carried on as it is."""
    operator = OPERATORS[kind]
    other = replace(operator, name="other")
    there, back = Requests({"other": "op"}), Requests({"op": "other"})
    stops = [Stop(other, SCHEMA, 2, there), Stop(operator, SCHEMA, 3, back), Stop(operator, SCHEMA, 3)]
    return Stop(operator, SCHEMA, 2), stops


@pytest.mark.parametrize("kind", OPERATORS)
def test_a_renamed_operator_has_the_output_of_an_undisturbed_run(kind: str, tmp_path: Path) -> None:
    begin, stops = renamed(kind)
    expected = run(tmp_path / "one", replace(begin, parallelism=1), [], len(kind))
    assert expected.total() >= 5
    assert run(tmp_path / "many", begin, stops, len(kind)) == expected


def window(*aggregates: Aggregate) -> Callable[[pa.Schema], KeyedOperator]:
    return lambda schema: tumbling("op", ("t",), "ts", 100, aggregates)


def joined(schema: pa.Schema) -> KeyedOperator:
    left, right = (JoinSide(schema, ("t",), "ts", prefix) for prefix in ("left_", "right_"))
    return KeyedJoin("op", ("t",), left, right, Bounds(-20, 30))


def reduced(schema: pa.Schema) -> KeyedOperator:
    def combine(so_far: Any, row: Any) -> Any:
        number = ((so_far.n or 0) * 3 + (row.n or 0)) % 1_000
        return tuple(number if name == "n" else getattr(so_far, name) for name in schema.names)

    return Reduce("op", ("k",), combine)


OTHER_ROWS: dict[str, Callable[[pa.Schema], KeyedOperator]] = {
    "reduce": reduced,
    "join": joined,
    "window": window(Aggregate("c", "count"), Aggregate("a", "min", "n"), Aggregate("b", "max", "d")),
    "window of sums": window(Aggregate("s", "sum", "n"), Aggregate("m", "mean", "d")),
    "sum": lambda schema: Sum("op", ("k",), "n"),
    "sum of decimals": lambda schema: Sum("op", ("t",), "d"),
    "top": lambda schema: Top("op", ("t",), 3, "n", "k"),
}


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("kind", OTHER_ROWS)
def test_old_rows_are_read_as_new_ones(kind: str, parallelism: int, tmp_path: Path) -> None:
    make = OTHER_ROWS[kind]
    begin = Stop(make(NARROW), NARROW, 2)
    expected = run(tmp_path / "one", replace(begin, parallelism=1), [], 7)
    found = run(tmp_path / "many", begin, [Stop(make(WIDE), WIDE, parallelism)], 7)
    assert expected.total() >= 5 and found == expected


FAULTS: dict[str, tuple[str, Any, str, Any]] = {
    "pages are not read as new rows": ("join", vertex_state, "recodes_of", lambda *_: {}),
    "rows are not written as new rows": ("reduce", vertex_state, "recodes_of", lambda *_: {}),
    "columns are in the old order": ("reduce", rewriting, "_tuples", lambda before, after: bytes),
    "state is left behind": ("reduce", rewriting, "belongs_to", lambda state, operator: False),
    "pages are looked for under the new name": ("window", FormerState, "_before", lambda self, name: f"{name}!"),
    "state is taken under its old name": ("reduce", TakenState, "renamed", lambda self, state: f"{state}!"),
    "the state of another subtask is carried on": (
        "count",
        OldStates,
        "carried",
        lambda self, own, index, carried=OldStates.carried: carried(self, own, 1 - index),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deliberate_fault_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, where, name, wrong = FAULTS[fault]
    count: Callable[[pa.Schema], KeyedOperator] = lambda schema: Count("op", ("k",))  # noqa: E731
    make = count if kind == "count" else OTHER_ROWS[kind]
    begin = Stop(make(NARROW), NARROW, 2)
    expected = run(tmp_path / "one", replace(begin, parallelism=1), [], 5)
    schema = NARROW if kind == "count" else WIDE
    monkeypatch.setattr(where, name, wrong)
    found: Output | None = None
    with contextlib.suppress(FlinkPlusError, pa.ArrowInvalid, OSError, TypeError, AttributeError, IndexError):
        found = run(tmp_path / "many", begin, [Stop(make(schema), schema, 2)], 5)
    assert found != expected


def test_files_stay_where_nothing_has_changed(tmp_path: Path) -> None:
    """Also those with pages."""
    vertex = Vertex(OPERATORS["window"], SCHEMA, tmp_path, 3)
    vertex.feed(batch(random.Random(4), 0))

    def checksums(files: Any) -> set[str]:
        return {file.checksum for file in files if isinstance(file, StateFile)}

    before = vertex.manifest()
    after = [handle for _, handle in vertex.upgrade(OPERATORS["window"], SCHEMA, 3) if handle.files]
    assert checksums(file for handle in after for file in handle.files) == checksums(before.files) != set()
    vertex.close()


def test_rows_of_another_format_are_refused() -> None:
    recode = rewriting._tuples((), ())
    with pytest.raises(CorruptState, match="a stored row has format b'2'"):
        recode(b"2 something")


def test_timers_must_not_be_left_behind(tmp_path: Path) -> None:
    vertex = Vertex(OPERATORS["process with timers"], SCHEMA, tmp_path, 2)
    with pytest.raises(AssertionError, match="it had state '#timers' and has none now"):
        vertex.upgrade(Process("op", ("k",), process, "key string, n long"), SCHEMA, 2)
