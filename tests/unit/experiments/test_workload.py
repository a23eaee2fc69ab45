"""The plan of the runs, the order to fail, and the operator that obeys it and keeps ballast."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from experiments.harness.workload import BALLAST_BYTES, InjectedFailure, Probe, Trigger
from experiments.recovery.experiment import Settings
from experiments.recovery.kill import Kill
from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import OperatorContext

SCHEMA = pa.schema([("word", pa.string())])
BATCH = pa.RecordBatch.from_pydict({"word": ["a", "b"]}, schema=SCHEMA)


class Objects:
    """Object state in a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[bytes, Any] = {}

    def object_state(self, name: str) -> Objects:
        return self

    def put_many(self, keys: list[bytes], values: list[Any]) -> None:
        assert not set(keys) & set(self.kept), "written twice"
        self.kept |= zip(keys, values, strict=True)


def context(index: int, parallelism: int, state: Any = None) -> OperatorContext:
    return OperatorContext("probe", f"probe[{index}]", index, parallelism, SCHEMA, state)


def test_the_same_kill_in_both_modes_and_another_in_each_run(tmp_path: Path) -> None:
    cases = Settings(parallelism=(4,), runs=20).cases()
    assert len(cases) == 2 * 2 * 20
    for first, second in zip(cases[::2], cases[1::2], strict=True):
        assert {first.recovery, second.recovery} == {"standby", "rollback"}
        kills = [Kill.drawn(case, 1.0, tmp_path) for case in (first, second)]
        assert kills[0] == kills[1]
        assert 0 <= kills[0].index < 4 and 0 <= kills[0].offset_s < 1
    assert len({case.seed for case in cases}) == 40
    assert cases == Settings(parallelism=(4,), runs=20).cases()
    assert {Kill.drawn(case, 1.0, tmp_path).index for case in cases} == {0, 1, 2, 3}
    assert cases != Settings(parallelism=(4,), runs=20, seed=2).cases()


def test_settings_that_no_run_would_accept() -> None:
    with pytest.raises(ConfigurationError, match="parallelism"):
        Settings(parallelism=(10_000,), recovery=("rollback",)).check()
    with pytest.raises(ConfigurationError, match="recovery must be one of"):
        Settings(parallelism=(1,), recovery=("magic",)).check()
    Settings(parallelism=(1, 2), recovery=("rollback",), state_keys=(0, 10)).check()


def test_an_order_is_obeyed_once(tmp_path: Path) -> None:
    trigger = Trigger(tmp_path)
    instances = [Probe("probe", trigger).create(context(index, 2)) for index in (0, 1, 1)]
    assert [list(instance.process(BATCH)) for instance in instances] == [[BATCH]] * 3
    assert trigger.raised_s(1) is None
    trigger.pull(1)
    assert list(instances[0].process(BATCH)) == [BATCH]
    with pytest.raises(InjectedFailure, match="subtask 1"):
        list(instances[1].process(BATCH))
    assert list(instances[2].process(BATCH)) == [BATCH], "its successor goes on"
    raised_s = trigger.raised_s(1)
    assert raised_s is not None and math.isfinite(raised_s)


def test_ballast_grows_with_the_batches_up_to_its_size_and_survives() -> None:
    keys = 1_000
    states = [Objects() for _ in range(3)]
    for index, state in enumerate(states):
        instance = Probe("probe", ballast_keys=keys).create(context(index, 3, state))
        assert list(instance.process(BATCH)) == [BATCH]
        share = len(state.kept)
        assert 0 < share < keys / 3
        again = Probe("probe", ballast_keys=keys).create(context(index, 3, state))
        again.restore(instance.snapshot(1))
        for _ in range(math.ceil(keys / 3 / share) + 1):
            list(again.process(BATCH))
    assert sum(len(state.kept) for state in states) == keys
    values = [value for state in states for value in state.kept.values()]
    assert {len(value) for value in values} == {BALLAST_BYTES}
    assert len(set(values)) == keys
