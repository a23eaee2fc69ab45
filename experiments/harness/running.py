"""Runs of jobs: one session for all of them, waiting for a job, measuring it, comparing its output."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql import SparkSession

from experiments.cluster.place import Place
from experiments.harness.arguments import option
from experiments.harness.processes import ProcessSampler
from experiments.harness.text import write_text
from flinkplus.api.job import JobHandle
from flinkplus.cli.batch_check import BatchCheck, check_output
from flinkplus.config import TRANSPORTS
from flinkplus.corpus import write_corpus
from flinkplus.errors import InvariantViolation
from flinkplus.runtime.control.names import parse_subtask

POLL_S = 0.01
START_S = 60.0
SETTLE_S = 2.0
"""How long a job runs before it is measured."""
WORDS, VOCABULARY = 1_100_000, 50_000
ENDLESS = 1_000_000_000
CHECK_TAG = "flinkplus-check"


class RunError(Exception):
    """A run that does not count: it says why."""


class BaseSettings(Protocol):
    """What the settings of every experiment have."""

    @property
    def seed(self) -> int: ...

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""


@dataclass(frozen=True)
class JobSettings:
    """Options of every experiment: those of all its jobs."""

    transport: str = option(
        TRANSPORTS[0], choices=TRANSPORTS, help="what carries messages of the jobs (default: %(default)s)"
    )

    def job_options(self) -> dict[str, Any]:
        """Options of every job."""
        return {"transport": self.transport}


@dataclass(frozen=True)
class TextSettings(JobSettings):
    """Options of every experiment whose jobs count words. ``input``: a file of text, ``None`` for a made-up text."""

    input: str | None = option(
        None,
        metavar="FILE",
        help="text whose words are counted, read over and over if it is too short (default: made up)",
    )


def input_of(settings: object) -> Path | None:
    """The file of ``--input``, where there is the option and it was given."""
    return Path(settings.input) if isinstance(settings, TextSettings) and settings.input is not None else None


S = TypeVar("S", bound=BaseSettings)


@dataclass
class Context(Generic[S]):
    """What the runs of an experiment are given.

    ``session``: ``None`` where the runs start what they need themselves.
    ``directory``: for the files of all runs. On a cluster (``place``) its hosts share it.
    ``content``: of the document. ``out``: the directory of ``--out``.
    ``begin``: shows what is going on; the experiment calls it at the beginning of each run. ``say``: a line that stays.
    ``stop``: when it is set the present run ends soon, and no other begins.
    """

    session: SparkSession | None
    settings: S
    directory: Path
    content: dict[str, Any] = field(default_factory=dict)
    out: Path | None = None
    place: Place | None = None
    begin: Callable[[str], None] = lambda text: None
    say: Callable[[str], None] = lambda text: None
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def spark(self) -> SparkSession:
        """The session. Raises ``InvariantViolation`` in an experiment without one."""
        if self.session is None:
            raise InvariantViolation("this experiment has no session of its own")
        return self.session

    def end(self) -> None:
        """Set ``stop``, and cancel the comparison that is under way."""
        self.stop.set()
        if self.session is not None:
            self.session.sparkContext.cancelJobsWithTag(CHECK_TAG)

    def text(self, words: int = WORDS, vocabulary: int = VOCABULARY, uniform: bool = False) -> Path:
        """A text of so many words: of the file of ``--input``, or a made-up one, which depends on the seed alone.
        ``uniform``: its words are equally likely; else by Zipf's law.

        Raises ``ConfigurationError`` when that file cannot be read.
        """
        given = input_of(self.settings)
        path = self.directory / f"{'made-up' if given is None else 'text'}-{words}.txt"
        if path.exists():
            return path
        if given is None:
            write_corpus(path, words, vocabulary, self.settings.seed, uniform=uniform)
        else:
            write_text(given, path, words)
        return path

    @contextlib.contextmanager
    def run_directory(self, name: str) -> Iterator[Path]:
        """A directory of one run, which is removed behind the block."""
        directory = self.directory / name
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def batch_check(self, output: Path, text: Path, repeat: int = 1) -> BatchCheck:
        """Compare the output of a WordCount with a Spark SQL batch count."""
        context = self.spark.sparkContext
        context.addJobTag(CHECK_TAG)  # so that an interrupt can cancel this query, and no other
        try:
            return check_output(self.spark, str(output), [str(text)], repeat)
        finally:
            context.removeJobTag(CHECK_TAG)


def error_of(run: Callable[[], None]) -> str | None:
    """What ended ``run``, in words; ``None`` when it came to its end."""
    try:
        run()
    except Exception as problem:  # any error ends this run alone, and is in its figures
        return f"{type(problem).__name__}: {problem}"
    return None


def wait_until(
    job: JobHandle,
    condition: Callable[[], bool],
    deadline: float,
    stop: threading.Event | None = None,
    poll_s: float = POLL_S,
) -> None:
    """Wait for a condition of a running job. ``deadline``: on the monotonic clock; ``poll_s``: between two looks.

    Raises ``RunError`` when the job has finished instead, at the deadline, or when ``stop`` is set; and what the job
    has failed with.
    """
    while not condition():
        if job.done:
            job.await_finish()
            raise RunError("the input ended too early")
        if time.monotonic() > deadline:
            raise RunError(f"not finished in time; the job is {job.state}")
        if stop is not None and stop.is_set():
            raise RunError("interrupted")
        job.wait(poll_s)


def run_until(job: JobHandle, running_s: float, stop: threading.Event) -> None:
    """Let a job run until it has run for so many seconds, or has ended.

    Raises ``RunError`` when it does not run for so long in time, or when ``stop`` is set; and what the job has failed
    with.
    """
    deadline = time.monotonic() + START_S + running_s
    while (job.running_s or 0.0) < running_s and not job.done:
        if time.monotonic() > deadline:
            raise RunError(f"not running in time; the job is {job.state}")
        if stop.wait(POLL_S):
            raise RunError("interrupted")
    if job.done:
        job.await_finish()


def measure(
    job: JobHandle,
    operator: str,
    seconds: float,
    stop: threading.Event,
    then: Callable[[], None] = lambda: None,
) -> tuple[float, dict[str, Any]]:
    """Rows per second that ``operator`` puts out, and CPU and memory, once the job has settled.

    Measured for ``seconds``, and until ``then`` returns. Raises as ``run_until``.
    """

    def rows() -> int:
        return sum(job.rows_out(operator).values())

    run_until(job, SETTLE_S, stop)
    begun_s, before = time.monotonic(), rows()
    with ProcessSampler(job.slot_pids) as sampler:
        run_until(job, SETTLE_S + seconds, stop)
        then()
        ended_s, after = time.monotonic(), rows()
    return round((after - before) / (ended_s - begun_s), 1), sampler.figures()


def parallelism_of(job: JobHandle) -> int | None:
    """The parallelism at which a job with standbys runs just now; ``None`` when it is over, or has none."""
    found = [parse_subtask(subtask).index for subtask in job.chains()]
    return max(found) + 1 if found else None


def complete(job: JobHandle, earlier: int = 0) -> list[dict[str, Any]]:
    """The complete ones of the job's checkpoints, without the first ``earlier``."""
    return [checkpoint for checkpoint in job.checkpoints()[earlier:] if checkpoint["status"] == "complete"]


@contextlib.contextmanager
def one_session(master: str | None, slots: int, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """One SparkSession for all runs, with further ``settings``; its start costs seconds."""
    from flinkplus.cli import session

    master = master or session.default_master(slots)
    session.check_master(master, slots)
    with session.session(master, settings) as spark:
        yield spark
