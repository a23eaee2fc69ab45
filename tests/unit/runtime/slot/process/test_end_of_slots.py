"""Slots that Spark starts again while the job ends: they end quietly, and leave nothing."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from flinkplus.config import options_from
from flinkplus.errors import FlinkPlusError
from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.host.scratch import (
    Scratch,
    make_scratch,
    mark_over,
    mark_running,
    remove_scratch,
    wait_for_slots,
)
from flinkplus.runtime.slot.process import slot as slot_module
from flinkplus.runtime.slot.process import slot_process
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.slot.process.slot import CoordinatorLost
from flinkplus.runtime.slot.process.slot_process import ProcessStart, run_slot
from flinkplus.runtime.slot.process.start_failure import REPORT_TIMEOUT_S
from flinkplus.runtime.slot.process.workers import SlotWorkers, SnapshotWritten
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.factory import rendezvous
from flinkplus.runtime.transport.wire.ports import ControlArrived
from tests.unit.runtime.slot.slots_in_process import graph_of

NOBODY = "127.0.0.1:1"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The own directory of a running job."""
    path = tmp_path / "job"
    path.mkdir()
    mark_running(path)
    return path


def config_of(job: Path) -> SlotConfig:
    """Of a slot whose coordinator is gone; its driver lives: this process."""
    return SlotConfig(
        job_id="id",
        job_name="test",
        slots=1,
        first_generation=1,
        coordinator=NOBODY,
        lifelines="",
        credentials=Credentials(b"secret"),
        plan=pickle.dumps(graph_of(1, 1)),
        options=options_from({}, {"parallelism": 1}),
        checkpoint_dir=str(job / "checkpoints"),
        scratch=str(job),
        directory=str(job),
        driver=(os.getpid(), psutil.Process().create_time()),
        local=True,
    )


def test_without_a_coordinator_a_slot_fails_while_the_job_runs(job: Path) -> None:
    with pytest.raises(CoordinatorLost):
        run_slot(0, config_of(job))
    assert [path.name for path in job.iterdir()] == ["RUNNING"]


