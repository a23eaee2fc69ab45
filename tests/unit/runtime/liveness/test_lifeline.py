"""The lifeline of a process: cut the moment it dies, and no burden while it lives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.liveness.lifeline import Lifeline, LifelineCut, Lifelines
from flinkplus.runtime.transport.auth.credentials import Credentials

CREDENTIALS = Credentials(b"secret")
HOLDER = """
import sys, time
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.liveness.lifeline import Lifeline
memory = bytearray(200 << 20)
lifeline = Lifeline()
print(lifeline.open(sys.argv[1], Credentials(sys.argv[2].encode()), sys.argv[3]), flush=True)
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a thread's own files are Linux's")


class Driver:
    def __init__(self) -> None:
        self.inbox: Inbox[Any] = Inbox()
        self.cuts: list[LifelineCut] = []
        self.lifelines = Lifelines("127.0.0.1", CREDENTIALS, self.inbox, self.cuts.append)
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self.inbox.sleep(0.01)

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self.lifelines.close()
        self.inbox.close()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.005)


def test_it_is_cut_when_the_process_is_killed(driver: Driver) -> None:
    arguments = [sys.executable, "-c", HOLDER, driver.lifelines.address, "secret", "slot-3"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        time.sleep(0.1)
        assert driver.cuts == []
        killed_s = time.time()
        holder.send_signal(signal.SIGKILL)
        until(lambda: bool(driver.cuts))
    (cut,) = driver.cuts
    assert cut.name == "slot-3" and killed_s <= cut.time_s


def test_closing_it_ends_its_thread(driver: Driver) -> None:
    before = threading.active_count()
    lifeline = Lifeline()
    assert lifeline.open(driver.lifelines.address, CREDENTIALS, "a")
    assert threading.active_count() == before + 1
    lifeline.close()
    assert threading.active_count() == before
    until(lambda: [cut.name for cut in driver.cuts] == ["a"])
    lifeline.close()


def test_one_that_the_driver_drops_is_not_told(driver: Driver) -> None:
    lifeline = Lifeline()
    assert lifeline.open(driver.lifelines.address, CREDENTIALS, "a")
    driver.inbox.call_soon(lambda: driver.lifelines.drop("a"))
    thread = lifeline._thread
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
    lifeline.close()
    assert driver.cuts == []


@pytest.mark.parametrize(("address", "secret"), [("", b"secret"), (None, b"wrong"), ("127.0.0.1:1", b"secret")])
def test_without_a_lifeline_there_is_no_thread(driver: Driver, address: str | None, secret: bytes) -> None:
    before, files = threading.active_count(), set(os.listdir("/proc/self/fd"))
    lifeline = Lifeline()
    assert not lifeline.open(driver.lifelines.address if address is None else address, Credentials(secret), "a")
    assert threading.active_count() == before
    until(lambda: set(os.listdir("/proc/self/fd")) <= files)


def test_its_thread_holds_no_file_of_others(driver: Driver) -> None:
    one, other = socket.socketpair()
    lifeline = Lifeline()
    assert lifeline.open(driver.lifelines.address, CREDENTIALS, "a")
    one.close()
    other.settimeout(60)
    assert other.recv(1) == b"", "the end that was closed here is closed"
    other.close()
    lifeline.close()


def test_nobody_else_can_take_a_name(driver: Driver) -> None:
    first, second = Lifeline(), Lifeline()
    assert first.open(driver.lifelines.address, CREDENTIALS, "a")
    assert not second.open(driver.lifelines.address, CREDENTIALS, "a")
    assert driver.cuts == []
    first.close()
