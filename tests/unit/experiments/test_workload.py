"""The plan of the runs, the order to fail, and the operator that obeys it and keeps ballast."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from experiments.harness.workload import BALLAST_BYTES, InjectedFailure, Probe, Trigger
from experiments.recovery.experiment import Settings
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


def test_settings_that_no_run_would_accept() -> None:
    with pytest.raises(ConfigurationError, match="parallelism"):
        Settings(parallelism=(10_000,), recovery=("rollback",)).check()
    with pytest.raises(ConfigurationError, match="recovery must be one of"):
        Settings(parallelism=(1,), recovery=("magic",)).check()
    with pytest.raises(ConfigurationError, match="--beside is -1"):
        Settings(recovery=("rollback",), beside=-1).check()
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


def test_firing_waits_until_the_subtask_has_raised(tmp_path: Path) -> None:
    trigger = Trigger(tmp_path)
    instance = Probe("probe", trigger).create(context(1, 2))
    raised = []

    def step() -> None:
        with contextlib.suppress(InjectedFailure):
            list(instance.process(BATCH))

    for _ in range(2):
        before_s = time.time()
        raised.append(trigger.fire(1, step))
        assert before_s <= raised[-1] <= time.time()
    assert raised[0] < raised[1], "an earlier one does not count"


def test_only_ballast_keeps_the_probe_from_another_parallelism() -> None:
    assert Probe("probe").create(context(0, 2)).snapshot(1) is None


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
