"""The instance of ``map_async``: which rows are sent on when, what a snapshot has, and what a successor repeats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import AnswersLost, ConfigurationError, UserFunctionError
from flinkplus.operators.base.operator import Inherited, OperatorContext
from flinkplus.operators.calls.caller import CallSettings
from flinkplus.operators.calls.map_async import MapAsync, _MapAsyncInstance
from flinkplus.operators.rows.rejects import DEAD_LETTERS, tag_of

SCHEMA = pa.schema([("n", pa.int64())])
WAIT_S = 20.0


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


class Outside:
    """Answers when it is allowed to; every call gets another answer."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.allowed: set[int] = set()
        self.calls: list[int] = []

    def allow(self, *numbers: int) -> None:
        with self.changed:
            self.allowed.update(numbers)
            self.changed.notify_all()

    def __call__(self, row: Any) -> dict[str, Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: row.n in self.allowed, WAIT_S)
            self.calls.append(row.n)
            if row.n < 0:
                raise ValueError(f"negative {row.n}")
            return {"n": row.n, "call": len(self.calls)}


class Driven:
    """An instance with what its subtask does with it."""

    def __init__(self, instance: _MapAsyncInstance, location: str | None) -> None:
        self.instance = instance
        self.woken = threading.Condition()
        self.error: Exception | None = None
        self.choices: list[int] = []
        self.location = location

    def begin(self, *repeats: int) -> Driven:
        self.instance.begin(self.location, self._wake)
        self.instance.repeats(repeats)
        return self

    def _wake(self, error: Exception | None) -> None:
        with self.woken:
            self.error = self.error or error
            self.woken.notify_all()

    def until(self, holds: Callable[[], bool]) -> None:
        with self.woken:
            assert self.woken.wait_for(lambda: self.error is not None or holds(), WAIT_S)
            if self.error is not None:
                raise self.error

    def take(self, rows: int) -> list[int]:
        """Take answers until so many rows are sent on; their numbers."""
        found: list[int] = []
        while len(found) < rows:
            self.until(lambda: self.instance.choose() is not None)
            choice = self.instance.choose()
            assert choice is not None
            self.choices.append(choice)
            found += self._taken(choice)
        return found

    def repeat(self, choice: int) -> list[dict[str, Any]]:
        self.until(lambda: self.instance.can_take(choice))
        return [row for batch in self.instance.take(choice) for row in batch.to_pylist()]

    def _taken(self, choice: int) -> list[int]:
        return [n for batch in self.instance.take(choice) for n in batch.column("n").to_pylist()]


@contextmanager
def driven(
    outside: Callable[[Any], Any], location: Path | None = None, saved: Any = None, **settings: Any
) -> Iterator[Driven]:
    capacity = settings.pop("capacity", 100)
    operator = MapAsync("ask", outside, "n long, call long", CallSettings(None, 0, 0.0, capacity), **settings)
    instance = operator.create(OperatorContext("ask", "ask[0]", 0, 1, SCHEMA))
    assert isinstance(instance, _MapAsyncInstance)
    if saved is not None:
        instance.restore(saved)
    try:
        yield Driven(instance, None if location is None else str(location))
    finally:
        instance.close()


def test_rows_go_on_in_the_order_in_which_they_came() -> None:
    outside = Outside()
    with driven(outside) as subtask:
        subtask.begin()
        assert list(subtask.instance.process(batch_of(3, 1, 2))) == []
        subtask.instance.ask()
        outside.allow(1, 2)
        assert subtask.instance.waiting == 3
        outside.allow(3)
        assert subtask.take(3) == [3, 1, 2]
        assert subtask.instance.waiting == 0


def test_or_in_that_of_their_answers() -> None:
    outside = Outside()
    with driven(outside, in_order=False) as subtask:
        subtask.begin().instance.process(batch_of(3, 1, 2))
        subtask.instance.ask()
        found = []
        for number in (2, 3, 1):
            outside.allow(number)
            found += subtask.take(1)
        assert found == [2, 3, 1]


