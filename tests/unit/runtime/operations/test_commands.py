"""Commands from outside: who knows the key is obeyed and answered, everybody else is refused, and nothing breaks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from flinkplus.errors import (
    CheckpointDirectoryError,
    CommandRefused,
    ConfigurationError,
    NoRunningJob,
    PeerProtocolError,
)
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.operations import command_server as command_door
from flinkplus.runtime.operations.access_file import (
    ACCESS_BLOB,
    ACCESS_FILE,
    Access,
    Whereabouts,
    access_of,
    call,
    connected,
    publish,
    read_access,
    running_jobs,
    the_running_job,
    withdraw,
    write_access,
)
from flinkplus.runtime.operations.command_server import PROTOCOL, SHELL, CommandServer
from flinkplus.runtime.operations.commands import REQUEST_BYTES, Body, Commands, Later, decode_reply, encode_request
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting
from flinkplus.runtime.transport.auth.tls import made_for
from flinkplus.runtime.transport.tcp.dialing import dial, receive_frame
from flinkplus.runtime.transport.wire.frames import framed
from flinkplus.runtime.transport.wire.ports import COORDINATOR
from flinkplus.state.durable.storage import CheckpointStorage

HOST = "127.0.0.1"
CREDENTIALS = Credentials(b"the job's secret").for_commands("1")


@dataclass(frozen=True)
class Add:
    left: int
    right: int = 1


@dataclass(frozen=True)
class Wait:
    pass


@dataclass(frozen=True)
class Outcome:
    pass


@dataclass(frozen=True)
class Unheard:
    pass


def add(request: Add) -> Body:
    if request.right < 0:
        raise CommandRefused("only more is added")
    return {"sum": request.left + request.right}


class Driver:
    """A door in a loop of its own."""

    def __init__(self, credentials: Credentials = CREDENTIALS, directory: Path | None = None) -> None:
        self.inbox: Inbox[Any] = Inbox()
        self.commands = Commands()
        self.waiting: list[Later] = []
        self.outcome: Body | None = None
        self.commands.add(Add, add)
        self.commands.add(Wait, self._wait)
        self.commands.add(Outcome, self._report, reports=True)
        self.door = CommandServer(HOST, credentials, self.inbox, self.commands, self.inbox.call_soon, directory)
        self.access = Access("1", "job", self.door.address, socket.gethostname(), this_process(), credentials)
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _wait(self, _request: Wait) -> Later:
        self.waiting.append(Later())
        return self.waiting[-1]

    def _report(self, _request: Outcome) -> Later:
        """Answers when the outcome is known; nothing looks whether it is, but the end of the job."""

        def look(later: Later) -> None:
            if self.outcome is not None:
                later.give(self.outcome)

        self.waiting.append(later := Later(look))
        look(later)
        return later

    def _run(self) -> None:
        while not self._stopping:
            self.inbox.sleep(0.01)
        self.door.close()
        self.inbox.close()

    def soon(self, action: Callable[[], None]) -> None:
        self.inbox.call_soon(action)

    def dial(self) -> socket.socket:
        return dial(self.access.address, connecting(), None, 5)

    def close(self) -> None:
        self._stopping = True
        self._thread.join()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def connecting(name: str = SHELL, target: str = COORDINATOR, secret: bytes = CREDENTIALS.secret) -> Connecting:
    return Connecting(secret, PROTOCOL, name, target)


def this_process() -> tuple[int, float]:
    return os.getpid(), psutil.Process().create_time()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


# --- requests and replies


def obeyed(commands: Commands, data: bytes) -> Body:
    replies: list[bytes] = []
    commands.obey(data, replies.append)
    assert len(replies) == 1
    return decode_reply(replies[0])


def test_a_request_is_carried_out_and_answered() -> None:
    commands = Commands()
    commands.add(Add, add)
    assert obeyed(commands, encode_request(Add(1, 2))) == {"sum": 3}
    with pytest.raises(CommandRefused, match="only more is added"):
        obeyed(commands, encode_request(Add(1, -2)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cannot be read"),
        (b"[1]", "cannot be read"),
        (b"{}", "cannot be read"),
        (b'{"v": 2, "request": "Add", "body": {}}', "format 2"),
        (b'{"v": 1, "request": "Unheard", "body": {}}', "does not know the command 'Unheard'"),
        (b'{"v": 1, "request": ["Add"], "body": {}}', "does not know"),
        (b'{"v": 1, "request": "Add", "body": {}}', "cannot be read"),
        (b'{"v": 1, "request": "Add", "body": {"left": "1"}}', "'left' of the request Add"),
        (b'{"v": 1, "request": "Add", "body": {"left": 1, "more": 2}}', "cannot be read"),
        (b'{"v": 1, "request": "Add", "body": 7}', "cannot be read"),
        (b"\xff" * 100, "cannot be read"),
    ],
)
def test_what_is_no_request_is_refused_and_says_why(data: bytes, why: str) -> None:
    commands = Commands()
    commands.add(Add, add)
    with pytest.raises(CommandRefused, match=why):
        obeyed(commands, data)


def test_an_error_in_a_command_is_none_of_the_job(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_request: Add) -> Body:
        raise KeyError("oh")

    commands = Commands()
    commands.add(Add, broken)
    with pytest.raises(CommandRefused, match="KeyError: 'oh'"):
        obeyed(commands, encode_request(Add(1)))
    assert "a command failed" in caplog.text


def test_an_answer_that_comes_later_comes_once() -> None:
    commands, later, replies = Commands(), Later(), list[bytes]()
    commands.add(Wait, lambda _request: later)
    assert commands.obey(encode_request(Wait()), replies.append) is later
    assert replies == []
    later.give({"done": True})
    later.give(CommandRefused("too late"))
    assert [decode_reply(reply) for reply in replies] == [{"done": True}]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"v": 2, "body": {}}', b'{"v": 1, "body": 1}', b'{"v": 1}'])
def test_what_is_no_reply_is_told(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_reply(data)


# --- the door


def test_a_shell_that_knows_the_key_is_answered(driver: Driver) -> None:
    assert call(driver.access, Add(40, 2)) == {"sum": 42}
    with pytest.raises(CommandRefused, match="only more"):
        call(driver.access, Add(1, -1))
    with pytest.raises(CommandRefused, match="Unheard"):
        call(driver.access, Unheard())
    assert driver.door.refusals.total == 0


def test_several_requests_on_one_connection(driver: Driver) -> None:
    with driver.dial() as connection:
        for number in range(3):
            connection.sendall(framed(encode_request(Add(number))))
            assert decode_reply(receive_frame(connection, time.monotonic() + 60, 1000)) == {"sum": number + 1}


def test_who_does_not_know_the_key_is_refused_and_counted(driver: Driver) -> None:
    stranger = replace(driver.access, credentials=Credentials(b"guessed"))
    with pytest.raises(NoRunningJob, match="refused this shell"):
        call(stranger, Add(1))
    wait_until(lambda: driver.door.refusals.total == 1, "it is counted")
    assert driver.waiting == []


def test_the_jobs_own_secret_does_not_open_the_door_nor_the_key_others() -> None:
    secret = b"the job's secret"
    assert Credentials(secret).for_commands("1").secret not in (secret, Credentials(b"other").for_commands("1").secret)
    assert Credentials(secret).for_commands("2") == CREDENTIALS


def test_a_slot_is_no_shell(driver: Driver) -> None:
    for wrong in (connecting(name="slot-1.0"), connecting(target="slot-1.0")):
        with pytest.raises(OSError):
            dial(driver.access.address, wrong, None, 5)
    wait_until(lambda: driver.door.refusals.by_reason == {"identity": 2}, "it is counted")


def test_a_second_request_before_the_reply_and_a_long_one_end_the_connection(driver: Driver) -> None:
    with driver.dial() as connection:
        connection.sendall(framed(encode_request(Wait())))
        wait_until(lambda: bool(driver.waiting), "the first one is there")
        connection.sendall(framed(encode_request(Wait())))
        assert connection.recv(1) == b""
    wait_until(lambda: not driver.waiting[0].wanted, "the first one is wanted no more")
    with driver.dial() as connection:
        connection.sendall(framed(b" " * (REQUEST_BYTES + 1)))
        with pytest.raises(OSError):
            receive_frame(connection, time.monotonic() + 60, 1000)
    assert call(driver.access, Add(1)) == {"sum": 2}


def test_who_waits_is_answered_when_it_is_done_and_others_meanwhile(driver: Driver) -> None:
    answers: list[Body] = []
    waiter = threading.Thread(target=lambda: answers.append(call(driver.access, Wait())))
    waiter.start()
    wait_until(lambda: bool(driver.waiting), "the request is there")
    assert call(driver.access, Add(1)) == {"sum": 2}
    driver.soon(lambda: driver.waiting[0].give({"at": "last"}))
    waiter.join()
    assert answers == [{"at": "last"}]


def test_who_has_gone_gets_no_answer(driver: Driver) -> None:
    with pytest.raises(NoRunningJob, match=r"not answered within 0\.1 s"):
        call(driver.access, Wait(), timeout_s=0.1)
    wait_until(lambda: not driver.waiting[0].wanted, "nobody wants it")
    driver.soon(lambda: driver.waiting[0].give({}))
    assert call(driver.access, Add(1)) == {"sum": 2}


def answered(ask: Callable[[], Body], answers: list[Body | Exception]) -> threading.Thread:
    """Asks in a thread of its own; ``answers`` gets the reply, or what was raised."""

    def run() -> None:
        try:
            answers.append(ask())
        except (CommandRefused, NoRunningJob) as error:
            answers.append(error)

    asking = threading.Thread(target=run)
    asking.start()
    return asking


def test_a_job_that_ends_before_the_answer_says_so(driver: Driver) -> None:
    answers: list[Body | Exception] = []
    asking = answered(lambda: call(driver.access, Wait()), answers)
    wait_until(lambda: bool(driver.waiting), "the request is there")
    driver.close()
    asking.join()
    assert isinstance(answers[0], CommandRefused) and "has ended" in str(answers[0])
    with pytest.raises(NoRunningJob, match="refused this shell, or has ended"):
        call(driver.access, Add(1))


def test_who_waits_for_an_outcome_gets_it_at_the_end_of_the_job(driver: Driver) -> None:
    answers: list[Body | Exception] = []
    asking = answered(lambda: call(driver.access, Outcome()), answers)
    wait_until(lambda: bool(driver.waiting), "the request is there")
    driver.outcome = {"status": "done"}  # as the job ends: nothing else looks any more
    driver.close()
    asking.join()
    assert answers == [{"status": "done"}]


def test_who_asks_again_on_the_same_connection_learns_the_outcome_after_the_end(driver: Driver) -> None:
    answers: list[Body | Exception] = []
    with connected(driver.access) as ask:
        assert ask(Add(1)) == {"sum": 2}
        driver.outcome = {"status": "done"}
        closing = threading.Thread(target=driver.close)
        closing.start()
        wait_until(lambda: refused(ask, Add(1)), "a command is refused")
        answered(lambda: ask(Outcome()), answers).join()
    closing.join()
    assert answers == [{"status": "done"}]


def refused(ask: Callable[[Any], Body], request: Any) -> bool:
    try:
        ask(request)
    except CommandRefused as error:
        return "has ended" in str(error)
    return False


def test_a_request_that_came_before_the_end_is_answered(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Callable[[], None]] = []
    monkeypatch.setattr(driver.door, "_soon", taken.append)
    answers: list[Body | Exception] = []
    driver.outcome = {"status": "done"}
    asking = answered(lambda: call(driver.access, Outcome()), answers)
    wait_until(lambda: bool(taken), "the request is there")
    driver.close()
    taken[0]()
    asking.join()
    assert answers == [{"status": "done"}]


def test_a_shell_that_asks_nothing_does_not_hold_up_the_end(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_door, "LAST_WORDS_S", 0.1)
    with connected(driver.access) as ask:
        assert ask(Add(1)) == {"sum": 2}
        driver.close()
        with pytest.raises(NoRunningJob, match="ended before it answered"):
            ask(Outcome())


def test_only_so_many_shells_at_a_time(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_door, "MAX_SHELLS", 1)
    with driver.dial() as connection:
        with pytest.raises(NoRunningJob):
            call(driver.access, Add(1))
        connection.sendall(framed(encode_request(Add(1))))
        assert receive_frame(connection, time.monotonic() + 60, 1000)
    wait_until(lambda: driver.door.refusals.by_reason == {"crowd": 1}, "it is counted")


def test_with_tls_the_door_has_certificates_of_its_own() -> None:
    of_the_job = Credentials(b"the job's secret", tls=made_for("1"))
    driver = Driver(of_the_job.for_commands("1"))
    try:
        assert call(driver.access, Add(1)) == {"sum": 2}
        mixed = replace(driver.access, credentials=replace(driver.access.credentials, tls=of_the_job.tls))
        for wrong in (mixed, replace(driver.access, credentials=CREDENTIALS)):
            with pytest.raises(NoRunningJob):
                call(wrong, Add(1))
    finally:
        driver.close()


# --- the access file


def an_access(**changes: Any) -> Access:
    found = Access("1", "job", "127.0.0.1:1", socket.gethostname(), this_process(), CREDENTIALS)
    return replace(found, **changes)


def test_the_file_is_for_its_owner_and_holds_what_it_takes(tmp_path: Path) -> None:
    for tls in (None, "/some/where", made_for("1")):
        written = an_access(credentials=Credentials(b"key", tls=tls))
        path = write_access(tmp_path, written)
        assert path.stat().st_mode & 0o777 == 0o600
        assert read_access(path) == written
    assert [file.name for file in tmp_path.iterdir()] == [ACCESS_FILE]
    assert "key" not in repr(written).replace("key=", "")


def test_a_file_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    path = write_access(tmp_path, an_access())
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="is not yours alone \\(mode 640\\)"):
        read_access(path)


def test_a_pipe_in_the_files_place_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "flinkplus-strangers").mkdir()
    os.mkfifo(tmp_path / "flinkplus-strangers" / ACCESS_FILE, 0o666)
    (tmp_path / "flinkplus-mine").mkdir()
    path = write_access(tmp_path / "flinkplus-mine", an_access())
    assert [found for found, _ in running_jobs()] == [path]


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"pid": "1"}, {"key": "xyz"}, {"tls": {"a": 1}}, {"address": None}, {"created_s": 10**400}],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write_access(tmp_path, an_access())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigurationError, match="not an access file of this version"):
        read_access(path)


def test_no_file_and_what_a_killed_driver_has_left_behind(tmp_path: Path) -> None:
    with pytest.raises(NoRunningJob, match="the job is over, or runs on another host"):
        read_access(tmp_path / ACCESS_FILE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    created_s = psutil.Process(ended.pid).create_time()
    ended.wait()
    path = write_access(tmp_path, an_access(driver=(ended.pid, created_s)))
    with pytest.raises(NoRunningJob, match="its driver ended unexpectedly"):
        read_access(path)
    pid, created_s = this_process()
    write_access(tmp_path, an_access(driver=(pid, created_s - 1)))
    with pytest.raises(NoRunningJob, match="its driver ended unexpectedly"):
        read_access(path)
    write_access(tmp_path, an_access(driver=(ended.pid, 1.0), host="elsewhere"))
    assert read_access(path).host == "elsewhere", "nobody here can know"


def test_the_checkpoint_directory_says_where_the_file_is(tmp_path: Path) -> None:
    kept, own = tmp_path / "kept", tmp_path / "own"
    own.mkdir()
    storage = CheckpointStorage(kept)
    with pytest.raises(CheckpointDirectoryError):
        access_of(str(kept))
    storage.ownership.prepare({"name": "job", "fingerprint": "1"}, resume=False)
    with pytest.raises(NoRunningJob, match="no job runs on the checkpoint directory"):
        access_of(str(kept))
    written = an_access()
    path = write_access(own, written)
    publish(storage, path, written)
    assert access_of(str(kept)) == written
    assert not [file for file in kept.rglob("*") if file.is_file() and CREDENTIALS.secret.hex().encode() in read(file)]
    withdraw(storage, tmp_path / "of an older run")
    assert access_of(str(kept)) == written
    path.unlink()
    with pytest.raises(NoRunningJob, match="has ended"):
        access_of(str(kept))
    publish(storage, path, replace(written, host="elsewhere"))
    with pytest.raises(NoRunningJob, match="on elsewhere"):
        access_of(str(kept))
    withdraw(storage, path)
    withdraw(storage, path)
    with pytest.raises(NoRunningJob, match="no job runs on the checkpoint directory"):
        access_of(str(kept))
    told = Whereabouts(job_id=written.job_id, host=written.host, file=str(path)).to_json()
    storage.blobs.put(ACCESS_BLOB, json.dumps({**told, "format": 2}).encode())
    with pytest.raises(NoRunningJob, match="no job runs on the checkpoint directory"):
        access_of(str(kept))


def read(path: Path) -> bytes:
    return path.read_bytes()


def test_the_only_running_job_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(NoRunningJob, match="no running job of yours"):
        the_running_job()
    for name in ("a", "b", "c"):
        (tmp_path / f"flinkplus-{name}").mkdir()
    first = write_access(tmp_path / "flinkplus-a", an_access(name="first"))
    write_access(tmp_path / "flinkplus-b", an_access(name="dead", driver=(os.getpid(), 1.0)))
    assert the_running_job().name == "first"
    second = write_access(tmp_path / "flinkplus-c", an_access(name="second"))
    with pytest.raises(ConfigurationError, match=f"first: --access {first}\n  second: --access {second}"):
        the_running_job()
    assert [path for path, _ in running_jobs()] == [first, second]
