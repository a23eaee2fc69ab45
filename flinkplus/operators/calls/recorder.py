"""The thread that stores answers, before any step takes them, and reads those that a predecessor took.

Rules:

- what has come while answers are being stored is stored together next. With ``in_order`` only answers whose rows are
  the next ones in order;
- a file that cannot be written is tried again for ``PATIENCE_S``, one that cannot be read for ``READ_PATIENCE_S``; then
  the subtask fails. One that cannot be removed is tried again with the next checkpoint;
- files to repeat are read ahead, in their order, up to ``AHEAD`` of them. Nothing is stored before all are read: until
  then nothing is asked;
- without a place to store, answers are taken as they come.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from flinkplus.errors import StateError, UserFunctionError, described
from flinkplus.operators.base.row import RowConverter, user_error
from flinkplus.operators.calls.caller import Outcome
from flinkplus.operators.calls.stored import AnswerFiles, Answers
from flinkplus.operators.rows.rejects import stable

MAX_TOGETHER = 1024
"""Answers in one file, and in one step."""
AHEAD = 16
PATIENCE_S, READ_PATIENCE_S = 30.0, 5.0
PAUSE_S = 0.1
T = TypeVar("T")

log = logging.getLogger("flinkplus")


class AnswerRecorder:
    """Stores the outcomes of calls, and gives them to the steps.

    ``operator``, ``subtask``: their names. ``schema``: of the answers.
    ``fails``: whether an error ends the subtask.
    ``open_files``: opens the files, in the thread; ``None``: nothing is stored.
    ``last``: the number of the last answers that the version has. ``beyond``: remove what subtasks of this index and
    above have left.
    ``woken``: called when answers are here, or with an error.
    """

    def __init__(
        self,
        operator: str,
        subtask: str,
        schema: pa.Schema,
        in_order: bool,
        fails: bool,
        open_files: Callable[[], AnswerFiles] | None,
        last: int,
        beyond: int | None,
        woken: Callable[[Exception | None], None],
    ) -> None:
        self._operator, self._subtask = operator, subtask
        self._converter = RowConverter(operator, subtask, schema)
        self._in_order, self._fails = in_order, fails
        self._open_files, self._last, self._beyond, self._woken = open_files, last, beyond, woken
        self._files: AnswerFiles | None = None
        self._changed = threading.Condition()
        self._order: deque[int] = deque()
        self._came: dict[int, Outcome] = {}
        self._ready: deque[tuple[int, Answers]] = deque()
        self._to_read: deque[int] = deque()
        self._to_remove = 0
        self._begun = self._closed = False
        self._failure: Exception | None = None

    # --- for the slot's loop

    def repeats(self, numbers: Sequence[int]) -> None:
        """Read these files, in this order."""
        self._to_read.extend(numbers)
        if numbers:
            self._begin()

    def asked(self, numbers: Sequence[int]) -> None:
        """These rows are asked for; called before any of their outcomes comes."""
        if self._in_order:
            with self._changed:
                self._order.extend(numbers)
        self._begin()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run, name=f"flinkplus-answers-{self._operator}", daemon=True).start()

    @property
    def failed(self) -> bool:
        """Whether ``take`` raises an error."""
        return self._failure is not None

    def first(self) -> int | None:
        """The number of the answers to take next, if they are here; any number above all, if it has failed."""
        with self._changed:
            if self._failure is not None:
                return self._last + 1
            return self._ready[0][0] if self._ready else None

    def take(self) -> Answers:
        """These answers. Raises the error that ended the thread: its subtask may not have been there to get it."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            _, answers = self._ready.popleft()
            self._changed.notify()
            return answers

    def covered(self, number: int) -> None:
        """A complete checkpoint covers all answers up to ``number``."""
        with self._changed:
            self._to_remove = max(self._to_remove, number)
            self._changed.notify()

    def close(self) -> None:
        """Have the thread end. Does not wait."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    # --- for the thread that calls

    def came(self, outcome: Outcome) -> None:
        """What came of one row."""
        with self._changed:
            self._came[outcome.number] = outcome
            self._changed.notify()

    # --- the thread

    def _run(self) -> None:
        try:
            self._find_files()
            while self._wait():
                self._remove()
                with self._changed:
                    number = self._to_read[0] if self._to_read and len(self._ready) < AHEAD else None
                    outcomes = [] if self._to_read else self._next()
                if number is not None:
                    self._give(number, self._read(number))
                    self._to_read.popleft()
                elif outcomes:
                    self._give(*self._stored(self._answers(outcomes)))
        except _Closed:
            return
        except Exception as error:  # of whatever kind: without this thread the rows would wait for ever
            if not self._closed:
                with self._changed:
                    self._failure = error
                self._woken(error)

    def _wait(self) -> bool:
        """Wait for something to do; ``False``: the operator was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_work())
            return not self._closed

    def _has_work(self) -> bool:
        if self._files is not None and self._files.holds(self._to_remove):
            return True
        if self._to_read:
            return len(self._ready) < AHEAD
        return self._order[0] in self._came if self._in_order and self._order else bool(self._came)

    def _next(self) -> list[Outcome]:
        """The outcomes to store together."""
        if not self._in_order:
            taken = list(self._came)[:MAX_TOGETHER]
            return [self._came.pop(number) for number in taken]
        found: list[Outcome] = []
        while self._order and self._order[0] in self._came and len(found) < MAX_TOGETHER:
            found.append(self._came.pop(self._order.popleft()))
        return found

    def _answers(self, outcomes: Sequence[Outcome]) -> Answers:
        """Outcomes as rows and errors. Raises ``UserFunctionError`` for one that ends the subtask."""
        errors = {at: outcome.error for at, outcome in enumerate(outcomes) if outcome.error is not None}
        answered = [at for at in range(len(outcomes)) if at not in errors]
        batches = self._converted(outcomes, answered, errors)
        if self._fails and errors:
            first = min(errors)
            raise user_error(self._operator, self._subtask, outcomes[first].row, errors[first])
        texts = {at: stable(errors[at]) for at in sorted(errors)}
        return Answers(tuple(outcome.number for outcome in outcomes), pa.concat_batches(batches), texts)

    def _converted(
        self, outcomes: Sequence[Outcome], places: Sequence[int], errors: dict[int, str]
    ) -> list[pa.RecordBatch]:
        """The answers at these places as batches; those that do not fit the schema become errors."""
        values = [outcomes[at].value for at in places]
        try:
            return [self._converter.batch(values, lambda i: outcomes[places[i]].row)]
        except UserFunctionError as error:
            if len(places) == 1:
                errors[places[0]] = error.cause
                return [self._converter.batch([], lambda i: i)]
        half = len(places) // 2
        return [*self._converted(outcomes, places[:half], errors), *self._converted(outcomes, places[half:], errors)]

    def _give(self, number: int, answers: Answers) -> None:
        with self._changed:
            self._ready.append((number, answers))
            self._last = max(self._last, number)
        self._woken(None)

    # --- files

    def _find_files(self) -> None:
        beyond = self._beyond
        if self._open_files is not None:
            files = self._files = self._tried(self._open_files, "open the checkpoint directory")
            self._last = max(self._last, self._tried(files.list, "find the answers of predecessors"))
            if beyond is not None:
                self._removed(lambda: files.remove_beyond(beyond))

    def _stored(self, answers: Answers) -> tuple[int, Answers]:
        """The answers and their number, when they are stored."""
        files, number = self._files, self._last + 1
        if files is not None:
            content = answers.to_bytes()
            while not self._tried(partial(files.create, number, content), "store answers"):
                number += 1
        return number, answers

    def _read(self, number: int) -> Answers:
        files = self._files
        assert files is not None, "a step is repeated whose answers were not stored"
        try:
            return self._tried(lambda: files.read(number, self._converter.schema), "read answers", READ_PATIENCE_S)
        except StateError as error:
            raise files.lost(number, "missing or cannot be read") from error

    def _remove(self) -> None:
        files = self._files
        if files is not None and files.holds(self._to_remove):
            through, self._to_remove = self._to_remove, 0
            self._removed(lambda: files.remove(through))

    def _removed(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            log.warning("%s: cannot remove answers that are not needed: %s", self._subtask, described(error))

    def _tried(self, work: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
        """``work``, tried again after an ``OSError``. Raises ``StateError`` in the end."""
        until_s = time.monotonic() + patience_s
        while True:
            try:
                return work()
            except OSError as error:
                if time.monotonic() > until_s:
                    raise StateError(f"operator {self._operator!r}: cannot {what}: {described(error)}") from error
            with self._changed:
                self._changed.wait_for(lambda: self._closed, PAUSE_S)
                if self._closed:
                    raise _Closed


class _Closed(Exception):
    """The operator was closed while the thread waited."""