def test_it_is_full_with_as_many_rows_as_its_capacity() -> None:
    outside = Outside()
    with driven(outside, capacity=2) as subtask:
        was_full = []
        for numbers in ((1,), (2, 3)):
            subtask.instance.process(batch_of(*numbers))
            was_full.append(subtask.instance.full)
        subtask.begin().instance.ask()
        outside.allow(1, 2, 3)
        subtask.take(3)
        assert [*was_full, subtask.instance.full] == [False, True, False]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_successor_takes_the_same_answers_and_asks_only_for_the_others(tmp_path: Path, in_order: bool) -> None:
    outside = Outside()
    with driven(outside, tmp_path, in_order=in_order) as first:
        first.begin().instance.process(batch_of(5, 6, 7, 8))
        saved = first.instance.snapshot(1)
        first.instance.ask()
        outside.allow(5)
        first.take(1)
        outside.allow(6)
        first.take(1)
        calls = list(outside.calls)
    with driven(outside, tmp_path, saved, in_order=in_order) as second:
        second.begin(*first.choices)
        assert [second.repeat(choice) for choice in first.choices] == [[{"n": 5, "call": 1}], [{"n": 6, "call": 2}]]
        assert outside.calls == calls, "nothing is asked for while steps are repeated"
        second.instance.ask()
        outside.allow(7, 8)
        assert sorted(second.take(2)) == [7, 8]
        assert set(outside.calls[len(calls) :]) == {7, 8}


def test_after_a_rollback_nothing_that_was_stored_counts(tmp_path: Path) -> None:
    outside = Outside()
    outside.allow(5)
    with driven(outside, tmp_path) as first:
        first.begin().instance.process(batch_of(5))
        saved = first.instance.snapshot(1)
        first.instance.ask()
        first.take(1)
    with driven(outside, tmp_path, saved) as second:
        second.begin().instance.ask()
        second.until(lambda: second.instance.choose() is not None)
        choice = second.instance.choose()
        assert choice == 2, "the number that was used is left out"
        assert second.repeat(choice) == [{"n": 5, "call": 2}]
        second.instance.snapshot(2)
        second.instance.checkpoint_complete(2)
        path = tmp_path / "answers/ask/0"
        for _ in range(2000):
            if not any(path.iterdir()):
                break
            threading.Event().wait(0.01)
        assert not any(path.iterdir()), "what a checkpoint covers is removed, also of predecessors"


def test_answers_that_are_gone_are_a_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flinkplus.operators.calls.recorder.READ_PATIENCE_S", 0.0)
    outside = Outside()
    with driven(outside, tmp_path) as subtask:
        with pytest.raises(AnswersLost, match=r"000000000001\.answers"):
            subtask.begin(1).repeat(1)
        assert subtask.instance.can_take(1)
        with pytest.raises(AnswersLost):  # again, in a step: nothing may have listened before
            list(subtask.instance.take(1))


def test_rows_that_wait_are_in_the_snapshot_and_are_asked_for_again() -> None:
    outside = Outside()
    with driven(outside) as first:
        first.begin().instance.process(batch_of(1, 2, 3))
        first.instance.ask()
        outside.allow(1)
        first.take(1)
        saved = first.instance.snapshot(4)
    with driven(outside, saved=saved) as second:
        assert second.instance.waiting == 2
        second.begin().instance.process(batch_of(4))
        second.instance.ask()
        outside.allow(2, 3, 4)
        assert second.take(3) == [2, 3, 4]


def test_watermarks_wait_for_the_rows_before_them() -> None:
    outside = Outside()
    with driven(outside, in_order=False) as subtask:
        instance = subtask.begin().instance
        instance.on_watermark(5)
        assert not instance.delays_watermark, "nothing waits"
        instance.process(batch_of(1, 2))
        instance.on_watermark(10)
        instance.process(batch_of(3))
        instance.on_watermark(20)
        instance.ask()
        for number, passed_ms in ((3, 5), (1, 5), (2, 20)):
            outside.allow(number)
            subtask.take(1)
            assert instance.passed_ms == passed_ms
        assert not instance.delays_watermark


