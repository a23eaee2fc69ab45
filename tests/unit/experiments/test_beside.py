"""Work beside the main thread: its results, its errors, and its end on Ctrl-C."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Generator

import pytest

from experiments.harness.beside import beside


def test_results_in_order_from_one_other_thread() -> None:
    threads = set()

    def work() -> Generator[int, None, None]:
        for number in range(3):
            threads.add(threading.current_thread())
            yield number

    assert list(beside(work(), lambda: None)) == [0, 1, 2]
    assert len(threads) == 1 and threading.current_thread() not in threads


def test_an_error_is_the_callers() -> None:
    def work() -> Generator[int, None, None]:
        yield 1
        raise TimeoutError("for this test")

    got = []
    with pytest.raises(TimeoutError, match="for this test"):
        for item in beside(work(), lambda: None):
            got.append(item)
    assert got == [1]


class Torn(Exception):
    """What a handler of another library raises."""


@pytest.mark.parametrize("raised", [KeyboardInterrupt, Torn])
def test_an_interrupt_waits_for_the_end_of_the_work(
    raised: type[BaseException],
) -> None:
    stopped, ended = threading.Event(), threading.Event()

    def handler(_number: int, _frame: object) -> None:
        raise raised

    before = signal.signal(signal.SIGINT, handler)

    def work() -> Generator[int, None, None]:
        yield 1
        _thread.interrupt_main()
        stopped.wait()
        ended.set()
        raise RuntimeError("interrupted")

    try:
        with pytest.raises(raised):
            list(beside(work(), stopped.set))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()


def test_work_that_is_not_asked_for_more_is_closed_in_its_thread() -> None:
    closed_in = []

    def work() -> Generator[int, None, None]:
        try:
            yield 1
            yield 2
        finally:
            closed_in.append(threading.current_thread())

    with pytest.raises(KeyboardInterrupt):
        for _ in beside(work(), lambda: None):
            raise KeyboardInterrupt
    assert len(closed_in) == 1 and closed_in[0] is not threading.current_thread()
