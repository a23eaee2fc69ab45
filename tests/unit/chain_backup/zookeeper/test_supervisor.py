"""A server that dies is started again, sooner or later, as often as it takes, and not after the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from chain_backup.zookeeper import supervisor as module
from chain_backup.zookeeper.errors import ZooKeeperStartError
from chain_backup.zookeeper.supervisor import Supervisor


class FakeServer:
    """``refusals``: of the next starts; ``hold``: they wait until the server is needed no more. ``hangs``: it does not
    answer, and ``slow_answers``: so many times."""

    def __init__(self) -> None:
        self.alive = True
        self.hangs = False
        self.works = False
        self.slow_answers = 0
        self.asked: list[float] = []
        self.end = "was killed by signal 9; its log ends with:\n  (nothing)"
        self.refusals = 0
        self.hold = False
        self.starts = 0
        self.needed = True
        self.starting = threading.Event()

    @property
    def processor_s(self) -> float:
        return time.monotonic() if self.works else 0.0

    def responds(self, timeout_s: float) -> bool:
        self.asked.append(timeout_s)
        if self.slow_answers:
            self.slow_answers -= 1
            return False
        if self.hangs and self.needed:
            time.sleep(timeout_s)
        return not self.hangs

    def restart(self) -> str:
        self.starts += 1
        self.starting.set()
        while self.hold and self.needed:
            time.sleep(0.001)
        if not self.needed or self.refusals:
            self.refusals -= 1
            raise ZooKeeperStartError("no such jar\n  at all")
        self.alive = True
        self.hangs = False
        return "127.0.0.1:1"

    def need_no_more(self) -> None:
        self.needed = False


class Watched:
    """A server under supervision, and what was said of it."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.said: list[str] = []
        self.supervisor = Supervisor(self.server, self.said.append, lambda: self.said.append("back"))  # type: ignore[arg-type]
        self.supervisor.start()

    def die(self) -> None:
        self.server.alive = False

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.001)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(module, "ASK_S", 0.001)
    monkeypatch.setattr(module, "HANG_S", 0.02)
    monkeypatch.setattr(module, "LONGEST_HANG_S", 0.1)
    made = Watched()
    yield made
    made.supervisor.close()
    assert not made.supervisor._thread.is_alive()


def test_a_server_that_dies_is_started_again_at_once(watched: Watched) -> None:
    watched.die()
    watched.until(lambda: watched.said == ["back"])
    assert watched.server.alive and watched.supervisor.restarts == 1


def test_one_that_dies_young_again_is_down_for_a_while(watched: Watched) -> None:
    watched.die()
    watched.until(lambda: watched.said == ["back"])
    watched.die()
    watched.until(lambda: watched.said[1:] == ["its server is down: was killed by signal 9", "back"])
    assert watched.supervisor.restarts == 2


def test_one_that_has_lived_long_enough_is_worth_waiting_for(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "YOUNG_S", 0.0)
    for deaths in range(1, 4):
        watched.die()
        watched.until(lambda deaths=deaths: watched.said == ["back"] * deaths)  # type: ignore[misc]


def test_one_that_cannot_be_started_is_tried_again_and_nobody_waits_for_it(watched: Watched) -> None:
    watched.server.refusals = 3
    watched.die()
    watched.until(lambda: "back" in watched.said)
    assert watched.said == ["its server is down: ZooKeeperStartError: no such jar"] * 3 + ["back"]
    assert (watched.server.starts, watched.supervisor.restarts) == (4, 1)


def test_pauses_double_up_to_a_limit(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    waited = watched.supervisor._closing.wait

    def wait(for_s: float) -> bool:
        if for_s > module.LOOK_S:
            paused.append(for_s)
        return waited(0.001)

    monkeypatch.setattr(watched.supervisor._closing, "wait", wait)
    watched.server.refusals = 5
    watched.die()
    watched.until(lambda: "back" in watched.said)
    assert paused == [0.01, 0.02, 0.02, 0.02, 0.02]


def test_the_end_does_not_wait_for_a_start(watched: Watched) -> None:
    watched.server.hold = True
    watched.die()
    assert watched.server.starting.wait(60)
    watched.supervisor.close()
    assert not watched.server.alive and "back" not in watched.said


def test_a_server_that_hangs_is_started_again(watched: Watched) -> None:
    watched.until(lambda: len(watched.server.asked) > 3)
    assert watched.said == []
    watched.server.hangs = True
    watched.until(lambda: watched.said == ["back"])
    assert watched.server.alive and not watched.server.hangs and watched.supervisor.restarts == 1


def test_one_that_works_but_does_not_answer_is_given_the_longest_time(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_HANG_S", 3600.0)
    watched.server.works = watched.server.hangs = True
    asked = len(watched.server.asked)
    watched.until(lambda: len(watched.server.asked) > asked + 10)
    assert watched.supervisor.restarts == 0
    watched.server.works = False
    watched.until(lambda: watched.supervisor.restarts == 1)


def test_one_slow_answer_is_no_hang(watched: Watched) -> None:
    for _ in range(20):
        asked = len(watched.server.asked)
        watched.server.slow_answers = 1
        watched.until(lambda asked=asked: len(watched.server.asked) >= asked + 3)  # type: ignore[misc]
    assert watched.said == [] and watched.supervisor.restarts == 0


def test_however_slow_the_machine_is_patience_grows_and_the_server_is_not_replaced_time_and_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for restarts in range(1, 6):
        watched.server.hangs = True
        watched.until(lambda restarts=restarts: watched.said.count("back") == restarts)  # type: ignore[misc]
    waits = sorted({round(wait_s, 3) for wait_s in watched.server.asked})
    assert waits == [0.01, 0.02, 0.04, 0.05], "half of the patience each"
    monkeypatch.setattr(module, "FORGOTTEN_S", 0.0)
    asked = len(watched.server.asked)
    watched.until(lambda: 0.01 in watched.server.asked[asked:])


def test_the_end_does_not_wait_for_a_server_that_hangs(watched: Watched) -> None:
    watched.server.hangs = True
    watched.server.hold = True
    watched.until(watched.server.starting.is_set)
    watched.supervisor.close()
    assert "back" not in watched.said
