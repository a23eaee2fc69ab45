"""The keeper of a slot: what the Spark task of a slot runs.

The keeper forks the slot's process, waits for its end, and forks the next one, until the job is over. So Spark sees no
failed task when a slot's process dies, the slot keeps its core, and the next process has everything loaded already.

Rules:

- The keeper starts no thread and opens no connection, so that it can fork at any time.
- A slot's process never returns to PySpark's code, and does not outlive its keeper (Linux; on other systems it ends
  when its control stream breaks).
- A process that ends before the driver has let it in is a failed start. After each one the keeper pauses, twice as long
  each time. After ``STARTS`` of them in a row it fails the task: Spark may find a better executor.
- When the executor has ended, the keeper forks no more.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flinkplus.errors import SlotStartError
from flinkplus.protocol.liveness.reachability import pause_ms
from flinkplus.runtime.daemon import load
from flinkplus.runtime.host.scratch import is_alive, is_over
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.slot.process.slot import CoordinatorLost
from flinkplus.runtime.slot.process.slot_process import ProcessStart, run_slot
from flinkplus.runtime.slot.process.start_failure import report_failed_start

STARTS = 3
REST_S = 0.1
PR_SET_PDEATHSIG = 1
ENDED, FAILED = 0, 1
OPEN_FILES = Path("/dev/fd")

log = logging.getLogger("flinkplus.slot")

RunSlot = Callable[[int, SlotConfig, ProcessStart], None]


def keep_slot(index: int, config: SlotConfig, run: RunSlot = run_slot) -> None:
    """Have a process run (``run``) slot ``index`` until the job is over, or the driver is known to be dead. Called in a
    Spark task, in its main thread. Raises ``CoordinatorLost`` when the executor is gone, ``SlotStartError`` when the
    process cannot start."""
    load()
    attempt, retries = _spark_attempt()
    executor = os.getppid()
    failed = 0
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGCHLD)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # sent when the driver dies; the slot notices by its control stream
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        while not is_over(config.directory):
            tries = retries * STARTS + failed
            code, welcomed = _run_process(partial(_run, run, index, config, attempt, tries, failed + 1 >= STARTS))
            if code == ENDED:
                return
            if _is_driver_dead(config):
                return  # a task that fails would only leave its trace in the log of a Java process that ends
            if os.getppid() != executor:
                raise CoordinatorLost(f"slot {index}: its executor is gone")
            failed = 0 if welcomed else failed + 1
            if failed:
                _failed_start(index, config, tries, failed, code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed_start(index: int, config: SlotConfig, tries: int, failed: int, code: int) -> None:
    """Pause. Raises ``SlotStartError`` after the last one of ``STARTS``."""
    died = SlotStartError(f"its process was ended by {_signal_name(-code)} before it had started")
    if code < 0:  # a process that raised has reported that itself
        _run_process(lambda _fd: report_failed_start(index, config, tries, died))
    _rest(pause_ms(tries) / 1000 if tries else 0.0, config)
    if failed >= STARTS and not is_over(config.directory):
        raise SlotStartError(f"slot {index} has not started in {failed} tries; the driver's log says why")


def _run(run: RunSlot, index: int, config: SlotConfig, attempt: int, tries: int, last: bool, to_keeper: int) -> None:
    run(index, config, ProcessStart(attempt, tries, lambda: os.write(to_keeper, b"."), last))


def _run_process(work: Callable[[int], object]) -> tuple[int, bool]:
    """Fork a process that does ``work``, and wait for its end. Returns its code (``os.waitstatus_to_exitcode``), and
    whether the driver has let it in: then ``work`` has written to the open file that it gets."""
    welcomed, to_keeper = os.pipe()
    keeper = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
        if pid == 0:
            _be_process(keeper, work, to_keeper)
        _, status = os.waitpid(pid, 0)
        os.set_blocking(welcomed, False)  # a process that the slot has started may hold the other end
        try:
            said = os.read(welcomed, 1)
        except BlockingIOError:
            said = b""
    finally:
        os.close(welcomed)
        os.close(to_keeper)
    return os.waitstatus_to_exitcode(status), bool(said)


def _be_process(keeper: int, work: Callable[[int], object], fd: int) -> None:
    """The life of the forked process. Never returns: what is above it on the stack belongs to the keeper."""
    code = FAILED
    try:
        _end_with(keeper)
        _leave_connections()
        work(fd)
        code = ENDED
    except Exception:
        log.debug("the slot's process is ending", exc_info=True)  # ``run_slot`` has logged or reported what matters
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _end_with(keeper: int) -> None:
    """Have the system kill this process when its keeper ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:  # it ended just before
            os._exit(FAILED)


def _leave_connections() -> None:
    """Take this process's copies of the keeper's connections to Spark away, without freeing their numbers."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir(OPEN_FILES):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.dup2(nowhere, int(name), inheritable=False)
        except OSError:
            continue  # the directory's own file, closed by now
    os.close(nowhere)


def _rest(pause_s: float, config: SlotConfig) -> None:
    """Wait, as long as there is a job to wait for."""
    until_s = time.monotonic() + pause_s
    while time.monotonic() < until_s and not is_over(config.directory) and not _is_driver_dead(config):
        time.sleep(REST_S)


def _is_driver_dead(config: SlotConfig) -> bool:
    """Whether the driver is known to be dead: it is looked for on its own host only."""
    return config.directory is not None and not is_alive(*config.driver)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _spark_attempt() -> tuple[int, int]:
    """The ID of this attempt of the Spark task, larger than those of all earlier ones; how many failed before it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (0, 0) if context is None else (context.taskAttemptId(), context.attemptNumber())
