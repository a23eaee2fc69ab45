"""Values, lists and maps of functions against plain ones: any cut into batches, times to live, rows that fail,
snapshots and restores, with keys that do not fit in memory."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.operator import Inherited, KeyedState, OperatorContext, OperatorInstance
from flinkplus.operators.keyed.functions import expiry
from flinkplus.operators.keyed.functions.context import ProcessContext
from flinkplus.operators.keyed.keyed_rows import Process
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.state import CheckpointStorage, SubtaskState
from flinkplus.state.entries import table
from tests.examples import examples
from tests.unit.operators.operator_fakes import FakeState, context

SCHEMA = pa.schema([("key", pa.string()), ("does", pa.string()), ("n", pa.int64())])
OUTPUT = "key string, seen string"
TTL_MS = 50
DOES = ("put", "delete", "append", "extend", "replace", "clear list", "set", "remove", "clear map", "look", "fail")
Step = tuple[str, Any]


def acts(ttl: str | None) -> Any:
    """A function that does what its row says to the state of its key, and then tells all of it."""

    def act(key: str, row: Any, ctx: ProcessContext) -> Iterator[tuple[str, str]]:
        value, items, entries = ctx.state("v", ttl), ctx.list_state("l", ttl), ctx.map_state("m", ttl)
        n = row.n
        if row.does in ("put", "fail"):
            value.put([n])
        if row.does == "delete":
            value.delete()
        if row.does in ("append", "fail"):
            items.append(n)
        if row.does == "extend":
            items.extend([n, [n]])
        if row.does == "replace":
            items.put([n, *items])
        if row.does == "clear list":
            items.clear()
        if row.does in ("set", "fail"):
            entries[n % 5, None] = {"n": n}
        if row.does == "remove":
            entries.remove((n % 5, None))
        if row.does in ("clear map", "fail"):
            entries.clear()
        assert len(items) == len(items.get()) and bool(items) != items.is_empty()
        assert bool(entries) == bool(list(entries)) != entries.is_empty()
        assert list(entries) == [name for name, _ in entries.items()]
        assert list(entries.values()) == [entries[name] for name in entries]
        assert ((n % 5, None) in entries) == (entries.get((n % 5, None)) is not None)
        assert entries.is_empty() == (not list(entries))
        if row.does == "fail":
            raise ValueError("no")
        yield key, str((value.get(), items.get(), dict(entries.items())))

    return act


@dataclass
class Model:
    """``ttl_ms``: ``None``: for ever. Values are kept with when they were put."""

    ttl_ms: int | None
    now_ms: int | None
    first_ms: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    maps: dict[str, dict[Any, Any]] = field(default_factory=dict)

    def lives(self, put_ms: int | None) -> bool:
        if self.ttl_ms is None or self.now_ms is None:
            return True
        return self.now_ms < (self.first_ms if put_ms is None else put_ms) + self.ttl_ms  # type: ignore[operator]

    def reaches(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.first_ms = now_ms if self.first_ms is None else self.first_ms

    def row(self, key: str, does: str, n: int) -> str:
        now = self.now_ms
        items, entries = self.lists.setdefault(key, []), self.maps.setdefault(key, {})
        if does == "put":
            self.values[key] = ([n], now)
        if does == "delete":
            self.values.pop(key, None)
        if does == "append":
            items.append((n, now))
        if does == "extend":
            items += [(n, now), ([n], now)]
        if does == "replace":
            items[:] = [(n, now), *((item, now) for item, put in items if self.lives(put))]
        if does == "clear list":
            items.clear()
        if does == "set":
            entries[n % 5, None] = ({"n": n}, now)
        if does == "remove":
            entries.pop((n % 5, None), None)
        if does == "clear map":
            entries.clear()
        value, put = self.values.get(key, (None, now))
        return str(
            (
                value if self.lives(put) else None,
                [item for item, put in items if self.lives(put)],
                {name: entry for name, (entry, put) in sorted(entries.items()) if self.lives(put)},
            )
        )


class Subject:
    """The operator, by event time or by the clock."""

    def __init__(self, ttl: str | None, by_event_time: bool, state: KeyedState) -> None:
        self.now_ms = 1_000
        self.operator = Process("p", ("key",), acts(ttl), OUTPUT, on_error="skip", by_event_time=by_event_time)
        self.by_event_time = by_event_time
        self.on(state)

    def on(self, state: KeyedState, saved: str | None = None) -> None:
        ctx = context(self.operator, SCHEMA, state)
        ctx.now_ms = lambda: self.now_ms
        self.instance: OperatorInstance = self.operator.create(ctx)
        if saved is not None:
            self.instance.restore(json.loads(saved))

    def saved(self) -> str:
        return json.dumps(self.instance.snapshot(1))

    def reaches(self, now_ms: int) -> None:
        self.now_ms = now_ms
        if self.by_event_time:
            assert list(self.instance.on_watermark(now_ms)) == []

    def rows(self, rows: list[tuple[str, str, int]]) -> list[str]:
        if not rows:
            return []
        batch = pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)
        return [seen for out in self.instance.process(batch) for seen in out.column(1).to_pylist()]


def model_of(ttl: str | None, by_event_time: bool) -> Model:
    return Model(None if ttl is None else TTL_MS, None if by_event_time else 1_000, None if by_event_time else 1_000)


def check(subject: Subject, model: Model, step: Step) -> None:
    what, given_ = step
    if what == "rows":
        seen = [model.row(*row) for row in given_ if row[1] != "fail"]
        assert subject.rows(given_) == seen
    else:
        now_ms = subject.now_ms + given_
        subject.reaches(now_ms)
        model.reaches(now_ms)


rows_of_keys = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(DOES), st.integers(0, 9)), max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), rows_of_keys),
        st.tuples(st.just("time"), st.sampled_from([1, 10, TTL_MS - 1, TTL_MS, 3 * TTL_MS])),
        st.just(("save", 0)),
    ),
    max_size=12,
)


@pytest.mark.parametrize(("ttl", "by_event_time"), [(None, False), ("50 ms", False), (0.05, True)])
@given(steps)
@settings(max_examples=examples(60), deadline=None)
def test_against_plain_values(ttl: Any, by_event_time: bool, steps: list[Step]) -> None:
    state = FakeState()
    subject, model = Subject(ttl, by_event_time, state), model_of(ttl, by_event_time)
    for step in steps:
        if step[0] == "save":
            subject.on(state, subject.saved())
        else:
            check(subject, model, step)


def gone(subject: Subject) -> None:
    """Let everything expire and be removed: a key without state drives the clock."""
    for _ in range(4):
        subject.reaches(subject.now_ms + 3 * TTL_MS)
        subject.rows([("z", "look", 0)] * 500)


@pytest.mark.parametrize("by_event_time", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_has_expired_is_removed_and_its_queue_with_it(by_event_time: bool) -> None:
    state = FakeState()
    subject, rng = Subject("50 ms", by_event_time, state), random.Random(3)
    for turn in range(20):
        subject.rows([(f"k{rng.randrange(60)}", rng.choice(DOES), turn) for _ in range(40)])
        subject.reaches(subject.now_ms + rng.randrange(40))
        if turn % 7 == 0:
            subject.on(state, subject.saved())
    gone(subject)
    left = {name: len(found.content) for name, found in state.objects.items() if found.content}
    assert left == {}


def test_a_value_that_is_put_often_is_queued_once() -> None:
    state = FakeState()
    subject = Subject("50 ms", False, state)
    for _ in range(20):
        subject.rows([("a", "put", 1), ("a", "append", 1), ("a", "set", 1)])
    subject.saved()
    assert [queued(state, f"p/{name}#expiry") for name in "vlm"] == [1, 1, 1]


def test_rows_that_put_many_entries_leave_no_growing_state() -> None:
    def put(key: str, row: Any, ctx: ProcessContext) -> None:
        for number in range(50):
            ctx.map_state("m", "50 ms").put(row.n * 50 + number, None)

    state, now_ms = FakeState(), 1_000
    operator = Process("p", ("key",), put, OUTPUT)
    ctx = context(operator, SCHEMA, state)
    ctx.now_ms = lambda: now_ms
    instance = operator.create(ctx)
    for turn in range(10):
        numbers = list(range(20 * turn, 20 * turn + 20))
        assert not list(instance.process(pa.record_batch([["a"] * 20, [""] * 20, numbers], schema=SCHEMA)))
        now_ms += 100
    assert len(state.objects["p/m"].content) <= 3 * 20 * 50


def queued(state: FakeState, pages: str) -> int:
    """How many names stand in a removal queue."""
    content: dict[bytes, Any] = state.objects[pages].content
    return sum(len(page) // 2 for page in content.values())


def test_a_value_that_is_put_and_deleted_in_turn_leaves_no_growing_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "CHUNK_NAMES", 8)
    state = FakeState()
    subject = Subject("50 ms", False, state)
    for _ in range(200):
        subject.rows([("a", "put", 1)])
        subject.rows([("a", "delete", 1)])
        subject.reaches(subject.now_ms + 10)
    subject.saved()
    assert queued(state, "p/v#expiry") < 30


@pytest.mark.parametrize(
    ("ttl", "by_event_time"),
    [
        pytest.param(None, False, marks=pytest.mark.long),
        ("50 ms", True),
        pytest.param("50 ms", False, marks=pytest.mark.long),
    ],
)
def test_state_that_does_not_fit_in_memory_over_snapshots_and_restores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ttl: str | None, by_event_time: bool
) -> None:
    monkeypatch.setattr(table, "READ_ENTRIES", 3)
    monkeypatch.setattr(expiry, "CHUNK_NAMES", 7)
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    rng, name = random.Random(11), "p[0]"
    state = SubtaskState(tmp_path / "work", storage.state_files, name, 1, max_entries=10)
    subject, model = Subject(ttl, by_event_time, state), model_of(ttl, by_event_time)
    handle: SnapshotHandle | None = None
    try:
        for turn in range(24):
            keys = [f"k{rng.randrange(12)}" for _ in range(rng.randrange(1, 25))]
            check(subject, model, ("rows", [(key, rng.choice(DOES), rng.randrange(9)) for key in keys]))
            state.spill_if_needed()
            check(subject, model, ("time", rng.choice([1, 5, 20])))
            if turn % 6 == 5:
                saved = subject.saved()
                pending = state.freeze(turn, OperatorState())
                check(subject, model, ("rows", [(key, "look", 0) for key in keys]))
                handle = state.persist(pending)
                if turn % 12 == 11:
                    state.close()
                    state = SubtaskState(tmp_path / "work", storage.state_files, name, turn, max_entries=10)
                    state.restore(handle)
                    subject.on(state, saved)
    finally:
        state.close()


def test_another_kind_of_state_of_the_same_name_is_an_error_of_the_program() -> None:
    def two(key: str, row: Any, ctx: ProcessContext) -> None:
        ctx.list_state("s").append(1)
        ctx.map_state("s").put(1, 1)

    def two_lives(key: str, row: Any, ctx: ProcessContext) -> None:
        ctx.state("s", ttl="1 hour").put(1)
        ctx.state("s", ttl="2 hours").put(1)

    def no_time(key: str, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        ctx.state("s", ttl="0 s").put(1)
        yield key, ""

    def no_name(key: str, row: Any, ctx: ProcessContext) -> None:
        ctx.map_state("s#expiry")

    batch = pa.record_batch([["a"], ["x"], [1]], schema=SCHEMA)
    found = []
    for function in (two, two_lives, no_time, no_name):
        ctx = context(Process("p", ("key",), function, OUTPUT, on_error="skip"), SCHEMA, FakeState())
        ctx.now_ms = lambda: 1
        with pytest.raises(ConfigurationError) as raised:
            list(Process("p", ("key",), function, OUTPUT, on_error="skip").create(ctx).process(batch))
        found.append(str(raised.value))
    assert "as a map, and has it as a list: give" in found[0]
    assert "as a value with ttl, and has it as a value with ttl of 3600000 ms" in found[1]
    assert "ttl of state 's' must be at least 1 ms" in found[2]
    assert "a state cannot be called 's#expiry'" in found[3]


def test_state_of_another_kind_in_the_checkpoint_is_an_error(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    state = SubtaskState(tmp_path / "work", storage.state_files, "p[0]", 1)
    try:
        state.entry_state("p/s", "list").put_many([b"\0\0\0\0\0\1a"], [(0, 1)])
        handle = state.persist(state.freeze(1, OperatorState()))
        state.close()
        state = SubtaskState(tmp_path / "work", storage.state_files, "p[0]", 2)
        state.restore(handle)
        with pytest.raises(ConfigurationError, match="as map state, but the checkpoint holds it as entries list"):
            state.entry_state("p/s", "map")
        with pytest.raises(ConfigurationError, match="as object state, but the checkpoint holds it as entries list"):
            state.object_state("p/s")
    finally:
        state.close()


def test_times_of_another_clock_are_refused() -> None:
    subject = Subject("50 ms", False, FakeState())
    subject.rows([("a", "put", 1)])
    saved = subject.saved()
    with pytest.raises(ConfigurationError, match="expire by processing time, and would by event time now"):
        Subject("50 ms", True, FakeState()).on(FakeState(), saved)


def test_a_list_is_as_it_was_when_what_replaces_it_cannot_be_kept() -> None:
    def puts(key: str, row: Any, ctx: ProcessContext) -> None:
        items = ctx.list_state("l")
        items.put([1])
        with pytest.raises((AttributeError, pickle.PicklingError)):
            items.put([2, lambda: 0])
        assert items.get() == [1]

    operator = Process("p", ("key",), puts, OUTPUT)
    instance = operator.create(context(operator, SCHEMA, FakeState()))
    assert list(instance.process(pa.record_batch([["a"], ["x"], [1]], schema=SCHEMA))) == []


def test_values_put_before_event_time_is_known_beside_a_subtask_that_knows_it() -> None:
    """Where barriers do not block, watermarks may differ at a checkpoint."""

    def puts(key: str, row: Any, ctx: ProcessContext) -> list[tuple[str, str]]:
        value = ctx.state("v", "50 ms")
        seen = value.get()
        value.put(row.n)
        return [(key, str(seen))]

    operator = Process("p", ("key",), puts, OUTPUT, by_event_time=True)
    batch = pa.record_batch([["a"], [""], [7]], schema=SCHEMA)
    states = [FakeState(), FakeState()]
    early, late, heir = (operator.create(context(operator, SCHEMA, state)) for state in (*states, states[0]))
    assert [out.column(1).to_pylist() for out in early.process(batch)] == [["None"]]
    assert list(late.on_watermark(100)) == []
    parts = zip((early, late), states, strict=True)
    heir.inherit([Inherited(each.snapshot(1), state, False, owns_all) for each, state in parts])
    assert [out.column(1).to_pylist() for out in heir.process(batch)] == [["7"]]


def owns_all(keys: Sequence[bytes]) -> npt.NDArray[np.bool_]:
    return np.ones(len(keys), np.bool_)


def test_an_iteration_ends_with_the_call() -> None:
    kept: list[Any] = []

    def keeps(key: str, row: Any, ctx: ProcessContext) -> None:
        entries = ctx.map_state("m")
        entries.put(1, 1)
        entries.put(2, 2)
        for name in entries:  # changes meanwhile do not show
            entries.remove(name)
            entries.put(name + 10, 0)
        assert list(entries) == [11, 12]
        kept.append(entries.items())

    operator = Process("p", ("key",), keeps, OUTPUT)
    instance = operator.create(context(operator, SCHEMA, FakeState()))
    assert list(instance.process(pa.record_batch([["a"], ["x"], [1]], schema=SCHEMA))) == []
    with pytest.raises(RuntimeError, match="ends with the call"):
        next(kept[0])


def test_a_key_of_a_map_that_is_no_plain_value_is_an_error_of_the_row() -> None:
    operator = Process("p", ("key",), lambda key, row, ctx: ctx.map_state("m").put([1], 1), OUTPUT)
    ctx: OperatorContext = context(operator, SCHEMA, FakeState())
    with pytest.raises(UserFunctionError, match="a key of a map is None, a bool, int"):
        list(operator.create(ctx).process(pa.record_batch([["a"], ["x"], [1]], schema=SCHEMA)))
