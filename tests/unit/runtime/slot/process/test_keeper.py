"""The keeper of a slot, with real processes and real signals; what the processes do is made up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flinkplus.errors import SlotStartError
from flinkplus.runtime.host.scratch import mark_over, mark_running
from flinkplus.runtime.slot.process import keeper
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.slot.process.keeper import STARTS, keep_slot
from flinkplus.runtime.slot.process.slot import CoordinatorLost
from flinkplus.runtime.slot.process.slot_process import ProcessStart
from tests.unit.runtime.slot.process.test_end_of_slots import config_of

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The own directory of a running job."""
    path = tmp_path / "job"
    path.mkdir()
    mark_running(path)
    return path


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "load", lambda: None)


class Story:
    """What the processes of a slot do, one after the other; each notes its tries in a file."""

    def __init__(self, path: Path, *lives: Callable[[ProcessStart], None]) -> None:
        self._path = path
        self._lives = lives

    def __call__(self, index: int, config: SlotConfig, start: ProcessStart) -> None:
        with self._path.open("a") as file:
            file.write(f"{start.tries}\n")
        self._lives[min(len(self.tries), len(self._lives)) - 1](start)

    @property
    def tries(self) -> list[int]:
        return [int(line) for line in self._path.read_text().splitlines()]


def killed(start: ProcessStart) -> None:
    start.welcomed()
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at_once(start: ProcessStart) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raised(start: ProcessStart) -> None:
    raise OSError("no space left on device")


def raised_later(start: ProcessStart) -> None:
    start.welcomed()
    raise CoordinatorLost("given up")


def ended(start: ProcessStart) -> None:
    """The job is over."""


def test_a_process_that_dies_is_replaced_and_the_task_does_not_fail(job: Path, tmp_path: Path) -> None:
    """However often: Spark's spark.task.maxFailures does not matter."""
    story = Story(tmp_path / "story", *[killed] * 10, raised_later, ended)
    keep_slot(0, config_of(job), story)
    assert story.tries == [0] * 12


class Pauses:
    """Time that passes only where the keeper pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._began_s, self.s = time.monotonic(), 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self._began_s + self.s)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.s += seconds


def test_a_process_that_cannot_start_is_tried_again_later_each_time(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses(monkeypatch)
    story = Story(tmp_path / "story", raised, raised, killed, raised, raised, raised)
    with pytest.raises(SlotStartError, match=f"slot 0 has not started in {STARTS} tries"):
        keep_slot(0, config_of(job), story)
    assert story.tries == [0, 1, 2, 0, 1, 2]
    assert 1 + 1 + 2 <= round(pauses.s, 3) <= 1 + 1 + 2 + 1


@pytest.mark.parametrize(("retries", "least_s", "most_s"), [(0, 3, 4), (1, 4 + 8 + 16, 29), (500, 180, 181)])
def test_it_pauses_longer_when_spark_has_tried_before(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int, least_s: float, most_s: float
) -> None:
    pauses = Pauses(monkeypatch)
    monkeypatch.setattr(keeper, "_spark_attempt", lambda: (7, retries))
    with pytest.raises(SlotStartError):
        keep_slot(0, config_of(job), Story(tmp_path / "story", raised))
    assert least_s <= round(pauses.s, 3) <= most_s


def test_a_pause_ends_with_the_job(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_spark_attempt", lambda: (7, 500))
    threading.Timer(0.2, mark_over, (job,)).start()
    began_s = time.monotonic()
    keep_slot(0, config_of(job), Story(tmp_path / "story", raised))
    assert time.monotonic() - began_s < 30


def test_a_process_that_a_signal_ends_at_its_start_is_reported(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot report that itself, as when a library crashes while it is loaded."""
    Pauses(monkeypatch)
    said = tmp_path / "said"

    def report(index: int, config: SlotConfig, tries: int, error: Exception) -> bool:
        with said.open("a") as file:  # in a process of its own: the keeper opens no connection
            file.write(f"{os.getpid()}|{tries}|{error}\n")
        return True

    monkeypatch.setattr(keeper, "report_failed_start", report)
    keep_slot(0, config_of(job), Story(tmp_path / "story", killed_at_once, killed_at_once, ended))
    pids, tries, reasons = zip(*(line.split("|") for line in said.read_text().splitlines()), strict=True)
    assert str(os.getpid()) not in pids and tries == ("0", "1")
    assert set(reasons) == {"its process was ended by SIGKILL before it had started"}


def test_after_the_end_of_the_job_nothing_is_started(job: Path, tmp_path: Path) -> None:
    mark_over(job)
    keep_slot(0, config_of(job), Story(tmp_path / "story", raised))
    assert not (tmp_path / "story").exists()


def test_after_the_end_of_the_executor_nothing_is_started(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = iter([11, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(keeper, "_end_with", lambda keeper: None)
    story = Story(tmp_path / "story", killed, ended)
    with pytest.raises(CoordinatorLost, match="executor is gone"):
        keep_slot(0, config_of(job), story)
    assert story.tries == [0]


def test_after_the_end_of_the_driver_nothing_is_started_and_the_task_does_not_fail(job: Path, tmp_path: Path) -> None:
    """A failed task would leave a trace in the log of the driver's Java process, which ends as well."""
    driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    created_s = psutil.Process(driver.pid).create_time()

    def killed_after_the_driver(start: ProcessStart) -> None:
        os.kill(driver.pid, signal.SIGKILL)
        while psutil.Process(driver.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)
        killed(start)

    story = Story(tmp_path / "story", killed_after_the_driver, ended)
    try:
        keep_slot(0, replace(config_of(job), driver=(driver.pid, created_s)), story)
    finally:
        driver.communicate()
    assert story.tries == [0]


def test_the_process_has_none_of_the_keepers_connections(job: Path, tmp_path: Path) -> None:
    """Spark would not see the end of a keeper whose connection a process of the slot still holds."""
    ours, spark = socket.socketpair()

    def life(start: ProcessStart) -> None:
        (tmp_path / "sent").write_text("no")
        try:
            ours.send(b"from the slot")
        except OSError:
            (tmp_path / "sent").write_text("refused")

    keep_slot(0, config_of(job), Story(tmp_path / "story", life))
    with ours, spark:
        assert (tmp_path / "sent").read_text() == "refused"
        ours.send(b"from the keeper")
        assert spark.recv(100) == b"from the keeper"


KEEPER = """
import sys, time
from pathlib import Path
from flinkplus.runtime.slot.process import keeper
from tests.unit.runtime.slot.process.test_end_of_slots import config_of

def life(index, config, start):
    start.welcomed()
    (Path(sys.argv[1]) / "there").write_text("")
    time.sleep(600)

keeper.load = lambda: None
keeper.keep_slot(0, config_of(Path(sys.argv[1])), life)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a slot ends when its control stream breaks")
def test_the_process_does_not_outlive_its_keeper(job: Path) -> None:
    """Spark ends a task by killing its worker, which is the keeper."""
    with subprocess.Popen([sys.executable, "-c", KEEPER, str(job)]) as process:
        try:
            while not (job / "there").exists():
                assert process.poll() is None
                time.sleep(0.01)
            (slot,) = psutil.Process(process.pid).children()
        finally:
            process.kill()
    _, left = psutil.wait_procs([slot], 30)
    assert not left
