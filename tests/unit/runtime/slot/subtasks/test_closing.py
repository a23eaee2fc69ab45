"""Closing a subtask closes all of it, whatever one part of it thinks of that; the loop removes no files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace

import pyarrow as pa
import pytest

from flinkplus.operators.base.operator import OperatorContext
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.runtime.host.cleanup import clear_away
from flinkplus.runtime.slot.subtasks.fused_node import FusedNode
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators
from flinkplus.runtime.slot.subtasks.snapshots import SubtaskSnapshots
from flinkplus.runtime.slot.subtasks.subtask import Subtask


class Closable:
    def __init__(self, name: str, told: list[str], fails: bool = False) -> None:
        self._name, self._told, self._fails = name, told, fails

    def close(self, beside: object = None) -> None:
        self._told.append(self._name)
        if self._fails:
            raise OSError(f"{self._name}: no space left on device")


def fused(part: Closable) -> FusedNode:
    context = OperatorContext("part", "part[0]", 0, 1, pa.schema([]), None)
    return FusedNode(None, context, writer=part)  # type: ignore[arg-type]


def test_every_part_is_closed_also_when_one_raises() -> None:
    told: list[str] = []

    def step():
        try:
            yield
        finally:
            told.append("step")
            raise RuntimeError("a user's generator")

    operators = object.__new__(FusedOperators)
    operators.nodes = {0: fused(Closable("first", told, fails=True)), 1: fused(Closable("second", told))}
    running = step()
    next(running)
    subtask = object.__new__(Subtask)
    subtask._closing = ExitStack()
    subtask._closing.callback(Closable("filter", told).close)
    subtask._closing.callback(Closable("state", told).close, None)
    subtask._closing.callback(operators.close)
    subtask.steps = SimpleNamespace(stop=lambda: running)  # type: ignore[assignment]
    with pytest.raises(OSError, match="first: no space"):
        subtask.close()
    assert told == ["step", "first", "second", "state", "filter"]
    subtask.close()
    assert len(told) == 5, "once"


def test_files_of_older_checkpoints_are_removed_beside_the_loop() -> None:
    told: list[int] = []
    later: list[Callable[[], None]] = []
    snapshots = object.__new__(SubtaskSnapshots)
    snapshots._operators = object.__new__(FusedOperators)
    snapshots._operators.nodes = {}
    snapshots._sound_from = None
    snapshots._state = SimpleNamespace(checkpoint_complete=told.append)  # type: ignore[assignment]
    snapshots._ports = SimpleNamespace(beside=later.append)  # type: ignore[assignment]
    snapshots.complete(CheckpointId(3))
    assert told == [], "that may wait for the disk"
    [work] = later
    work()
    assert told == [3]


def test_what_cannot_be_removed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> None:
        raise PermissionError("1-2-3.sst")

    clear_away(refused)
    assert "cleanup failed" in caplog.text
    assert "PermissionError: 1-2-3.sst" in caplog.text
