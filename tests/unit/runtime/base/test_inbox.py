"""The inbox of a loop: events of other threads, calls, sockets."""

from __future__ import annotations

import queue
import socket
import threading
import time

import pytest

from flinkplus.runtime.base.inbox import READ, Inbox


@pytest.fixture
def inbox():
    made: Inbox[int] = Inbox()
    yield made
    made.close()


def test_events_come_in_order_and_a_wait_is_bounded(inbox: Inbox[int]) -> None:
    for event in (1, 2, 3):
        inbox.put(event)
    assert [inbox.get(10), inbox.get_nowait(), inbox.get(10)] == [1, 2, 3]
    assert inbox.empty()
    begun = time.monotonic()
    with pytest.raises(queue.Empty):
        inbox.get(0.05)
    assert 0.04 < time.monotonic() - begun < 5


def test_every_event_of_another_thread_wakes_a_sleeper(inbox: Inbox[int]) -> None:
    count, heard = 3_000, threading.Semaphore(0)

    def put() -> None:
        for event in range(count):
            inbox.put(event)
            heard.acquire(timeout=60)  # so that the loop is on its way to sleep, or asleep, at the next one

    thread = threading.Thread(target=put)
    thread.start()
    for event in range(count):
        assert inbox.get(10) == event
        heard.release()
    thread.join()


def test_a_call_wakes_a_sleeper_and_is_made_once(inbox: Inbox[int]) -> None:
    made: list[int] = []
    thread = threading.Timer(0.05, inbox.call_soon, [lambda: made.append(1)])
    thread.start()
    begun = time.monotonic()
    inbox.sleep(10)
    assert made == [1] and time.monotonic() - begun < 5
    thread.join()
    inbox.poll()
    assert made == [1]


def test_a_socket_forgotten_by_an_earlier_callback_is_not_served(inbox: Inbox[int]) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    served: list[int] = []

    def serve(index: int) -> None:
        served.append(index)
        inbox.forget(pairs[1 - index][0])

    for index, (end, other) in enumerate(pairs):
        inbox.watch(end, READ, lambda _ready, index=index: serve(index))  # type: ignore[misc]
        other.send(b"x")
    inbox.sleep(5)
    assert len(served) == 1
    for pair in pairs:
        for end in pair:
            inbox.forget(end)
            end.close()


def test_what_is_due_later_is_called_in_time_and_wakes_the_loop(inbox: Inbox[int]) -> None:
    called: list[str] = []
    begun = time.monotonic()
    inbox.call_later(0.1, lambda: called.append("later"))
    inbox.call_later(0.02, lambda: called.append("soon"))
    inbox.poll()
    assert called == []
    while len(called) < 2:
        inbox.sleep(30)
    assert called == ["soon", "later"] and 0.09 < time.monotonic() - begun < 5
    begun = time.monotonic()
    inbox.sleep(0.05)
    assert time.monotonic() - begun > 0.04, "nothing is due any more"


def test_who_has_seen_it_asleep_may_wake_it_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop woke for something else in between, and ended."""
    inbox: Inbox[int] = Inbox()
    inbox.sleep(0.0)
    inbox.close()
    monkeypatch.setattr(inbox, "_asleep", True)
    inbox.put(1)
    assert inbox.get_nowait() == 1
