"""Where a job begins and how it ended."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from flinkplus.errors import FlinkPlusError, InsufficientSlots, JobCancelled, JobFailed
from flinkplus.protocol.vocabulary.effects import EndJob, JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.base.clock import Clock

FIRST_CHECKPOINT = CheckpointId(1)
NO_GENERATION = Generation(0)


@dataclass
class Restore:
    """Where a job begins.

    ``checkpoint``: the complete checkpoint to resume from; ``None``: the start.
    ``available``: checkpoints that the job may fall back to.
    ``older``: others before them, of another parallelism.
    ``generation``: the last one of the run before.
    ``draining``: the run before was ending the input, so this one must too: sources may have ended early.
    ``wanted``: the parallelism that the job gets when it runs, because it had to begin at that of its checkpoint.
    ``finished``: the checkpoint is the final one of a finished job.
    """

    checkpoint: CheckpointId | None = None
    available: tuple[CheckpointId, ...] = ()
    older: tuple[CheckpointId, ...] = ()
    next_checkpoint: CheckpointId = FIRST_CHECKPOINT
    generation: Generation = NO_GENERATION
    draining: bool = False
    wanted: int | None = None
    finished: bool = False


@dataclass
class JobResult:
    """How the job ended; ``error`` is what ``await_finish`` raises. ``ended_s``: monotonic clock."""

    clock: Clock = time
    state: JobState | None = None
    error: FlinkPlusError | None = None
    ended_s: float | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def end(self, state: JobState, error: FlinkPlusError | None) -> None:
        """Set the result: the job is over."""
        self.ended_s = self.clock.monotonic()
        self.state = state
        self.error = error
        self.done.set()


def error_of(ended: EndJob, slots: int) -> FlinkPlusError | None:
    """The error for the user at the end of a job that needs ``slots`` slots; ``None`` if it finished or stopped."""
    if ended.state in (JobState.FINISHED, JobState.STOPPED):
        return None
    if ended.state is JobState.CANCELLED:
        return JobCancelled("the job was cancelled")
    if ended.failure == "slots" and ended.error is None:
        return InsufficientSlots(
            f"{ended.reason}; the job needs {slots} Spark tasks at once: give the executors more cores, or lower "
            "parallelism; if no slot registered, see the executors' logs: their Python must have flinkplus"
        )
    failed = JobFailed(ended.reason)
    if isinstance(ended.error, BaseException):
        failed.__cause__ = ended.error
    return failed
