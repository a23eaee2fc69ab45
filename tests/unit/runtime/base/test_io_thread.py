"""The I/O thread: what is posted is called, all of it and in order, whoever fails."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flinkplus.runtime.base.io_thread import IoThread


async def _nothing() -> None:
    return None


def test_what_is_posted_is_called_in_order_from_every_thread() -> None:
    io, seen = IoThread.get(), list[tuple[int, int]]()
    where: set[str] = set()

    def note(thread: int, number: int) -> None:
        seen.append((thread, number))
        where.add(threading.current_thread().name)

    def post(thread: int) -> None:
        for number in range(2000):
            io.post(note, thread, number)

    threads = [threading.Thread(target=post, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    io.submit(_nothing()).result(60)  # behind all that was posted
    for poster in range(3):
        assert [number for who, number in seen if who == poster] == list(range(2000))
    assert where == {"flinkplus-io"}


def test_what_is_posted_comes_before_what_is_submitted_later() -> None:
    io, seen = IoThread.get(), list[int]()

    async def read() -> int:
        return len(seen)

    for number in range(1, 200):
        io.post(seen.append, number)
        assert io.submit(read()).result(60) == number


def test_one_that_fails_does_not_stop_the_others() -> None:
    io, seen, failures = IoThread.get(), list[int](), list[BaseException]()

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    async def unwatch() -> None:
        asyncio.get_running_loop().set_exception_handler(None)

    def fail() -> None:
        raise ValueError("as planned")

    io.submit(watch()).result(60)
    io.post(fail)
    io.post(seen.append, 1)
    io.submit(unwatch()).result(60)
    assert seen == [1]
    assert [str(failure) for failure in failures] == ["as planned"]


def test_posting_to_a_closed_loop_raises_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    io = IoThread.get()
    monkeypatch.setattr(io, "loop", asyncio.new_event_loop())
    io.loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            io.post(print)
    io._posted.clear()
