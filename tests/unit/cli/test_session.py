"""Sessions that are interrupted, or lose their Java process: a line, no traceback, and no process left."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from flinkplus.api.spark_settings import spark_settings
from flinkplus.cli import java_messages, main, session, wordcount
from flinkplus.errors import ConfigurationError, InputError, JobFailed
from tests.typed import Command, typed_here

AS_PY4J = """
def call(log):
    try:
        raise ConnectionRefusedError("nobody there")
    except ConnectionRefusedError:
        log.exception("Exception while sending command.")
"""


class Session:
    """Of a Java process that has ended with ``code`` (``None``: it runs)."""

    def __init__(self, code: int | None = None) -> None:
        self.stopped = 0
        self.code = code
        self.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=self))
        self.waited = 0

    def wait(self, seconds: float) -> int:
        self.waited += 1
        if self.code is None:
            raise subprocess.TimeoutExpired("java", seconds)
        return self.code

    def stop(self) -> None:
        self.stopped += 1
        if self.code is not None:
            raise ConnectionRefusedError(111, "Connection refused")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session()
    monkeypatch.setattr(session, "open_session", lambda *_: made)
    return made


def test_a_session_is_stopped_whatever_happens(opened: Session) -> None:
    with session.session("local[2]") as spark:
        assert id(spark) == id(opened)
    with pytest.raises(ValueError, match="mine"), session.session("local[2]"):
        raise ValueError("mine")
    with pytest.raises(KeyboardInterrupt), session.session("local[2]"):
        raise KeyboardInterrupt
    assert opened.stopped == 3


def test_a_java_process_that_has_ended_is_said_so(opened: Session) -> None:
    with pytest.raises(JobFailed, match="Spark's Java process has ended"), session.session("local[2]"):
        opened.code = -9
        raise ConnectionRefusedError(111, "Connection refused")


def test_an_error_of_another_kind_stays_what_it_is(opened: Session) -> None:
    with pytest.raises(PermissionError), session.session("local[2]"):
        raise PermissionError("not yours")
    assert opened.waited == 1
    opened.code = -9
    with pytest.raises(ZeroDivisionError), session.session("local[2]"):
        raise ZeroDivisionError


def test_what_else_is_said_of_it_stays(opened: Session) -> None:
    with pytest.raises(InputError, match="no such file"), session.session("local[2]"):
        opened.code = -9
        raise InputError("no such file")
    opened.code = -9
    with session.session("local[2]"):
        pass  # finished before it ended


@pytest.mark.parametrize("failure", [ConnectionRefusedError(111, "refused"), KeyboardInterrupt(), JobFailed("slots")])
def test_no_traceback_comes_out_of_a_command(
    opened: Session, run: Command, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fails(*_: Any) -> None:
        opened.code = -9
        raise failure

    monkeypatch.setattr(wordcount, "run_wordcount", fails)
    code, _, err = run("wordcount")
    assert code == (130 if isinstance(failure, KeyboardInterrupt) else 1)
    assert err.count("\n") == 1, err


def test_an_interrupt_before_the_command_is_known_is_told_in_a_line(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "parser", interrupted)
    assert run("status") == (130, "", "interrupted; the job was ended\n")


class Builder:
    """Of a session that does not come about: its Java process is there, and ``failure`` comes."""

    def __init__(self, failure: BaseException) -> None:
        self.failure = failure
        self.process: subprocess.Popen[bytes] | None = None

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: self

    def getOrCreate(self) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as PySpark does
        if isinstance(self.failure, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the command line does when it is interrupted
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        raise self.failure


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(session, "check_java", lambda: 17)
    monkeypatch.setattr(session, "_start_java", lambda _: None)
    yield
    signal.signal(signal.SIGINT, before)


def test_of_what_java_writes_one_line_is_held_back() -> None:
    written = b"WARNING: Using incubator modules: jdk.incubator.vector\nWARNING: all else\n\n\xff and no end of line"
    relay = subprocess.run(
        [sys.executable, "-I", "-S", java_messages.__file__], input=written, capture_output=True, timeout=60, check=True
    )
    assert relay.stderr == b"WARNING: all else\n\n\xff and no end of line"
    assert relay.stdout == b""


def test_what_java_writes_comes_at_once_and_after_the_command_has_ended(tmp_path: Path) -> None:
    program = """
