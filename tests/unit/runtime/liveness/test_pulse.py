"""Pulses: whom the driver gives up, and when it does not; the process that sends them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from flinkplus.protocol.liveness.pulses import MAX_NAMES, PulsedSlot
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.liveness import pulse as pulse_module
from flinkplus.runtime.liveness.pulse import Pulse, Pulses, pulse_key
from flinkplus.runtime.liveness.pulse_process import datagram, is_stopped
from flinkplus.runtime.transport.tcp.connections import parse_address

SECRET = b"a secret"
KEY = pulse_key(SECRET)
TIMEOUT_S = 0.4
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the filter and the count are Linux's")


class Clock:
    """Time as the test sets it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


class Driver:
    """The driver's end; the loop turns every 50 ms, as it does when other things happen."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.inbox: Inbox[object] = Inbox()
        self.pulses = Pulses("127.0.0.1", SECRET, TIMEOUT_S, self.inbox, self.clock)
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.count = 0

    def hear(self, *names: str, key: bytes = KEY) -> None:
        self.count += 1
        for name in names:
            self.send(datagram(name, self.count, key))

    def send(self, data: bytes) -> None:
        host, port = self.pulses.address.split(":")
        self.out.sendto(data, (host, int(port)))
        self.inbox.sleep(0.02)  # less, when it is taken in

    def silent(self, names: str) -> list[str]:
        return self.pulses.silent([PulsedSlot(name) for name in names])

    def turns(self, span_s: float, names: str, heard: str = "") -> list[str]:
        """Let time pass, ``heard`` beating; the first answer that says somebody is silent."""
        end_s = self.clock.now_s + span_s
        while self.clock.now_s < end_s - 1e-9:
            self.clock.now_s += 0.05
            self.hear(*heard)
            silent = self.silent(names)
            if silent:
                return silent
        return []

    def close(self) -> None:
        self.out.close()
        self.pulses.close()
        self.inbox.close()


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def test_who_is_silent_is_given_up_in_time(driver: Driver) -> None:
    driver.hear(*"abcd")
    assert driver.turns(1.0, "abcd", "abcd") == []
    began_s = driver.clock.now_s
    assert driver.turns(1.0, "abcd", "acd") == ["b"]
    assert driver.clock.now_s - began_s <= TIMEOUT_S + 0.051
    driver.pulses.forget("b")
    assert driver.turns(1.0, "abcd", "acd") == [], "of whom there is no pulse, heartbeats tell"


def test_two_hosts_of_four_are_given_up_at_once(driver: Driver) -> None:
    driver.hear(*"abcd")
    assert driver.turns(1.0, "abcd", "ac") == ["b", "d"]


@pytest.mark.parametrize("heard", ["", "a"])
def test_when_most_are_late_nobody_is_given_up(driver: Driver, heard: str) -> None:
    driver.hear(*"abcd")
    assert driver.turns(5.0, "abcd", heard) == []


def test_what_the_loop_has_missed_itself_does_not_count(driver: Driver) -> None:
    driver.hear(*"abcd")
    driver.clock.now_s += 5.0
    driver.hear(*"acd")
    assert driver.silent("abcd") == []
    assert driver.turns(1.0, "abcd", "acd") == ["b"]


def test_what_waits_in_the_socket_was_in_time(driver: Driver) -> None:
    driver.hear(*"abcd")
    assert driver.turns(0.35, "abcd", "acd") == []
    driver.count += 1
    host, port = driver.pulses.address.split(":")
    driver.out.sendto(datagram("b", driver.count, KEY), (host, int(port)))
    for _ in range(2):  # the loop turns without a look at its sockets: other events wait
        driver.clock.now_s += 0.04
        assert driver.silent("abcd") == []


def test_strangers_and_repetitions_are_not_believed(driver: Driver) -> None:
    driver.hear(*"abcd")
    old = datagram("b", 1, KEY)
    for _ in range(7):
        driver.clock.now_s += 0.05
        driver.hear(*"acd")
        driver.hear("b", key=pulse_key(b"guessed"))
        driver.send(old)
        assert driver.silent("abcd") == []
    for data in (b"x", b"\0" * 40, old[:-1], old + b"x", os.urandom(100), os.urandom(1000)):
        driver.send(data)
    assert driver.turns(0.2, "abcd", "acd") == ["b"]
    assert driver.pulses.refused == 7 + 7 + 6


FORGED = (b"x", b"x" * 40, pulse_key(b"guessed") * 3, b"x" * 9000)


def flood(driver: Driver, data: bytes) -> None:
    """More than a socket's buffer takes, before the driver's loop turns."""
    address = parse_address(driver.pulses.address)
    for _ in range(1000):
        driver.out.sendto(data, address)


@linux
@pytest.mark.parametrize("data", FORGED, ids=len)
def test_a_flood_takes_no_pulses_place(driver: Driver, data: bytes) -> None:
    driver.hear(*"abcd")
    for _ in range(8):
        flood(driver, data)
        assert driver.turns(0.05, "abcd", "acd") == []
    assert driver.turns(0.05, "abcd", "acd") == ["b"], "who is silent is noticed all the same"
    assert driver.pulses.refused == 8000


@pytest.mark.parametrize("data", [*FORGED, datagram("b", 1, KEY)], ids=len)
def test_where_a_flood_comes_through_silence_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Of who has heard a pulse and repeats it; of anybody where the kernel has no filter."""
    monkeypatch.setattr(pulse_module, "_attach_filter", lambda _sock, _begin: False)
    driver = Driver()
    try:
        driver.hear(*"abcd")
        for _ in range(20):
            flood(driver, data)
            assert driver.turns(0.05, "abcd", "a") == []
        driver.turns(0.05, "abcd", "acd")
        assert driver.turns(TIMEOUT_S + 0.1, "abcd", "acd") == ["b"], "the crowd has gone"
        assert driver.pulses.refused > 1000 and len(caplog.records) < 20
    finally:
        driver.close()