def test_a_row_whose_call_fails_ends_the_subtask() -> None:
    outside = Outside()
    outside.allow(-1)
    with driven(outside) as subtask, pytest.raises(UserFunctionError, match=r"ask\[0\]: ValueError: negative -1.*n=-1"):
        subtask.begin().instance.process(batch_of(-1))
        subtask.instance.ask()
        subtask.take(1)


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_or_is_left_out(tmp_path: Path, on_error: str) -> None:
    outside = Outside()
    outside.allow(1, -2, 3)
    with driven(outside, tmp_path, on_error=on_error) as first:
        instance = first.begin().instance
        instance.process(batch_of(1, -2, 3))
        saved = instance.snapshot(1)
        instance.ask()
        rows: list[dict[str, Any]] = []
        letters: list[dict[str, Any]] = []
        while instance.waiting:
            first.until(lambda: instance.choose() is not None)
            choice = instance.choose()
            assert choice is not None
            first.choices.append(choice)
            for batch in instance.take(choice):
                (letters if tag_of(batch) == DEAD_LETTERS.encode() else rows).extend(batch.to_pylist())
    assert [row["n"] for row in rows] == [1, 3]
    assert [letter["n"] for letter in letters] == ([-2] if on_error == "dead-letter" else [])
    assert all(letter["error"].startswith("ValueError: negative -2") for letter in letters)
    with driven(outside, tmp_path, saved, on_error=on_error) as second:
        second.begin(*first.choices)
        again = [row for choice in first.choices for row in second.repeat(choice)]
    assert again == [*rows, *letters] or sorted(map(str, again)) == sorted(map(str, [*rows, *letters]))


def test_answers_that_do_not_fit_the_schema_are_errors_of_their_rows() -> None:
    with driven(lambda row: {"n": row.n, "call": "x" if row.n == 2 else 0}, on_error="skip") as subtask:
        subtask.begin().instance.process(batch_of(1, 2, 3))
        subtask.instance.ask()
        assert subtask.take(2) == [1, 3]


def test_subtasks_of_another_parallelism_share_the_rows_that_wait() -> None:
    operator = MapAsync("ask", Outside(), "n long, call long", CallSettings(None, 0, 0.0, 100))

    def created(index: int, parallelism: int) -> _MapAsyncInstance:
        instance = operator.create(OperatorContext("ask", f"ask[{index}]", index, parallelism, SCHEMA))
        assert isinstance(instance, _MapAsyncInstance)
        return instance

    before = []
    for index in range(3):
        old = created(index, 3)
        old.process(batch_of(index, index + 10))
        old.on_watermark(100 + index)
        before.append(Inherited(old.snapshot(1), None, False, lambda keys: None))  # type: ignore[arg-type,return-value]
    waiting = []
    for index in range(2):
        new = created(index, 2)
        new.inherit(before)
        assert new.delays_watermark
        state: Any = new.snapshot(2)
        assert state["marks"] == [[len(state["numbers"]), 100]]
        waiting.append(state["numbers"])
    assert list(map(len, waiting)) == [4, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"settings": CallSettings(None, 0, 0.0, 0)}, "capacity must be a whole number, at least 1, not 0"),
        ({"settings": CallSettings(None, -1, 0.0, 1)}, "retries must be a whole number, at least 0, not -1"),
        ({"on_error": "ignore"}, "on_error"),
        ({"fn": 3}, "3 is not a function"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    given = {"name": "ask", "fn": Outside(), "schema": "n long", "settings": CallSettings(1.0, 0, 0.0, 1), **settings}
    with pytest.raises(ConfigurationError, match=message):
        MapAsync(**given).check()
