"""Calls of users' functions: several at a time, each only for so long, and again after errors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import pytest

from flinkplus.operators.base.row import Row, make_row, row_type
from flinkplus.operators.calls.caller import Caller, CallSettings, Outcome, is_coroutine_function

WAIT_S = 20.0


def row(n: int) -> Row:
    return make_row(row_type(("n",)), (n,))


@contextmanager
def calling(
    function: Callable[[Any], Any], timeout_s: float | None = None, retries: int = 0, capacity: int = 4
) -> Iterator[tuple[Caller, Callable[[int], dict[int, Outcome]]]]:
    """A caller, and what gives its next outcomes, by number."""
    came: Queue[Outcome] = Queue()
    caller = Caller(function, CallSettings(timeout_s, retries, 0.001, capacity), came.put, "test calls")

    def outcomes(count: int) -> dict[int, Outcome]:
        return {one.number: one for one in (came.get(timeout=WAIT_S) for _ in range(count))}

    try:
        yield caller, outcomes
    finally:
        caller.close()


async def double(given: Any) -> int:
    await asyncio.sleep(0)
    return 2 * int(given.n)


def plain_double(given: Any) -> int:
    return 2 * int(given.n)


class Doubler:
    async def __call__(self, given: Any) -> int:
        return await double(given)


@pytest.mark.parametrize("function", [double, plain_double, Doubler()])
def test_every_row_gets_its_answer(function: Callable[[Any], Any]) -> None:
    with calling(function) as (caller, outcomes):
        caller.call([(n, row(n)) for n in range(50)])
        caller.call([(n, row(n)) for n in range(50, 60)])
        assert {number: one.value for number, one in outcomes(60).items()} == {n: 2 * n for n in range(60)}


def test_coroutine_functions_are_known() -> None:
    assert is_coroutine_function(double) and is_coroutine_function(Doubler())
    assert not is_coroutine_function(plain_double)


@pytest.mark.parametrize("is_async", [True, False])
def test_as_many_calls_as_the_capacity_are_under_way(is_async: bool) -> None:
    lock, under_way, most = threading.Lock(), 0, 0
    all_here = threading.Event()

    def enters(by: int) -> None:
        nonlocal under_way, most
        with lock:
            under_way += by
            most = max(most, under_way)
            if under_way == 4:
                all_here.set()

    def plain(given: Any) -> int:
        enters(1)
        all_here.wait(WAIT_S)
        enters(-1)
        return 0

    async def coroutine(given: Any) -> int:
        enters(1)
        while not all_here.is_set():
            await asyncio.sleep(0.001)
        enters(-1)
        return 0

    with calling(coroutine if is_async else plain) as (caller, outcomes):
        caller.call([(n, row(n)) for n in range(12)])
        assert len(outcomes(12)) == 12
    assert most == 4


@pytest.mark.parametrize("is_async", [True, False])
def test_a_call_that_fails_is_made_again(is_async: bool) -> None:
    calls: list[int] = []

    def plain(given: Any) -> int:
        calls.append(given.n)
        if calls.count(given.n) <= given.n:
            raise ValueError(f"not yet {given.n}")
        return 0

    async def coroutine(given: Any) -> int:
        return plain(given)

    with calling(coroutine if is_async else plain, retries=2) as (caller, outcomes):
        caller.call([(n, row(n)) for n in range(4)])
        found = outcomes(4)
    assert [found[n].error is None for n in range(4)] == [True, True, True, False]
    assert (found[3].error or "").startswith("ValueError: not yet 3")
    assert [calls.count(n) for n in range(4)] == [1, 2, 3, 3]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_call_that_takes_too_long_has_failed_and_holds_up_no_other(is_async: bool) -> None:
    over = threading.Event()

    def plain(given: Any) -> int:
        if given.n % 2:
            over.wait(WAIT_S)
        return 7

    async def coroutine(given: Any) -> int:
        if given.n % 2:
            await asyncio.sleep(WAIT_S)
        return 7

    begun = time.monotonic()
    with calling(coroutine if is_async else plain, timeout_s=0.05, capacity=2) as (caller, outcomes):
        caller.call([(n, row(n)) for n in range(6)])
        found = outcomes(6)
        over.set()
    assert [found[n].value for n in (0, 2, 4)] == [7, 7, 7]
    assert [found[n].error for n in (1, 3, 5)] == ["TimeoutError: no answer within 0.05 s"] * 3 or all(
        (found[n].error or "").startswith("TimeoutError: no answer within 0.05 s") for n in (1, 3, 5)
    )
    assert time.monotonic() - begun < WAIT_S


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (asyncio.CancelledError(), "CancelledError"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(), "StopIteration"),
        (Mute(), "Mute: (no text: its __str__ raises ValueError)"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_whatever_a_function_raises_is_an_error_of_its_row(raised: BaseException, message: str, is_async: bool) -> None:
    def plain(given: Any) -> int:
        if given.n == 0:
            raise raised
        return 7

    async def coroutine(given: Any) -> int:
        return plain(given)

    with calling(coroutine if is_async else plain) as (caller, outcomes):
        caller.call([(n, row(n)) for n in range(2)])
        found = outcomes(2)
    assert message in (found[0].error or "")
    assert found[1].value == 7


def test_a_plain_function_that_returns_a_coroutine_is_an_error_of_its_row() -> None:
    def awaits(given: Any) -> Any:
        return asyncio.sleep(0)

    with calling(awaits) as (caller, outcomes):
        caller.call([(0, row(0))])
        assert "async def" in (outcomes(1)[0].error or "")


def test_pauses_stay_numbers_after_any_number_of_attempts() -> None:
    async def fails(given: Any) -> int:
        raise ValueError

    came: Queue[Outcome] = Queue()
    caller = Caller(fails, CallSettings(None, 1_100, 0.0, 1), came.put, "test calls")
    try:
        caller.call([(0, row(0))])
        assert (came.get(timeout=WAIT_S).error or "").startswith("ValueError")
    finally:
        caller.close()


def test_close_cancels_calls_and_ends_the_threads() -> None:
    begun = threading.Event()
    cleaned = threading.Event()

    async def waits(given: Any) -> int:
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            cleaned.set()
        return 0

    with calling(waits) as (caller, _):
        caller.call([(0, row(0))])
        assert begun.wait(WAIT_S)
    assert cleaned.wait(WAIT_S)
