"""What experiments share around their runs: one session for all of them, waiting for a job, showing what was found."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from flinkplus.api.job import JobHandle

POLL_S = 0.01
START_S = 60.0


class RunError(Exception):
    """A run that does not count: it says why."""


def wait_until(job: JobHandle, condition: Callable[[], bool], deadline: float, stop: threading.Event) -> None:
    """Wait for a condition of a job that goes on. ``deadline``: on the monotonic clock.

    Raises ``RunError`` when the job has finished instead, at the deadline, or when ``stop`` is set; and what the job
    has failed with.
    """
    while not condition():
        if job.done:
            job.await_finish()
            raise RunError("the input ended before the kill")
        if time.monotonic() > deadline:
            raise RunError(f"not finished in time; the job is {job.state}")
        if stop.is_set():
            raise RunError("interrupted")
        job.wait(POLL_S)


def run_until(job: JobHandle, running_s: float, stop: threading.Event) -> None:
    """Let a job run until it has run for so many seconds, or is over.

    Raises ``RunError`` when it does not come to that, or when ``stop`` is set; and what the job has failed with.
    """
    deadline = time.monotonic() + START_S + running_s
    while (job.running_s or 0.0) < running_s and not job.done:
        if time.monotonic() > deadline:
            raise RunError(f"not running in time; the job is {job.state}")
        if stop.wait(POLL_S):
            raise RunError("interrupted")
    if job.done:
        job.await_finish()


@contextlib.contextmanager
def one_session(master: str | None, slots: int, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """One SparkSession for all runs, with further ``settings``; its start costs seconds."""
    from flinkplus.cli import session

    master = master or session.default_master(slots)
    session.check_master(master, slots)
    with session.session(master, settings) as spark:
        yield spark
