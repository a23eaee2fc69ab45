"""While a job is being deployed and starts, standbys leave the processor to the stream, unless one is needed."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkplus.protocol.snapshot.handle import START
from flinkplus.runtime.slot.control.ports import StandbyReady
from flinkplus.runtime.slot.process import standbys as standbys_module
from flinkplus.runtime.slot.process.standbys import Standbys
from flinkplus.state import CheckpointStorage

WAIT_S = 20.0
LONG_S = 600.0


@pytest.fixture
def answers() -> queue.SimpleQueue[StandbyReady]:
    return queue.SimpleQueue()


def made(work: Path, answers: queue.SimpleQueue[StandbyReady]) -> Standbys:
    storage = CheckpointStorage(work / "checkpoints").state_files
    return Standbys(0, work, storage, lambda *_: None, lambda *_: None, answers.put, in_turn=lambda action: action())


@pytest.fixture
def standbys(tmp_path: Path, answers: queue.SimpleQueue[StandbyReady]) -> Iterator[Standbys]:
    found = made(tmp_path, answers)
    yield found
    found.close()


def posted(standbys: Standbys) -> queue.SimpleQueue[float]:
    """When the agent got to what is posted now."""
    reached: queue.SimpleQueue[float] = queue.SimpleQueue()
    standbys._post(lambda: reached.put(time.monotonic()))
    return reached


def test_orders_wait_while_the_job_starts(standbys: Standbys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standbys_module, "REST_S", 0.3)
    begun = time.monotonic()
    standbys.rest(started=True)
    assert posted(standbys).get(timeout=WAIT_S) >= begun + 0.3
    begun = time.monotonic()
    assert posted(standbys).get(timeout=WAIT_S) < begun + WAIT_S


def test_orders_wait_until_a_deployment_starts(standbys: Standbys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standbys_module, "REST_S", 0.0)
    monkeypatch.setattr(standbys_module, "DEPLOYMENT_S", LONG_S)
    standbys.rest(started=False)
    waiting = posted(standbys)
    with pytest.raises(queue.Empty):
        waiting.get(timeout=0.1)
    standbys.rest(started=True)
    waiting.get(timeout=WAIT_S)


def test_a_promotion_does_not_wait_and_nothing_after_it(
    standbys: Standbys, answers: queue.SimpleQueue[StandbyReady], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys_module, "REST_S", LONG_S)
    standbys.rest(started=True)
    waiting = posted(standbys)
    standbys.prepare(1, "count[0]", 1, START, 1)
    waiting.get(timeout=WAIT_S)
    assert answers.get(timeout=WAIT_S).subtask == "count[0]"
    posted(standbys).get(timeout=WAIT_S)
    standbys.rest(started=True)
    with pytest.raises(queue.Empty):
        posted(standbys).get(timeout=0.05)


def test_closing_does_not_wait(
    tmp_path: Path, answers: queue.SimpleQueue[StandbyReady], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys_module, "REST_S", LONG_S)
    standbys = made(tmp_path, answers)
    standbys.rest(started=True)
    posted(standbys)
    begun = time.monotonic()
    standbys.close()
    assert time.monotonic() < begun + WAIT_S
