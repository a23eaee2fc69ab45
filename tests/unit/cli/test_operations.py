"""``flinkplus status`` and ``inject`` as they are typed and read; the job is a door that answers."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from flinkplus.cli.status import tables
from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.phases import DURATIONS
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.coordinator.commands.operations import CancelCommand, InjectCommand, StatusCommand
from flinkplus.runtime.coordinator.record.status import Status
from flinkplus.runtime.operations.access_file import Access, write_access
from flinkplus.runtime.operations.command_server import CommandServer
from flinkplus.runtime.operations.commands import Body, Commands
from flinkplus.runtime.transport.auth.credentials import Credentials
from tests.typed import Command, typed_here

CREDENTIALS = Credentials(b"secret").for_commands("1")
RECOVERY = {
    "mode": "standby",
    "failure": "exception",
    "subtasks": ["count[1]"],
    "reason": "InjectedFailure: on order",
    "begin_s": 1.5e9,
    "fallback": None,
    **{f"{phase}_ms": 2.25 for phase in (*DURATIONS, "recovery")},
}
ROLLBACK = {**RECOVERY, "mode": "rollback", "fallback": "no member left", "begin_s": None, "recovery_ms": None}
CHECKPOINT = {
    "id": 7,
    "status": "pending",
    "mode": "aligned",
    "reason": "",
    **dict.fromkeys(("trigger_ms", "alignment_ms", "sync_ms", "async_ms", "durable_ms", "chain_ms", "duration_ms")),
}
STATUS: dict[str, Any] = {
    "job": {
        "job_id": "abc",
        "name": "watched",
        "host": "driver-1",
        "pid": 17,
        "recovery": "standby",
        "guarantee": "exactly-once",
        "parallelism": 2,
        "replicas": 3,
        "checkpoint_interval_s": 10,
        "checkpoint_dir": "/data",
        "restored_from": None,
        "ui": "http://127.0.0.1:4040/",
    },
    "metrics": {
        "state": "running",
        "running_s": 12.0,
        "checkpoints_completed": 6,
        "last_checkpoint": 6,
        "failovers": 1,
        "handovers": 0,
        "fallbacks": 1,
        "slot_restarts": 2,
        "refused_connections": 0,
        "malformed_frames": 0,
        "zookeeper": "it is away",
        "zookeeper_restarts": 2,
    },
    "slots": [
        {
            "slot": "slot-0",
            "spare": False,
            "state": "working",
            "host": "worker-1",
            "pid": 4711,
            "address": "worker-1:5000",
            "restarts": 0,
            "heard_ms": 12.5,
            "subtasks": 2,
            "standbys": 1,
        }
    ],
    "subtasks": [
        {
            "subtask": "count[1]",
            "vertex": "count",
            "index": 1,
            "slot": "slot-0",
            "generation": 3,
            "state": "running",
            "rows_in": 12345,
            "rows_out": None,
            "behind_rows": 321,
            "waiting_messages": 4,
            "keys": 99,
            "state_bytes": 4096,
            "busy_s": 3.5,
            "watermark_ms": None,
            "blocked": "spill volume full",
        }
    ],
    "chains": [
        {
            "subtask": "count[1]",
            "generation": 3,
            "newest": 6,
            "members": [
                {"slot": "slot-0", "role": "head", "version": 6, "lag": 0, "catching_up": False},
                {"slot": "slot-2", "role": "standby", "version": 4, "lag": 2, "catching_up": True},
            ],
        }
    ],
    "drained_hosts": [],
    "checkpoints": [{**CHECKPOINT, "id": 6, "status": "complete", "duration_ms": 45.0}, CHECKPOINT],
    "recoveries": [RECOVERY, ROLLBACK],
    "handovers": [],
    "rescaling": {"parallelism": 4, "phase": "starting", "left": ["slot-3"]},
    "rescales": [],
    "savepoints": [
        {
            "target": "/backup/monday",
            "stop": False,
            "status": "failed",
            "checkpoint": 5,
            "files": 3,
            "files_in_all": 9,
            "bytes": 1_234_567,
            "bytes_in_all": 7_654_321,
            "reason": "StateError: no space left on device",
        }
    ],
}


class Job:
    """A door in a loop, and its access file."""

    def __init__(self, directory: Path) -> None:
        self.inbox: Inbox[Any] = Inbox()
        self.asked: list[InjectCommand] = []
        self.statuses = 0
        self.ends_after = 1_000
        commands = Commands()
        commands.add(StatusCommand, self._status)
        commands.add(InjectCommand, self._inject)
        commands.add(CancelCommand, self._cancel)
        self._door = CommandServer("127.0.0.1", CREDENTIALS, self.inbox, commands, self.inbox.call_soon)
        driver = (os.getpid(), psutil.Process().create_time())
        self.file = write_access(
            directory, Access("abc", "watched", self._door.address, socket.gethostname(), driver, CREDENTIALS)
        )
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _status(self, _request: StatusCommand) -> Body:
        self.statuses += 1
        if self.statuses >= self.ends_after:
            self.file.unlink(missing_ok=True)
            self._over = True
        return STATUS

    def _cancel(self, _request: CancelCommand) -> Body:
        self.ends_after = self.statuses + 2
        return {"state": "stopping"}

    def _inject(self, request: InjectCommand) -> Body:
        self.asked.append(request)
        slow = request.fault in ("pause", "cut", "slow")
        return {
            "fault": request.fault,
            "slots": [0, 1],
            "subtasks": ["count[1]"],
            "for_s": request.for_s if slow else None,
        }

    def _run(self) -> None:
        while not self._over:
            self.inbox.sleep(0.01)
        self.inbox.sleep(0.01)
        self._door.close()
        self.inbox.close()

    def close(self) -> None:
        self._over = True
        self._thread.join()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


Run = Callable[..., tuple[int, str, str]]


def test_the_tables_say_all_of_it() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(tables(Status.from_json(STATUS)))
    text = captured.get()
    for words in (
        "watched (abc): running, for 12.0 s; driver: process 17 on driver-1; parallelism 2, standby, exactly-once, ",
        "3 copies",
        "on the way to parallelism 4: starting; left: slot-3",
        "4711",
        "12,345",
        "321",
        "spill volume full",
        "slot-0: 6, slot-2: 4 -2 catching up",
        "6 complete, the last is 6",
        "/backup/monday",
        "7,654,321",
        "no space left on device",
        "in flight",
        "count[1]: InjectedFailure: on order",
        "fell back: no member left",
        "1 failovers, 0 handovers, 1 fallbacks, 2 slot restarts",
        "ZooKeeper: it is away",
    ):
        assert words in text, words


def test_status_as_tables_and_as_json(job: Job, run: Run) -> None:
    code, out, err = run("status", "--access", job.file)
    assert (code, err) == (0, "") and "watched" in out and "Chains" in out
    code, out, err = run("status", "--access", job.file, "--json")
    assert (code, err) == (0, "") and json.loads(out) == STATUS


def test_a_status_is_read_as_it_was_written_or_refused() -> None:
    assert Status.from_json(STATUS).to_json() == STATUS
    for name in ("job", "slots", "subtasks", "chains"):
        with pytest.raises(PeerProtocolError, match="malformed status"):
            Status.from_json({**STATUS, name: [{}]})


@pytest.mark.parametrize("as_json", [True, False])
def test_watching_ends_with_the_job(job: Job, run: Run, as_json: bool) -> None:
    job.ends_after = 3
    code, out, err = run("status", "--access", job.file, "--watch", "0.1", *["--json"] * as_json)
    assert code == 0 and "job 'watched'" in err and "has ended" in err
    if as_json:
        assert [json.loads(line) for line in out.splitlines()] == [STATUS] * 3
    else:
        assert "Chains" in out


def test_watching_ends_with_ctrl_c_and_the_job_goes_on(job: Job, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flinkplus.cli.status.time.sleep", interrupted)
    code, _, err = run("status", "--access", job.file, "--watch", "5")
    assert (code, err) == (0, "")
    assert run("status", "--access", job.file)[0] == 0


def test_inject_asks_for_what_is_typed(job: Job, run: Run) -> None:
    code, out, _ = run("inject", "kill", "slot-0", "--access", job.file)
    assert (code, out) == (0, "SIGKILL to slot-0, slot-1\n")
    code, out, _ = run("inject", "cut", "worker-1", "--access", job.file, "--for", "2.5", "--from", "driver", "--json")
    assert code == 0 and json.loads(out)["for_s"] == 2.5
    code, out, _ = run("inject", "slow", "count:1", "--access", job.file, "--at", "0.5", "--delay", "0.2")
    assert (code, out) == (0, "count[1] slowed down for 1 s\n")
    assert job.asked == [
        InjectCommand("kill", "slot-0"),
        InjectCommand("cut", "worker-1", for_s=2.5, peers=["driver"]),
        InjectCommand("slow", "count:1", at_s=0.5, delay_s=0.2),
    ]


def test_what_is_typed_wrongly(job: Job, run: Run, tmp_path: Path) -> None:
    for wrong in (
        ("inject", "explode", "count:1"),
        ("inject", "kill"),
        ("status", "--watch", "0"),
        ("status", "--access", job.file, "--checkpoint-dir", tmp_path),
        ("status", "--checkpoint-dir", tmp_path / "nothing"),
    ):
        assert run(*wrong)[0] == 2, wrong
    code, _, err = run("status", "--access", tmp_path / "gone.json")
    assert code == 1 and "the job is over" in err


def test_what_keeps_a_savepoint_from_being_taken_is_one_line(job: Job, run: Run, tmp_path: Path) -> None:
    """Without a running job, with a wrong access file, at a wrong place: nothing is written, no traceback."""
    (tmp_path / "wrong.json").write_text("{}")
    (tmp_path / "wrong.json").chmod(0o600)
    (tmp_path / "open.json").write_bytes(job.file.read_bytes())
    (tmp_path / "open.json").chmod(0o644)
    (tmp_path / "empty").mkdir()
    there, by = tmp_path / "taken", "--access"
    for exit_code, arguments, why in (
        (1, (there, by, tmp_path / "gone.json"), "the job is over"),
        (2, (there, "--checkpoint-dir", tmp_path / "empty"), "holds no job; check the path"),
        (2, (there, by, tmp_path / "wrong.json"), "is not an access file"),
        (2, (there, by, tmp_path / "open.json"), "is not yours alone"),
        (2, (there, by, job.file, "--wait", "-1"), "--wait must be from 0"),
        (2, (there, by, job.file, "--checkpoint-dir", tmp_path), "not both"),
        (2, (), "TARGET"),
    ):
        code, out, err = run("savepoint", *arguments)
        assert (code, out) == (exit_code, "") and why in err, (arguments, err)
        assert "Traceback" not in err and (not arguments or len(err.strip().splitlines()) == 1), err
    assert not there.exists()