@linux
def test_the_kernel_takes_a_filter() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert pulse_module._attach_filter(sock, b"12345678")


def test_names_are_bounded(driver: Driver) -> None:
    for number in range(MAX_NAMES + 10):
        assert driver.pulses._accepted(datagram(str(number), 1, KEY))
    assert len(driver.pulses.rule._last) == MAX_NAMES


def test_who_does_not_hear_the_driver_is_given_up(driver: Driver) -> None:
    driver.hear(*"abcd")
    assert driver.turns(TIMEOUT_S + 0.1, "abcd", "abcd") == []
    driver.count += 1
    driver.send(datagram("b", driver.count, KEY, deaf=True))
    assert driver.pulses.is_doubtful("b") and not driver.pulses.is_doubtful("a")
    assert driver.silent("abcd") == ["b"]
    driver.hear("b")
    assert driver.silent("abcd") == [], "it hears again"


def test_when_most_do_not_hear_the_driver_nobody_is_given_up(driver: Driver) -> None:
    driver.hear(*"abc")
    driver.count += 1
    for name in "bc":
        driver.send(datagram(name, driver.count, KEY, deaf=True))
    assert driver.turns(2.0, "abc", "a") == []


def test_one_that_may_be_about_to_be_late_is_doubtful(driver: Driver) -> None:
    driver.hear(*"ab")
    assert driver.turns(TIMEOUT_S / 2 + 0.06, "ab", "a") == []
    assert driver.pulses.is_doubtful("b") and not driver.pulses.is_doubtful("a")
    assert not driver.pulses.is_doubtful("nobody")


def heard(driver: Driver, name: str) -> int:
    """The number of the last pulse."""
    driver.inbox.sleep(0.02)
    last = driver.pulses.rule._last.get(name)
    return 0 if last is None else last.number


def until(driver: Driver, name: str, number: int) -> None:
    deadline = time.monotonic() + 60
    while heard(driver, name) < number:
        assert time.monotonic() < deadline, f"pulse {number} has not come"


def test_the_process_sends_until_it_is_closed(driver: Driver) -> None:
    pulse = Pulse()
    pulse.open(driver.pulses.address, SECRET, "slot", 0.1)
    until(driver, "slot", 3)
    for deaf in (True, False, True):
        pulse.tell(deaf)
        deadline = time.monotonic() + 60
        while driver.pulses.is_doubtful("slot") is not deaf:
            heard(driver, "slot")
            assert time.monotonic() < deadline
    (process,) = [p for p in psutil.Process().children() if "ORDER_BYTES" in " ".join(p.cmdline())]
    assert KEY.hex() not in " ".join(process.cmdline())
    pulse.close()
    assert not process.is_running()
    pulse.close()
    pulse.tell(True)


SLOT = """\
import signal, sys
from flinkplus.runtime.liveness.pulse import Pulse
pulse = Pulse()
pulse.open(sys.argv[1], sys.argv[2].encode(), "slot", 0.1)
print("open", flush=True)
signal.pause()
"""


def test_the_pulse_of_a_slot_that_is_stopped_says_so_and_one_that_is_killed_has_none(driver: Driver) -> None:
    with subprocess.Popen([sys.executable, "-c", SLOT, driver.pulses.address, SECRET], stdout=subprocess.PIPE) as slot:
        assert slot.stdout is not None and slot.stdout.readline() == b"open\n"
        until(driver, "slot", 2)
        (child,) = psutil.Process(slot.pid).children()
        slot.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while not is_stopped(slot.pid):
            assert time.monotonic() < deadline
        until(driver, "slot", heard(driver, "slot") + 2)  # one may have been on its way
        for _ in range(9):
            driver.clock.now_s += 0.05
            until(driver, "slot", heard(driver, "slot") + 1)
            driver.silent("")  # the loop has turned
        slots = [PulsedSlot("slot")]
        assert driver.pulses.silent(slots) == [], "nobody can take its place"
        assert driver.pulses.silent(slots, [[]]) == [] and driver.pulses.silent(slots, []) == ["slot"]
        slot.send_signal(signal.SIGCONT)
        until(driver, "slot", heard(driver, "slot") + 2)
        assert driver.pulses.silent(slots, []) == []
        slot.kill()
        psutil.wait_procs([child], 10)
        assert not child.is_running()
