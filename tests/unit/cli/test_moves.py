"""``flinkplus migrate``, ``drain`` and ``undrain`` as they are typed and read; the job is a list of answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flinkplus.cli import moves
from flinkplus.errors import CommandRefused
from flinkplus.runtime.coordinator.commands.moves import (
    DrainHostCommand,
    MigrateCommand,
    MoveNewsCommand,
    ScaleSparesCommand,
    UndrainHostCommand,
)
from tests.typed import Command, typed_here

LEFT = {"number": 7, "status": "under_way", "left": ["count[1]", "lines[1]"]}
LESS = {"number": 7, "status": "under_way", "left": ["lines[1]"]}
DONE = {"number": 7, "status": "done", "left": []}


class Job:
    """Answers one after the other."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[Any] = []

    @contextlib.contextmanager
    def connected(self, _access: object) -> Iterator[Callable[..., Any]]:
        yield self.ask

    def call(self, _access: object, request: Any) -> Any:
        return self.ask(request)

    def ask(self, request: Any) -> Any:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    job = Job()
    monkeypatch.setattr(moves, "job_of", lambda arguments: None)
    monkeypatch.setattr(moves, "call", job.call)
    monkeypatch.setattr(moves, "connected", job.connected)
    monkeypatch.setattr(moves, "POLL_S", 0.0)
    return job


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


def test_a_drain_says_what_is_left_until_nothing_is(job: Job, run: Command) -> None:
    job.answers = [LEFT, LEFT, LESS, DONE]
    code, out, _ = run("drain", "worker-1", "--force")
    assert code == 0
    assert out.splitlines() == [
        "under way; left: count[1], lines[1]",
        "under way; left: lines[1]",
        "nothing is left on worker-1",
    ]
    assert job.asked == [DrainHostCommand("worker-1", True), MoveNewsCommand(7), MoveNewsCommand(7), MoveNewsCommand(7)]


@pytest.mark.parametrize("slot", ["slot-3", "3"])
def test_a_subtask_is_moved(job: Job, run: Command, slot: str) -> None:
    job.answers = [DONE]
    assert run("migrate", "count:1", "--to", slot)[:2] == (0, "count:1 is on slot-3\n")
    assert job.asked == [MigrateCommand("count:1", 3)]


def test_as_json(job: Job, run: Command) -> None:
    job.answers = [LEFT, DONE]
    _, out, _ = run("migrate", "count:1", "--to", "slot-3", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [LEFT, DONE]


def test_nobody_waits_longer_than_told(job: Job, run: Command) -> None:
    job.answers = [LEFT]
    assert run("drain", "worker-1", "--wait", "0")[0] == 0
    assert job.asked == [DrainHostCommand("worker-1")]
    assert run("drain", "worker-1", "--wait", "0.01")[0] == 1


def test_what_is_cancelled_on_the_way_is_told(job: Job, run: Command) -> None:
    job.answers = [LEFT, CommandRefused("migrate count[1] to slot 3: slot 3 was lost")]
    code, out, err = run("migrate", "count:1", "--to", "slot-3")
    assert code == 1 and out.startswith("under way") and "slot 3 was lost" in err


def test_a_host_is_used_again(job: Job, run: Command) -> None:
    job.answers = [DONE]
    assert run("undrain", "worker-1")[:2] == (0, "worker-1 may be used again\n")
    assert job.asked == [UndrainHostCommand("worker-1")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("migrate", "count:1", "--to", "second"),
        ("migrate", "count:1", "--to", "-1"),
        ("migrate", "count:1", "--to", "slot-3", "--wait", "-1"),
        ("drain", "worker-1", "--wait", "nan"),
    ],
)
def test_what_is_typed_wrongly(job: Job, run: Command, arguments: tuple[str, ...]) -> None:
    job.answers = [DONE]
    try:
        code = run(*arguments)[0]
    except SystemExit as error:
        code = int(error.code or 0)
    assert (code, job.asked) == (2, [])


@pytest.mark.parametrize(("count", "told"), [(1, "there is 1 spare slot"), (2, "there are 2 spare slots")])
def test_spare_slots_are_scaled(job: Job, run: Command, count: int, told: str) -> None:
    job.answers = [{"number": 7, "status": "under_way", "left": ["slot-4"]}, DONE]
    code, out, _ = run("scale", str(count))
    assert (code, out.splitlines()) == (0, ["under way; left: slot-4", told])
    assert job.asked == [ScaleSparesCommand(count, False), MoveNewsCommand(7)]
    job.answers = [CommandRefused("scale to 0 spare slots: there would be less")]
    code, _, err = run("scale", "0", "--force")
    assert code == 1 and "there would be less" in err and job.asked[-1] == ScaleSparesCommand(0, True)


@pytest.mark.parametrize("count", ["-1", "101", "many"])
def test_nobody_has_so_many_spare_slots(job: Job, run: Command, count: str) -> None:
    assert run("scale", count)[0] == 2 and job.asked == []
