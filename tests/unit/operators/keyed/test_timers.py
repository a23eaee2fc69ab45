"""Event-time timers against a plain dict of them, and through snapshots at any place."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import UserFunctionError
from flinkplus.operators.base.operator import Inherited, OperatorInstance
from flinkplus.operators.keyed import timers
from flinkplus.operators.keyed.keyed_rows import Process
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage
from tests.examples import examples
from tests.handles import part_of
from tests.unit.operators.operator_fakes import FakeState, context

SCHEMA = pa.schema([("key", pa.int64()), ("at", pa.int64()), ("unset", pa.bool_())])
OUTPUT = "key long, at long, watermark long"
Fired = list[tuple[int, int, int]]


def set_or_unset(key: int, row: Any, ctx: Any) -> None:
    if row.unset:
        ctx.delete_event_timer(row.at)
    else:
        ctx.event_timer(row.at)
    return None


def following(at_ms: int) -> int | None:
    """What a timer sets when it fires, if anything: later, much later, or earlier."""
    return {1: at_ms + 5, 2: at_ms + 70_001, 3: at_ms - 7}.get(at_ms % 11)


def fire(key: int, at_ms: int, ctx: Any) -> Any:
    follows = following(at_ms)
    if follows is not None and not ctx.at_end:
        ctx.event_timer(follows)
    if at_ms % 13 == 0:
        ctx.delete_event_timer(at_ms + 1)
    yield key, at_ms, ctx.watermark


OPERATOR = Process("timers", ("key",), set_or_unset, OUTPUT, fire)


class Model:
    """All timers in one dict: when each is to fire."""

    def __init__(self) -> None:
        self.pending: dict[tuple[int, int], int] = {}
        self.watermark_ms = -(2**62)

    def row(self, key: int, at_ms: int, unset: bool) -> None:
        if unset:
            self.pending.pop((at_ms, key), None)
        else:
            self.pending.setdefault((at_ms, key), max(at_ms, self.watermark_ms + 1))

    def advance(self, watermark_ms: int) -> Fired:
        self.watermark_ms = watermark_ms
        fired = []
        while due := sorted(timer for timer, at in self.pending.items() if at <= watermark_ms):
            at_ms, key = due[0]
            del self.pending[at_ms, key]
            fired.append((key, at_ms, watermark_ms))
            follows = following(at_ms)
            if follows is not None and watermark_ms != END_OF_TIME_MS:
                late = not at_ms < follows <= watermark_ms
                self.pending.setdefault((follows, key), max(follows, watermark_ms + 1) if late else follows)
            if at_ms % 13 == 0:
                self.pending.pop((at_ms + 1, key), None)
        return fired


times = st.one_of(
    st.integers(-20, 60), st.integers(0, 5_000), st.integers(0, 400_000), st.sampled_from([10**9, 10**12, 10**12 + 1])
)
row = st.tuples(st.integers(0, 3), times, st.sampled_from([False, False, False, True]))
events = st.lists(st.one_of(st.lists(row, min_size=1, max_size=6), times, st.none()), max_size=25)


def batch_of(rows: list[tuple[int, int, bool]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def fired_by(batches: Any) -> Fired:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def restarted(instance: OperatorInstance, state: Any) -> OperatorInstance:
    saved = json.loads(json.dumps(instance.snapshot(1)))
    instance = OPERATOR.create(context(OPERATOR, SCHEMA, state))
    instance.restore(saved)
    return instance


@given(events, st.sampled_from([1, 2, 256]), st.sampled_from([1, 3, 16_384]))
@settings(max_examples=examples(400), deadline=None)
def test_timers_as_in_a_dict(events: list[Any], page: int, most: int) -> None:
    """A list sets and unsets timers, a number raises the watermark to it, ``None`` is a snapshot and its restoring."""
    state, model = FakeState(), Model()
    with mock.patch.object(timers, "PAGE_TIMERS", page), mock.patch.object(timers, "MAX_BATCH_TIMERS", most):
        instance = OPERATOR.create(context(OPERATOR, SCHEMA, state))
        for event in events:
            if event is None:
                instance = restarted(instance, state)
            elif isinstance(event, list):
                assert list(instance.process(batch_of(event))) == []
                for row in event:
                    model.row(*row)
            elif event > model.watermark_ms:
                assert fired_by(instance.on_watermark(event)) == model.advance(event)
        assert fired_by(instance.on_watermark(END_OF_TIME_MS)) == model.advance(END_OF_TIME_MS)
        assert model.pending == {}
        assert all(objects.content == {} for objects in state.objects.values()), "nothing is left behind"


def test_the_index_is_small_however_many_timers_there_are() -> None:
    state = FakeState()
    instance = OPERATOR.create(context(OPERATOR, SCHEMA, state))
    list(instance.on_watermark(0))
    for start in range(0, 20_000, 2_000):
        list(
            instance.process(batch_of([(i % 7, i * 104_729 % 10**9 * 11, False) for i in range(start, start + 2_000)]))
        )
    assert len(json.dumps(instance.snapshot(1))) < 8_000
    reads = sum(objects.reads for objects in state.objects.values())
    instance = restarted(instance, state)
    assert sum(objects.reads for objects in state.objects.values()) == reads
    fired = fired_by(instance.on_watermark(END_OF_TIME_MS))
    assert fired == sorted(fired, key=lambda timer: (timer[1], timer[0]))
    assert len(fired) == 20_000


def test_timers_on_rocksdb(tmp_path: Path) -> None:
    """Set, snapshotted, restored by another process, fired."""
    storage = CheckpointStorage(str(tmp_path / "storage"))
    first = SubtaskState(tmp_path / "work", storage.state_files, "timers[0]", 1)
    model = Model()
    instance = OPERATOR.create(context(OPERATOR, SCHEMA, first))
    rows = [(i % 5, 1_000_000 + i * i % 50_000, False) for i in range(2_000)]
    list(instance.process(batch_of(rows)))
    for row in rows:
        model.row(*row)
    assert fired_by(instance.on_watermark(1_020_000)) == model.advance(1_020_000)
    handle = first.persist(first.freeze(1, OperatorState(operators={"operator": part_of(state=instance.snapshot(1))})))
    second = SubtaskState(tmp_path / "other", storage.state_files, "timers[0]", 2)
    second.restore(handle)
    instance = OPERATOR.create(context(OPERATOR, SCHEMA, second))
    instance.restore(handle.operator_state.operators["operator"].state)
    for watermark_ms in (1_020_300, 1_044_000, END_OF_TIME_MS):
        assert fired_by(instance.on_watermark(watermark_ms)) == model.advance(watermark_ms)
    assert second.state_keys() == 0
    first.close()
    second.close()


def test_datetimes_are_times() -> None:
    def sets(key: int, row: Any, ctx: Any) -> None:
        assert ctx.watermark == 7
        ctx.event_timer(datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.timezone.utc))
        ctx.event_timer(datetime.datetime(1970, 1, 1, 0, 1))
        return None

    operator = Process("timers", ("key",), sets, OUTPUT, fire)
    instance = operator.create(context(operator, SCHEMA, FakeState()))
    list(instance.on_watermark(7))
    list(instance.process(batch_of([(1, 0, False)])))
    assert fired_by(instance.on_watermark(60_000)) == [(1, 60_000, 60_000)]


def test_a_timer_that_always_sets_the_next_one_is_stopped_at_the_end() -> None:
    def again(key: int, at_ms: int, ctx: Any) -> None:
        ctx.event_timer(at_ms + 1)
        return None

    operator = Process("timers", ("key",), set_or_unset, OUTPUT, again)
    instance = operator.create(context(operator, SCHEMA, FakeState()))
    list(instance.process(batch_of([(1, 0, False)])))
    with pytest.raises(UserFunctionError, match=r"set none when ctx\.at_end"):
        list(instance.on_watermark(END_OF_TIME_MS))


def test_a_function_that_raises_names_the_timer() -> None:
    def broken(key: int, at_ms: int, ctx: Any) -> None:
        raise ValueError("boom")

    operator = Process("timers", ("key",), set_or_unset, OUTPUT, broken)
    instance = operator.create(context(operator, SCHEMA, FakeState()))
    list(instance.process(batch_of([(4, 17, False)])))
    with pytest.raises(UserFunctionError, match=r"timers\[1\].*the timer of key 4 at 17 ms"):
        list(instance.on_watermark(20))


def test_at_another_parallelism_event_time_may_differ() -> None:
    """Where barriers do not block, one subtask may be ahead of another at a checkpoint."""
    parts = []
    for key, watermark_ms in ((1, 100), (2, 200)):
        state = FakeState()
        instance = OPERATOR.create(context(OPERATOR, SCHEMA, state))
        assert not list(instance.process(batch_of([(key, 154, False), (key, 253, False)])))
        fired_by(instance.on_watermark(watermark_ms))
        parts.append(Inherited(instance.snapshot(1), state, False, lambda keys: np.ones(len(keys), np.bool_)))  # type: ignore[arg-type]
    heir = OPERATOR.create(context(OPERATOR, SCHEMA, FakeState()))
    heir.inherit(parts)
    assert fired_by(heir.on_watermark(210)) == [(1, 154, 210)]
    assert [key for key, at_ms, _ in fired_by(heir.on_watermark(300)) if at_ms == 253] == [1, 2]


def test_timers_without_on_timer() -> None:
    operator = Process("timers", ("key",), set_or_unset, OUTPUT)
    instance = operator.create(context(operator, SCHEMA, FakeState()))
    with pytest.raises(UserFunctionError, match=r"give process\(\.\.\., on_timer=\.\.\.\)"):
        list(instance.process(batch_of([(1, 0, False)])))
