"""Rows that are visible at once are held back behind a checkpoint, as histories of the coordinator of checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from flinkplus.protocol.vocabulary.effects import (
    AbortCheckpoint,
    CheckpointingEffect,
    CopySavepoint,
    HoldOutput,
    TriggerCheckpoint,
)
from flinkplus.protocol.vocabulary.events import (
    CheckpointDeclined,
    CheckpointRequested,
    JobInterrupted,
    ManifestStored,
    OutputCommitted,
    OutputReleased,
    SavepointCopied,
    SavepointFailed,
    SavepointRequested,
    SavepointStored,
    StopRequested,
    SubtasksStarted,
    TimeAdvanced,
)
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from tests.unit.protocol.checkpoints.test_checkpointing import (
    C1,
    C2,
    C3,
    G1,
    G2,
    S0,
    SOURCES,
    SUBTASKS,
    History,
    acks,
    exhausted,
    started,
    trigger,
)

HELD = CheckpointRequested(aligned=True, holding=True)


def holds(found: list[CheckpointingEffect]) -> list[Any]:
    """The orders to hold and to trigger, in their order."""
    return [
        effect.checkpoint if isinstance(effect, HoldOutput) else effect
        for effect in found
        if isinstance(effect, HoldOutput | TriggerCheckpoint)
    ]


def stopping() -> History:
    """A stop with a savepoint whose checkpoint is being copied."""
    history = started(recipes=True)
    assert holds(history.at(10, SavepointRequested(1, True))) == [C1, trigger(C1)]
    found = history.at(20, *acks(C1), ManifestStored(C1), OutputCommitted(C1))
    assert CopySavepoint(1, C1, True) in found and holds(found) == []
    return history


def test_the_order_comes_before_the_first_barrier_and_no_other_checkpoint_until_it_is_released() -> None:
    history = started(recipes=True, interval_ms=100)
    assert holds(history.at(10, HELD)) == [C1, trigger(C1)]
    assert holds(history.at(20, *acks(C1), ManifestStored(C1), OutputCommitted(C1))) == []
    assert history.machine.held == C1
    assert holds(history.at(5_000, TimeAdvanced(), CheckpointRequested(), *exhausted())) == []
    assert history.machine.next_deadline_ms() is None
    assert holds(history.at(5_010, OutputReleased())) == [None, trigger(C2, final=True)]
    assert history.machine.held is None


@pytest.mark.parametrize(
    "end", [CheckpointDeclined(C1, S0, G1, "no room"), JobInterrupted()], ids=["abort", "rollback"]
)
def test_an_aborted_checkpoint_is_not_held(end: Any) -> None:
    history = started(recipes=True, interval_ms=None)
    history.at(10, HELD)
    found = history.at(20, end)
    assert holds(found) == [None] and any(isinstance(effect, AbortCheckpoint) for effect in found)
    if not isinstance(end, JobInterrupted):
        assert holds(history.at(30, HELD)) == [C2, trigger(C2)]


def test_a_rollback_ends_the_hold_of_a_request() -> None:
    history = started(recipes=True, interval_ms=None)
    history.at(10, HELD, *acks(C1), ManifestStored(C1))
    assert holds(history.at(20, JobInterrupted())) == [None]
    running = SubtasksStarted(SUBTASKS, SOURCES, G2, ())
    assert history.at(30, running) == [HoldOutput(None, G2)], "an order in between may be lost"


def test_a_stop_holds_over_deployments_and_to_the_end() -> None:
    history = stopping()
    assert holds(history.at(30, JobInterrupted())) == []
    assert history.machine.held == C1, "the next deployment begins with it"
    assert HoldOutput(C1, G2) in history.at(40, SubtasksStarted(SUBTASKS, SOURCES, G2, ()))
    found = history.at(50, SavepointCopied(1), SavepointStored(1))
    assert StopRequested() in found and holds(found) == []
    assert history.machine.held == C1


def test_a_stop_that_fails_releases_rows() -> None:
    history = stopping()
    assert holds(history.at(30, SavepointFailed(1, "no room"))) == [None]


def test_a_stop_takes_the_place_of_a_request() -> None:
    """One order at a time, the newest: the request waits for what becomes complete."""
    history = started(recipes=True, interval_ms=None, max_concurrent=2)
    history.at(10, CheckpointRequested())
    assert holds(history.at(20, SavepointRequested(1, True), HELD)) == [C2, trigger(C2)]
    history.at(30, *acks(C2), ManifestStored(C2))
    assert history.machine.held == C2


def test_nothing_is_held_where_no_row_is_visible_at_once() -> None:
    history = started(interval_ms=None)
    assert holds(history.at(10, HELD)) == [trigger(C1)]
    history.at(20, *acks(C1), ManifestStored(C1), OutputCommitted(C1))
    assert holds(history.at(30, CheckpointRequested())) == [trigger(C2)], "and nothing waits"
    history.at(40, *acks(C2), ManifestStored(C2), OutputCommitted(C2))
    assert holds(history.at(50, SavepointRequested(1, True))) == [trigger(C3)]
    assert history.machine.held is None


def test_generations_of_the_order() -> None:
    history = started(recipes=True, interval_ms=None)
    found = [effect for effect in history.at(10, HELD) if isinstance(effect, HoldOutput)]
    assert found == [HoldOutput(CheckpointId(1), Generation(1))]
