"""The supervisor: one driver at a time, and the process of the next one, prepared.

A driver's life: *prepared* (optional, ``prepared``), *running* from the order to go, *ended*; then everything that it
has started is ended, and only then the next one may go. SIGTERM and SIGINT end the driver, then the supervisor.

Rules: nothing is started in a thread, since the system ends a driver with the thread that has started it. Signals and
the end of a child wake the loop by a pipe.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from flinkplus.cli.supervise import prepared, processes
from flinkplus.cli.supervise.policy import EXIT_OK, RestartPolicy, exit_code, how_it_ended
from flinkplus.errors import ConfigurationError

EXIT_INTERRUPTED = 130
NEXT_PREPARED_S = 30.0
"""Until another process is prepared in the place of one that has died."""
GRACE_S = 5.0
"""For what a driver that has ended well has started to end by itself."""
REPORT_BYTES = 1 << 16
MARKS = 20
"""Of the drivers that have ended: the sessions of earlier ones have expired."""

log = logging.getLogger("flinkplus.supervise")


class Driver:
    """A process that runs the program, or is prepared to. ``ahead``: whether to prepare it now.

    ``settings``: what it has started Spark with, so far. ``busy_s``: since when it starts the program, or Spark.
    ``mark``: by which the next one knows it (``chain_backup.zookeeper.succession``).
    """

    def __init__(self, command: Sequence[str], prepare: str, ahead: bool) -> None:
        self.settings: dict[str, Any] | None = None
        self.mark = secrets.token_hex(8)
        self.began_s = self.busy_s = time.monotonic()
        self._text = b""
        self._orders: int | None = None
        self.reports: int | None = None
        if prepared.runs_here(command[0]):
            theirs, self._orders = os.pipe()
            self.reports, reports = os.pipe()
            when = prepared.AHEAD if ahead else "now"
            arguments = [str(theirs), str(reports), str(os.getpid()), prepare, when, *command]
            module = prepared.__name__
            self.process = _started([sys.executable, "-m", module, *arguments], (theirs, reports))
            os.close(theirs)
            os.close(reports)
        else:
            self.process = _started(command, ())

    @property
    def pid(self) -> int:
        return self.process.pid

    def order(self, **document: Any) -> None:
        if self._orders is not None:
            with suppress(BrokenPipeError):  # it has died, which is noticed elsewhere
                os.write(self._orders, json.dumps(document).encode() + b"\n")

    def go(self, ended: Sequence[str]) -> None:
        """Have it run the program, after the drivers with the marks ``ended``."""
        self.began_s = self.busy_s = time.monotonic()
        self.order(go=self.mark, ended=ended)

    def read_reports(self) -> None:
        assert self.reports is not None
        data = os.read(self.reports, REPORT_BYTES)
        if not data:
            os.close(self.reports)
            self.reports = None
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "ready" in report:
                log.info("process %d is ready to be the next driver", self.pid)
            else:
                self.settings, self.busy_s = report["spark"], time.monotonic()

    def close(self) -> None:
        for handle in (self._orders, self.reports):
            if handle is not None:
                os.close(handle)
        self._orders = self.reports = None


def _started(command: Sequence[str], handles: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """A process in a session of its own: Ctrl-C at the terminal is for the supervisor."""
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            pass_fds=handles,
            start_new_session=True,
            preexec_fn=processes.end_with_parent,  # noqa: PLW1509 - one system call, and there are no threads
        )
    except OSError as error:
        raise ConfigurationError(f"the program {command[0]!r} cannot be started: {error}") from error


class DriverSupervisor:
    """Runs ``command`` until it ends well.

    ``prepare``, ``prepare_s``: what of the next driver, and how long after this one has started Spark.
    ``stop_s``: for a driver to end when it is told to.
    """

    def __init__(
        self, command: Sequence[str], policy: RestartPolicy, prepare: str, prepare_s: float, stop_s: float
    ) -> None:
        self._command = command
        self._policy = policy
        self._prepare = prepare if prepared.runs_here(command[0]) else prepared.NOTHING
        self._prepare_s = prepare_s
        self._stop_s = stop_s
        self._stop: int | None = None  # the signal that ends this supervisor
        self._next: Driver | None = None
        self._not_before_s = 0.0  # monotonic, of the next preparation
        self._wake, self._waker = os.pipe()

    def run(self) -> int:
        """The exit code: the program's, or 130 after SIGTERM or SIGINT."""
        processes.become_subreaper()
        with self._signals():
            try:
                return self._run()
            finally:
                self._drop_next()

    def _run(self) -> int:
        ended: deque[str] = deque(maxlen=MARKS)
        while True:
            driver = self._take_next()
            driver.go(list(ended))
            log.info("driver %d runs: %s", driver.pid, " ".join(self._command))
            code = self._watch(driver)
            ran_s = time.monotonic() - driver.began_s
            level = logging.INFO if code == EXIT_OK or self._stop is not None else logging.WARNING
            log.log(level, "driver %d has ended after %.1f s: %s", driver.pid, ran_s, how_it_ended(code))
            if self._clear(driver, code):
                ended.append(driver.mark)
            if self._stop is not None:
                log.info("stopped by %s", signal.Signals(self._stop).name)
                return EXIT_OK if code == EXIT_OK else EXIT_INTERRUPTED
            verdict = self._policy.judge(code, ran_s)
            if verdict.pause_s is None:
                log.log(logging.INFO if code == EXIT_OK else logging.ERROR, "no restart: %s", verdict.text)
                return exit_code(code)
            log.info("%s", verdict.text)
            if not self._pause(verdict.pause_s):
                return EXIT_INTERRUPTED

    # --- the driver

    def _take_next(self) -> Driver:
        """The prepared process, or a new one."""
        found, self._next = self._next, None
        if found is not None and found.process.poll() is None:
            return found
        if found is not None:
            found.close()
        return Driver(self._command, self._prepare, ahead=False)

    def _watch(self, driver: Driver) -> int:
        """Wait for its end, and return its code; end it when this supervisor is to end."""
        killed_s: float | None = None
        while (code := driver.process.poll()) is None:
            now_s = time.monotonic()
            if self._stop is not None and killed_s is None:
                log.info("ending driver %d: it has %g s", driver.pid, self._stop_s)
                driver.process.terminate()
                killed_s = now_s + self._stop_s
            if killed_s is not None and now_s >= killed_s:
                log.warning("driver %d did not end in time, and is killed", driver.pid)
                driver.process.kill()
            if self._stop is None:
                self._prepare_next(driver, now_s)
            self._sleep(1.0 if killed_s is None else min(1.0, max(0.01, killed_s - now_s)), driver, self._next)
        return code

    def _clear(self, driver: Driver, code: int) -> bool:
        """End what the driver has left running. Returns whether nothing of it runs any more."""
        driver.close()
        begun_s = time.monotonic()
        spared = None if self._next is None else self._next.pid
        owned = set() if spared is None else {spared}

        def left() -> list[Any]:
            processes.reap(owned)
            return processes.processes_of(driver.pid, spared)

        if code == EXIT_OK and processes.wait_gone(left, GRACE_S):
            return True
        count = len(left())
        remaining = processes.end_all(left)
        if remaining:
            log.error("processes of driver %d cannot be ended: %s", driver.pid, [process.pid for process in remaining])
        elif count:
            took_s = time.monotonic() - begun_s
            log.info("ended %d processes that driver %d had left, in %.3f s", count, driver.pid, took_s)
        return not remaining

    # --- the next driver

    def _prepare_next(self, driver: Driver, now_s: float) -> None:
        """Prepare the next driver once this one has settled, and another in the place of one that has died."""
        if self._next is not None and self._next.process.poll() is not None:
            log.warning("the prepared process %d has died; another follows in %g s", self._next.pid, NEXT_PREPARED_S)
            self._next.close()
            self._next, self._not_before_s = None, now_s + NEXT_PREPARED_S
        begin_s = max(driver.busy_s + self._prepare_s, self._not_before_s)
        if self._prepare == prepared.NOTHING or self._next is not None or now_s < begin_s:
            return
        self._next = Driver(self._command, self._prepare, ahead=True)
        self._next.order(spark=driver.settings)

    def _drop_next(self) -> None:
        found, self._next = self._next, None
        if found is not None:
            found.close()
            found.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                found.process.wait(processes.JAVA_STOP_S)
            processes.end_all(lambda: self._left_of(found))
            found.process.wait()

    def _left_of(self, driver: Driver) -> list[Any]:
        driver.process.poll()
        processes.reap({driver.pid})
        return processes.processes_of(driver.pid, None)

    # --- waiting

    def _pause(self, pause_s: float) -> bool:
        """Wait; returns ``False`` when this supervisor is to end."""
        until_s = time.monotonic() + pause_s
        while self._stop is None and (left_s := until_s - time.monotonic()) > 0:
            self._sleep(left_s, self._next)
        return self._stop is None

    def _sleep(self, longest_s: float, *drivers: Driver | None) -> None:
        """Until a signal, the end of a child or a report, but no longer than that."""
        reporting = {driver.reports: driver for driver in drivers if driver is not None and driver.reports is not None}
        ready, _, _ = select.select([self._wake, *reporting], [], [], longest_s)
        if self._wake in ready:
            os.read(self._wake, REPORT_BYTES)
        for handle, driver in reporting.items():
            if handle in ready:
                driver.read_reports()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(number: int, _frame: object) -> None:
            self._stop = self._stop or number

        os.set_blocking(self._waker, False)
        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGCHLD: lambda _number, _frame: None}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        woken = signal.set_wakeup_fd(self._waker)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake)
            os.close(self._waker)
