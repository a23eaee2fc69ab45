"""Programs that tests run as a user would: in a process group of their own, watched, and searched for what they leave.

Rules: a program gets a directory of its own for temporary files and a mark in its environment, which its children
inherit; so whatever belongs to it can be found, also when its parent is gone, and nothing of others is taken for it.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import wait_until

MARK = "FLINKPLUS_TEST_PROGRAM"
CLI = (sys.executable, "-m", "flinkplus.cli.main")
START_S = 180.0
GONE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]


class Program:
    """A running program. ``terminal``: the master end of the pseudo-terminal it has for stderr, if any."""

    def __init__(
        self, arguments: Sequence[str], directory: Path, *, terminal: bool = False, env: dict[str, str] | None = None
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = directory / f"tmp-{self.mark[:8]}"
        self.temporary.mkdir()
        self._out, self._err = directory / f"{self.mark[:8]}.out", directory / f"{self.mark[:8]}.err"
        self.terminal: int | None = None
        slave: int | None = None
        if terminal:
            self.terminal, slave = pty.openpty()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temporary),
            "SPARK_LOCAL_DIRS": str(self.temporary),
            "XDG_CACHE_HOME": str(directory / "cache"),
            MARK: self.mark,
            **(env or {}),
        }
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                list(arguments),
                stdin=slave if terminal else subprocess.DEVNULL,
                stdout=out,
                stderr=slave if terminal else err,
                env=environment,
                cwd=directory,
                start_new_session=True,
                preexec_fn=_take_terminal if terminal else None,  # noqa: PLW1509 - one ioctl, no lock
            )
        if slave is not None:
            os.close(slave)

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def read_terminal(self) -> str:
        """What the program has written to its terminal, to the end: call it when the program is over."""
        assert self.terminal is not None
        parts: list[bytes] = []
        while True:
            try:
                part = os.read(self.terminal, 1 << 16)
            except OSError:  # EIO: the last process that held the other end is gone
                part = b""
            if not part:
                return b"".join(parts).decode("utf-8", "replace")
            parts.append(part)

    def type(self, keys: bytes) -> None:
        """Press keys at the program's terminal: ``b"\\x03"`` is Ctrl-C, sent to its foreground process group."""
        assert self.terminal is not None
        os.write(self.terminal, keys)

    def wait(self, timeout_s: float = START_S) -> int:
        """The exit code. Fails with the program's output when it does not end in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not ended within {timeout_s} s; stdout: {self.out[-2000:]!r}, stderr: {self.err[-2000:]!r}")

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait for ``condition()`` while the program runs."""
        wait_until(lambda: bool(condition()) or self.process.poll() is not None, what, START_S)
        assert self.process.poll() is None, f"ended ({self.process.returncode}) before {what}: {self.err[-2000:]}"

    def living(self) -> list[psutil.Process]:
        """Every process that is, or descends from, the program and lives."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def descendants(self) -> list[psutil.Process]:
        """The program's children and theirs, by parentage."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def assert_nothing_left(self, before: Sequence[psutil.Process] = (), timeout_s: float = GONE_S) -> None:
        """No process, and so no listening port, and no file of ours in the temporary directory; ``before``: processes
        that must be gone too.
        """

        def gone() -> bool:
            return not self.living() and not any(_alive(process) for process in before) and not self._files()

        deadline = time.monotonic() + timeout_s
        while not gone():
            if time.monotonic() > deadline:
                living = [" ".join(p.cmdline())[:200] for p in [*self.living(), *filter(_alive, before)]]
                pytest.fail(f"left after {timeout_s} s: processes {living}, files {self._files()}")
            time.sleep(0.05)

    def _files(self) -> list[str]:
        return sorted(path.name for path in self.temporary.iterdir())

    def end(self) -> None:
        """Kill what still lives."""
        for process in self.living():
            with suppress(psutil.NoSuchProcess):  # it has ended by itself
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.terminal is not None:
            os.close(self.terminal)


def _take_terminal() -> None:
    """In the child, a session leader already: make its stdin the controlling terminal, so that Ctrl-C works there."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def program(
    arguments: Sequence[str], directory: Path, *, terminal: bool = False, env: dict[str, str] | None = None
) -> Iterator[Program]:
    """Start a program; end it, whatever happens, when the block is left."""
    started = Program(arguments, directory, terminal=terminal, env=env)
    try:
        yield started
    finally:
        started.end()


def cli(*arguments: object) -> list[str]:
    """The ``flinkplus`` command with these arguments."""
    return [*CLI, *map(str, arguments)]


def script(directory: Path, text: str) -> str:
    """Write a Python program; returns its path."""
    path = directory / "program.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


SESSION = """
import sys
from pyspark.sql import SparkSession
from flinkplus import StreamEnvironment, spark_settings

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config(map=spark_settings()).getOrCreate()
"""
"""How a program begins that has a session of its own."""


def kill_again_and_again(text: str, directory: Path, argument: str, rows: Callable[[], int], secret: str) -> None:
    """Run the program ``text`` four times. The first three read slowly, and get SIGKILL when ``rows()`` is 300 more
    than at the kill before; the last one ends. ``secret`` must not be in what they print.

    The program gets ``argument`` and the rows per second.
    """
    before = 0
    for rate in ("1000", "1000", "1000", "1000000"):
        with program([sys.executable, script(directory, text), argument, rate], directory) as running:
            if rate != "1000":
                assert running.wait() == 0, running.err
                return
            running.wait_for(lambda more=before + 300: rows() > more, "rows")  # type: ignore[misc]
            os.kill(running.process.pid, signal.SIGKILL)
            running.wait()
            before = rows()
            assert secret not in running.err