import subprocess, sys
from flinkplus.cli import session
def launch(conf, popen):
    subprocess.Popen(["sh", "-c", "echo first >&2; read go < $0; echo last >&2", sys.argv[1]], **popen)
session.launch_gateway = launch
session.SparkContext._ensure_initialized = lambda gateway: None
session._start_java({})
"""
    go = tmp_path / "go"
    os.mkfifo(go)
    command = subprocess.Popen([sys.executable, "-c", program, go], stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    try:
        assert command.stderr.readline() == "first\n"
        command.wait(60)
        go.write_text("go\n")
        assert command.stderr.read() == "last\n"
    finally:
        command.kill()
        command.wait()
        command.stderr.close()


def test_a_start_that_is_interrupted_leaves_no_process(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder(KeyboardInterrupt())
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    before = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with pytest.raises(KeyboardInterrupt):
            session.open_session("local[2]")
        assert builder.process is not None and not psutil.pid_exists(builder.process.pid)
        assert before.poll() is None, "what was there before is not Spark's"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "the end is not to be interrupted"
    finally:
        before.kill()
        before.wait()
        if builder.process is not None:
            builder.process.kill()
            builder.process.wait()


def test_a_start_that_fails_is_told_and_leaves_our_handler(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder(RuntimeError("no room\nat org.apache.spark"))
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ConfigurationError, match=r"could not be started on master 'local.2.': no room$"):
        session.open_session("local[2]")
    assert signal.getsignal(signal.SIGINT) is before
    assert builder.process is not None
    builder.process.kill()
    builder.process.wait()


QUIET_AND_LOCAL = {
    "spark.app.name",
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.master",
    "spark.sql.shuffle.partitions",  # of the comparison with a batch job, which is no part of the streaming job
    "spark.ui.enabled",
    "spark.ui.showConsoleProgress",
}


def test_commands_tune_spark_no_further_than_any_program_may(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    made = SimpleNamespace(sparkContext=SimpleNamespace())
    builder = SimpleNamespace(config=lambda map: given.update(map) or SimpleNamespace(getOrCreate=lambda: made))
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    session.open_session("local[2]")
    assert given.keys() - spark_settings().keys() == QUIET_AND_LOCAL
    java, quiet = given["spark.driver.extraJavaOptions"].split()
    assert quiet.startswith("-Dlog4j2.configurationFile=")
    assert {**given, "spark.driver.extraJavaOptions": java}.items() >= spark_settings().items()


@pytest.mark.parametrize(("error", "told"), [(EOFError(), 0), (ConnectionResetError(), 0), (ValueError("x"), 1)])
def test_the_server_for_accumulators_says_nothing_of_the_end(error: Exception, told: int) -> None:
    said: list[str] = []
    server = SimpleNamespace(handle_error=lambda request, address: said.append(address))
    session._quieten_accumulators(SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=server)))  # type: ignore[arg-type]
    try:
        raise error
    except Exception:
        server.handle_error(None, "127.0.0.1")
    assert len(said) == told


def test_a_context_without_such_a_server_is_left_alone() -> None:
    session._quieten_accumulators(SimpleNamespace(sparkContext=SimpleNamespace()))  # type: ignore[arg-type]


@pytest.mark.parametrize("logger", [None, "py4j.clientserver", "py4j.java_gateway"])
def test_what_py4j_logs_of_calls_that_failed_is_kept_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, logger: str | None
) -> None:
    def logged(directory: str) -> int:
        caplog.clear()
        names: dict[str, Any] = {}
        exec(compile(AS_PY4J, str(tmp_path / directory / "java_gateway.py"), "exec"), names)
        names["call"](logging.getLogger(logger))
        return len(caplog.records)

    session._quieten()
    assert logged("py4j") == 0
    assert logged("of_the_user") == 1
    logging.getLogger(logger).info("something else")
