"""Faults on order, in a slot: what is held comes through later, what is stopped goes on, only who is meant fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flinkplus.errors import InjectedFailure
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.faults.injections import DRIVER, Injections, pause_process
from flinkplus.runtime.liveness.pulse import Pulse
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.tcp.control import TcpControlLink, TcpRendezvous
from flinkplus.runtime.transport.tcp.data import TcpDataPlane
from flinkplus.runtime.transport.wire.ports import ControlArrived, FrameArrived, PeerConnected

CREDENTIALS = Credentials(b"secret")
HOST = "127.0.0.1"


class Slots:
    """Two data planes, and a control link of slot 0 to a driver, in one loop."""

    def __init__(self) -> None:
        self.inbox: Inbox[Any] = Inbox()
        self.heard: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        self.planes = [TcpDataPlane(slot, CREDENTIALS, HOST, self.inbox, self.heard[slot].append) for slot in (0, 1)]
        addresses = [plane.start() for plane in self.planes]
        for plane in self.planes:
            plane.incarnation = 1
        self.planes[0].connect({1: (1, addresses[1])})
        self.planes[1].connect({0: (1, addresses[0])})
        self.rendezvous = TcpRendezvous(HOST, CREDENTIALS, self.inbox, self.heard[2].append)
        self.link = TcpControlLink(0, self.rendezvous.start(), CREDENTIALS, 60.0, self.inbox, lambda _event: None)
        self.link.open()
        self.addresses = addresses
        self.until(lambda: all(any(isinstance(e, PeerConnected) for e in self.heard[slot]) for slot in (0, 1)))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            self.inbox.sleep(0.01)

    def for_a_while(self, seconds: float = 0.05) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.inbox.sleep(0.01)

    def send(self, slot: int, data: bytes) -> None:
        self.planes[slot].send(1 - slot, [data])
        self.planes[slot].flush()

    def frames(self, slot: int) -> list[bytes]:
        return [bytes(event.frame) for event in self.heard[slot] if isinstance(event, FrameArrived)]

    def reports(self) -> list[Any]:
        return [event.message for event in self.heard[2] if isinstance(event, ControlArrived)]

    def close(self) -> None:
        self.link.close()
        self.rendezvous.close()
        for plane in self.planes:
            plane.close()
        self.inbox.close()


@pytest.fixture
def slots() -> Iterator[Slots]:
    made = Slots()
    yield made
    made.close()


class Subtask:
    def __init__(self, name: str, index: int) -> None:
        self.id = SubtaskId(name, index)


def guarded(failures: list[Exception]) -> Callable[..., None]:
    def guard(_subtask: Any, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except InjectedFailure as error:
            failures.append(error)

    return guard


def no_guard(*_: Any) -> None:
    raise AssertionError("nothing was to fail")


def no_kill(*_: Any) -> None:
    raise AssertionError("nobody was to be killed")


def test_who_is_cut_off_hears_and_says_nothing_and_afterwards_all_of_it(slots: Slots) -> None:
    cut = Injections([slots.planes[0], slots.link], Pulse(), slots.inbox, no_kill)
    slots.send(0, b"before")
    slots.until(lambda: slots.frames(1) == [b"before"])
    cut.obey(control.Inject("cut", [], for_s=0.2), [], no_guard)
    begun = time.monotonic()
    slots.send(0, b"out")
    slots.send(1, b"in")
    slots.link.send(control.Stopped())
    slots.for_a_while(0.1)
    assert slots.frames(1) == [b"before"] and slots.frames(0) == [] and slots.reports() == []
    slots.until(lambda: slots.frames(0) == [b"in"] and slots.frames(1) == [b"before", b"out"])
    slots.until(lambda: slots.reports() == [control.Stopped()])
    assert time.monotonic() - begun >= 0.2


def test_who_is_cut_off_takes_no_new_connections_and_makes_none(slots: Slots) -> None:
    slots.planes[0].hold(None)
    slots.planes[1].renew(0, "anew")
    slots.planes[1].connect({0: (1, slots.addresses[0])})
    slots.planes[0].renew(1, "anew")
    slots.planes[0].connect({1: (1, slots.addresses[1])})
    slots.heard[0].clear()
    slots.heard[1].clear()
    slots.for_a_while()
    assert slots.heard[0] == [] and slots.heard[1] == []
    slots.planes[0].release()
    slots.until(lambda: all(any(isinstance(e, PeerConnected) for e in slots.heard[slot]) for slot in (0, 1)))


def test_a_cut_from_one_peer_leaves_the_others(slots: Slots) -> None:
    cut = Injections([slots.planes[0], slots.link], Pulse(), slots.inbox, no_kill)
    cut.obey(control.Inject("cut", [], for_s=0.1, peers=[DRIVER]), [], no_guard)
    slots.send(0, b"out")
    slots.link.send(control.Stopped())
    slots.until(lambda: slots.frames(1) == [b"out"])
    assert slots.reports() == []
    slots.until(lambda: slots.reports() == [control.Stopped()])
    cut.obey(control.Inject("cut", [], for_s=0.1, peers=[1]), [], no_guard)
    slots.send(0, b"more")
    slots.send(1, b"back")
    slots.link.send(control.Stopped())
    slots.until(lambda: len(slots.reports()) == 2)
    assert slots.frames(1) == [b"out"] and slots.frames(0) == []
    slots.until(lambda: slots.frames(1) == [b"out", b"more"] and slots.frames(0) == [b"back"])


def test_a_second_cut_lasts_until_its_own_end(slots: Slots) -> None:
    cut = Injections([slots.planes[0]], Pulse(), slots.inbox, no_kill)
    cut.obey(control.Inject("cut", [], for_s=0.05), [], no_guard)
    cut.obey(control.Inject("cut", [], for_s=0.3), [], no_guard)
    slots.send(0, b"out")
    slots.for_a_while(0.15)
    assert slots.frames(1) == []
    slots.until(lambda: slots.frames(1) == [b"out"])


def test_an_exception_fails_who_is_meant_and_nobody_else() -> None:
    failures: list[Exception] = []
    order = control.Inject("exception", ["count[1]", "gone[0]"])
    active = [Subtask("lines", 1), Subtask("count", 1)]
    Injections([], Pulse(), Inbox(), no_kill).obey(order, active, guarded(failures))
    assert [str(error) for error in failures] == ["an injected exception in count[1]"]


def test_a_kill_waits_for_its_point() -> None:
    armed: list[tuple[str, str]] = []
    kills = Injections([], Pulse(), Inbox(), lambda point, subtask: armed.append((point, subtask)))
    kills.obey(control.Inject("kill", ["count[1]"], point="upload"), [], no_guard)
    assert armed == [("upload", "count[1]")]


def test_slow_steps_wait_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()
    monkeypatch.setattr("flinkplus.runtime.faults.injections.time.monotonic", lambda: now[0])
    monkeypatch.setattr("flinkplus.runtime.faults.injections.time.sleep", slept.append)
    slow = Injections([], Pulse(), Inbox(), no_kill)
    slow.before_step(Subtask("count", 1))
    slow.obey(control.Inject("slow", ["count[1]"], for_s=2.0, delay_s=0.3), [], no_guard)
    for name in ("count", "lines", "count"):
        slow.before_step(Subtask(name, 1))
    now[0] = 102.0
    slow.before_step(Subtask("count", 1))
    assert [delay for delay in slept if delay] == [0.3, 0.3]


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="the system does not report stops to a parent")
def test_a_process_stands_still_and_goes_on() -> None:
    changes: list[tuple[int, float]] = []
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:

        def watch() -> None:
            for change in (os.WSTOPPED, os.WCONTINUED):
                seen = os.waitid(os.P_PID, process.pid, change)
                assert seen is not None
                changes.append((seen.si_code, time.monotonic()))

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        begun = time.monotonic()
        pause_process(process.pid, 0.5)
        watching.join(60)
        process.kill()
    assert [change for change, _ in changes] == [os.CLD_STOPPED, os.CLD_CONTINUED]
    assert changes[1][1] - begun >= 0.5


def test_a_process_can_stop_itself() -> None:
    program = (
        "import os, time; from flinkplus.runtime.faults.injections import pause_process; begun = time.monotonic(); "
        "pause_process(os.getpid(), 0.3); print(time.monotonic() - begun >= 0.3)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "True\n"


def test_whoever_is_not_there_cannot_be_stopped() -> None:
    pause_process(2**22 + os.getpid(), 0.01)