class Special:
    """Can be loaded nowhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, ()


def _load() -> None:
    raise ImportError("libspecial.so.3: cannot open shared object file")


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_a_slot_that_cannot_start_tells_its_driver_why(job: Path, transport: str) -> None:
    options = options_from({}, {"parallelism": 2, "transport": transport})
    heard: Inbox[Any] = Inbox()
    coordinator = rendezvous(options, Credentials(b"secret"), "127.0.0.1", heard)
    config = replace(config_of(job), coordinator=coordinator.start(), options=options, plan=pickle.dumps(Special()))
    told: list[control.ControlMessage] = []
    over = threading.Event()

    def coordinate() -> None:
        while not over.is_set():
            with contextlib.suppress(queue.Empty):
                arrived = heard.get(0.01)
                if isinstance(arrived, ControlArrived):
                    told.append(arrived.message)
                    coordinator.drop(arrived.connection)

    thread = threading.Thread(target=coordinate)
    thread.start()
    began_s = time.monotonic()
    try:
        with pytest.raises(ImportError):
            run_slot(1, config)
    finally:
        over.set()
        thread.join()
        coordinator.close()
        heard.close()
    assert time.monotonic() - began_s < REPORT_TIMEOUT_S, "the coordinator has heard, and said so"
    (failure,) = told
    assert isinstance(failure, control.StartFailed)
    assert (failure.slot, failure.pid, failure.kind) == (1, os.getpid(), "ImportError")
    assert failure.reason == "libspecial.so.3: cannot open shared object file" and "in _load" in failure.trace
    assert [path.name for path in job.iterdir()] == ["RUNNING"], "its directory goes with it"


def test_a_slot_that_is_started_after_the_end_does_nothing(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark_over(job)
    monkeypatch.setattr(slot_process, "Slot", None)
    run_slot(0, config_of(job))
    assert [path.name for path in job.iterdir()] == ["OVER"]


def end_in_the_middle(job: Path, monkeypatch: pytest.MonkeyPatch, removed: bool) -> None:
    """The job ends when the slot has made its directory and has not used it."""

    def make(job_id: str, index: int, base: str | None) -> Scratch:
        made = make_scratch(job_id, index, base)
        mark_over(job)
        if removed:
            shutil.rmtree(job)
        return made

    monkeypatch.setattr(slot_process, "make_scratch", make)


def test_a_slot_that_meets_the_end_ends_with_it(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_in_the_middle(job, monkeypatch, removed=False)
    run_slot(0, config_of(job))
    assert [path.name for path in job.iterdir()] == ["OVER"], "the driver may still need what is in there"


def test_a_slot_that_made_the_removed_directory_again_removes_it(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_in_the_middle(job, monkeypatch, removed=True)

    def run(slot: slot_module.Slot) -> None:
        (slot._scratch / "replica").mkdir(parents=True)
        raise CoordinatorLost("the job is over")

    monkeypatch.setattr(slot_module.Slot, "run", run)
    run_slot(0, config_of(job))
    assert not job.exists()


def test_a_slot_that_fails_while_the_job_runs_leaves_its_files_to_the_next_process(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, expired = CoordinatorLost("the driver has closed the stream"), slot_module.SessionGone("expired")
    dead = {"driver": (os.getpid(), 0.0)}
    elsewhere = {"directory": None}
    lives: list[tuple[bool, Exception, dict[str, Any], bool, bool]] = [
        # welcomed, failure, of the configuration, the last start, whether its files stay
        (True, expired, {}, False, True),
        (True, lost, {}, False, True),
        (False, lost, {}, True, True),
        (True, lost, dead, False, False),
        (True, expired, elsewhere, False, True),
        (False, lost, elsewhere, False, True),
        (False, lost, elsewhere, True, False),
        (True, lost, elsewhere, False, False),
    ]
    options = options_from({}, {"parallelism": 2, "recovery": "standby"})
    base = replace(config_of(job), slots=2, options=options, plan=pickle.dumps(graph_of(1, 1)))
    names: set[str] = set()
    taken: list[set[str]] = []
    for number, (welcomed, error, fields, last, stays) in enumerate(lives, start=1):

        def run(slot: slot_module.Slot, number=number, welcomed=welcomed, error=error) -> None:
            slot.welcomed = welcomed
            taken.append({path.name for path in slot._scratch.glob("count/left/*.sst")})
            assert slot._failover is not None
            slot._failover.standbys.form({"count": (1, (1, 0))})
            slot._failover.standbys._pool.submit(lambda: None).result()  # type: ignore[attr-defined]
            (slot._scratch / f"count/replica/1-{number}-1.sst").write_bytes(b"state")
            raise error

        monkeypatch.setattr(slot_module.Slot, "run", run)
        other = make_scratch("id", 1, str(job))  # of a dead process, whose successor starts at this moment
        other.close()
        with pytest.raises(FlinkPlusError):
            run_slot(0, replace(base, **fields), ProcessStart(last=last))
        assert taken[-1] == names, "each takes over what the one before it left"
        names = {*names, f"1-{number}-1.sst"} if stays else set()
        assert {path.name for path in job.glob("*slot-0-*/count/*/*.sst")} == names
        assert len(list(job.glob("*slot-0-*"))) == stays
        assert other.path.exists() == stays


def test_the_driver_waits_for_slots_that_live(job: Path) -> None:
    wait_for_slots("id", job / "nowhere", 60.0)
    (job / "flinkplus-id-slot-0-4194999-dead").mkdir()
    wait_for_slots("id", job, 60.0)
    made = make_scratch("id", 1, str(job))
    threading.Timer(0.1, remove_scratch, (made,)).start()
    wait_for_slots("id", job, 60.0)
    assert not made.path.exists()
    made = make_scratch("id", 1, str(job))
    began = time.monotonic()
    wait_for_slots("id", job, 0.05)
    assert 0.05 <= time.monotonic() - began < 30.0
    remove_scratch(made)


def test_a_snapshot_that_waits_for_its_turn_when_the_slot_closes_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    inbox: Inbox[SnapshotWritten] = Inbox()
    workers = SlotWorkers(0.0, inbox.put)
    name, generation = SubtaskId("count", 0), Generation(1)
    begun, end = threading.Event(), threading.Event()
    workers.persist(generation, name, CheckpointId(1), lambda: (begun.set(), end.wait(), START)[-1])  # type: ignore[func-returns-value]
    workers.persist(generation, name, CheckpointId(2), lambda: START)
    assert begun.wait(30)
    threading.Timer(0.05, end.set).start()
    workers.close()
    assert inbox.get_nowait().checkpoint == 1
    assert inbox.empty()
    assert not caplog.records
