"""Closing a subtask closes all of it, whatever one part of it thinks of that; the loop removes no files."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pyarrow as pa
import pytest

from flinkplus.operators.base.operator import OperatorContext
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.host.cleanup import clear_away
from flinkplus.runtime.slot.subtasks.operator_tree import FusedNode, FusedOperators
from flinkplus.runtime.slot.subtasks.output_gate import OutputGate
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
    subtask = object.__new__(Subtask)
    subtask.operators = operators
    subtask.outputs = OutputGate(Generation(1), 16, 100, lambda slot, frame: None, lambda message, payload: None)
    subtask._trace = None
    subtask._logs, subtask._persisting = {}, {}
    subtask.state = Closable("state", told)  # type: ignore[assignment]
    subtask.seen = Closable("seen", told)  # type: ignore[assignment]
    subtask._ports = SimpleNamespace(beside=None)  # type: ignore[assignment]
    subtask._step = step()
    next(subtask._step)
    with pytest.raises(OSError, match="first: no space"):
        subtask.close()
    assert told == ["step", "seen", "first", "second", "state"]


def test_files_of_older_checkpoints_are_removed_beside_the_loop() -> None:
    told: list[int] = []
    later: list[Callable[[], None]] = []
    subtask = object.__new__(Subtask)
    subtask.operators = object.__new__(FusedOperators)
    subtask.operators.nodes = {}
    subtask.state = SimpleNamespace(checkpoint_complete=told.append)  # type: ignore[assignment]
    subtask._ports = SimpleNamespace(beside=later.append)  # type: ignore[assignment]
    subtask._on_complete(CheckpointId(3))
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
