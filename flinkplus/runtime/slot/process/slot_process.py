"""The life of a slot's process: it makes the slot, runs it, and leaves or removes the slot's files.

Rules: what ends a slot is logged here, in one line. A slot that fails before its driver knows of it reports why. The
scratch directory is removed at the end, unless the slot's next process has a use for the state files.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from flinkplus.errors import described
from flinkplus.runtime.base.logs import install, speak_as
from flinkplus.runtime.host.allocator import use_one_arena
from flinkplus.runtime.host.cleanup import remove_tree
from flinkplus.runtime.host.scratch import is_alive, is_over, is_removed, leave_scratch, make_scratch, remove_scratch
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.slot.process.slot import CoordinatorLost, Slot
from flinkplus.runtime.slot.process.start_failure import report_failed_start
from flinkplus.state import removal

SWITCH_INTERVAL_S = 0.001  # the I/O thread must not wait 5 ms for the interpreter
ORPHAN_PATIENCE_S = 2.0

log = logging.getLogger("flinkplus.slot")


@dataclass(frozen=True)
class ProcessStart:
    """One start of a slot's process.

    ``attempt``: ID of the Spark task's attempt, larger than those of all earlier ones.
    ``tries``: how many processes in a row have not started before it; ``last``: the task fails if this one fails.
    ``welcomed``: called when the driver has let the process in.
    """

    attempt: int = 0
    tries: int = 0
    welcomed: Callable[[], object] = lambda: None
    last: bool = False


def run_slot(index: int, config: SlotConfig, start: ProcessStart = ProcessStart()) -> None:
    """Run slot ``index`` in this process until the job ends. Does nothing when the job has ended already. Raises
    ``CoordinatorLost`` when the driver is gone, and any other error that ends the slot."""
    made: list[Slot] = []
    try:
        _run_slot(index, config, start, made)
    except Exception as error:
        level = logging.INFO if isinstance(error, CoordinatorLost) else logging.WARNING
        if (
            level == logging.WARNING
            and not any(slot.welcomed for slot in made)
            and report_failed_start(index, config, start.tries, error)
        ):
            level = logging.DEBUG  # the driver says it
        log.log(level, "slot %d ends: %s", index, described(error))
        log.debug("traceback", exc_info=True)
        raise


def refuse_slot(error: Exception, index: int, config: SlotConfig, start: ProcessStart) -> None:
    """Report that slot ``index`` cannot start, and why; raises ``error``."""
    report_failed_start(index, config, start.tries, error)
    raise error


def _run_slot(index: int, config: SlotConfig, start: ProcessStart, made: list[Slot]) -> None:
    if is_over(config.directory):
        _remove_job(config, orphaned=False)
        return
    speak_as(whole_process=True, job=config.application, slot=index)
    install(config.log)
    use_one_arena()
    previous = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # sent when the driver dies; the control stream tells us
    scratch = make_scratch(config.job_id, index, config.scratch)
    failure: Exception | None = None
    try:
        slot = Slot(index, config, scratch.path, start.attempt, start.welcomed)
        made.append(slot)
        slot.keep_tidy(scratch.tidy)
        slot.run()
    except Exception as error:
        failure = error
        if not (isinstance(error, CoordinatorLost) and is_over(config.directory)):
            raise
    finally:
        welcomed = any(slot.welcomed for slot in made)
        keeps = failure is not None and _has_successor(config, failure, welcomed, start.last)
        for slot in made:
            slot.close(keeps)
        if keeps:
            leave_scratch(scratch)
        else:
            remove_scratch(scratch)
        removal.hurry()
        _remove_job(config, any(slot.orphaned for slot in made))
        sys.setswitchinterval(previous)
        signal.signal(signal.SIGHUP, hang_up)


def _has_successor(config: SlotConfig, failure: Exception, welcomed: bool, last: bool) -> bool:
    """Whether the job runs on after ``failure`` of this process, as far as is known here: then its keeper starts the
    next one, which can use the state files. Away from the driver's host the driver may be dead: then only the slot's
    processes remove the files."""
    if config.directory is not None:
        return is_alive(*config.driver) and not is_over(config.directory)
    if welcomed:
        return not isinstance(failure, CoordinatorLost)
    return not last


def _remove_job(config: SlotConfig, orphaned: bool) -> None:
    """Remove the job's own directory when the driver will not: it is dead, or did so before the slot wrote there."""
    directory = config.directory
    if directory is not None and ((orphaned and not is_alive(*config.driver)) or is_removed(directory)):
        remove_tree(directory, ORPHAN_PATIENCE_S)
