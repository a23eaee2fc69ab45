"""A job whose state is filled, and that was then ended: what the jobs that are measured are resumed from.

Each of them gets the files anew, under the paths of before. Large ones are links, since no file of state is ever
changed: a copy would occupy the disk while the next job is measured.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.harness.running import Context, wait_until
from experiments.rescale.job import FILL_RATE, KEEP, KEYS_PER_MB, NAME, RescaledJob
from flinkplus.api.job import JobHandle
from flinkplus.state.file_system import link_or_copy

CHECKPOINTS_BEHIND = 2
"""Complete checkpoints between the last of the state and the end of the job: all of it is in the last."""
START_S, FILL_MB_PER_S = 60.0, 2.0
"""How long the fill may take: to start, and for the state."""
POLL_S = 0.05
LINKED_BYTES = 1 << 16


class Filled:
    """The files of the job whose state has been filled, ``keep``, and the directory where its successors run."""

    def __init__(self, job: RescaledJob, keep: Path) -> None:
        self._job, self._keep = job, keep

    def fill(self, context: Context[Any], options: dict[str, Any]) -> None:
        """Run the job until its state is in a checkpoint, and put its files aside. Raises ``RunError``, or what the job
        raises."""
        job, keys = self._job, self._job.keys
        deadline = time.monotonic() + START_S + keys / KEYS_PER_MB / FILL_MB_PER_S
        with job.environment(context, options, FILL_RATE).execute(NAME) as running:

            def complete() -> int:
                return int(running.metrics()["checkpoints_completed"])

            def until(condition: Callable[[], bool]) -> None:
                wait_until(running, condition, deadline, context.stop, POLL_S)

            until(lambda: running.running_s is not None)
            until(lambda: not keys or _kept(running) >= keys)
            filled = complete()
            until(lambda: complete() >= filled + CHECKPOINTS_BEHIND)
            running.cancel()
        job.directory.rename(self._keep)

    def again(self) -> None:
        """The files, as they were, for another run."""
        shutil.rmtree(self._job.directory, ignore_errors=True)
        shutil.copytree(self._keep, self._job.directory, copy_function=_second)

    def clear(self) -> None:
        """Remove the files of the last run."""
        shutil.rmtree(self._job.directory, ignore_errors=True)


def _second(source: str, target: str) -> None:
    if os.stat(source).st_size < LINKED_BYTES:
        shutil.copy(source, target)
    else:
        link_or_copy(Path(source), Path(target))


def _kept(job: JobHandle) -> int:
    return sum(job.rows_out(KEEP).values())
