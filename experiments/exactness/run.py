"""One run: the job, its failures, and whether its output is exact to the last row.

When as much of the input has been read as the seed says, the failures come, at once or one after the other; then the
rest of the input, the end, and the check. What came of it is told whatever came of it.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from experiments.exactness import pipeline
from experiments.exactness.check import check
from experiments.exactness.settings import EXCEPTION, WORDS, Case, Settings, Strike
from experiments.recovery.workload import Trigger
from experiments.running import wait_until
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.runtime.coordinator.record.recovery_log import HANDOVER

PATIENCE_S = 40.0
RECORDED = ("mode", "failure", "subtasks", "reason", "recovery_ms", "fallback")
RECORD, OUTPUT = "machines", "out"


class Runner:
    """All runs of an experiment. ``begun`` is told before each; ``stop`` may come from another thread.

    ``zookeeper``: an ensemble that all jobs use (``None``: one each). ``keep``: where the output, and the record of the
    coordinator's machines, of a run that is not exact or not local are kept. ``patience_s``: for a job, beyond the time
    that its input takes.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        directory: Path,
        begun: Callable[[Case], None],
        zookeeper: str | None = None,
        keep: Path | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._directory = directory
        self._begun = begun
        self._zookeeper = zookeeper
        self._keep = keep
        self._patience_s = patience_s
        self._stop = threading.Event()

    def stop(self) -> None:
        """End the run that is under way, which fails, and begin no other."""
        self._stop.set()

    def outcomes(self, cases: Iterable[Case]) -> Iterator[dict[str, Any]]:
        """The figures of one run after the other."""
        for case in cases:
            if self._stop.is_set():
                return
            self._begun(case)
            yield self._run(case)

    def _run(self, case: Case) -> dict[str, Any]:
        directory = self._directory / f"run-{case.run}"
        directory.mkdir()
        run = _Run(self._spark, self._settings, case, directory, self._zookeeper, self._patience_s, self._stop)
        began = time.monotonic()
        error = None
        try:
            run.run()
        except Exception as problem:  # whatever it is, it ends this run and is told in its figures
            error = f"{type(problem).__name__}: {problem}"
        figures = {**dataclasses.asdict(case), **run.figures, "error": error}
        figures["took_s"] = round(time.monotonic() - began, 2)
        if self._keep is not None and (not figures["exact"] or figures["fallbacks"]) and not self._stop.is_set():
            shutil.copytree(directory, self._keep / directory.name, dirs_exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        return figures


class _Run:
    """One run; ``figures`` holds what is known so far, also when it fails."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        case: Case,
        directory: Path,
        zookeeper: str | None,
        patience_s: float,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._case = case
        self._directory = directory
        self._zookeeper = zookeeper
        self._patience_s = patience_s
        self._stop = stop
        self._output = directory / OUTPUT
        self._raises = pipeline.triggers(directory)
        self.figures: dict[str, Any] = {"exact": False, "damage": {}, "examples": {}}
        self.figures |= {"failovers": 0, "fallbacks": 0, "recoveries": []}

    def run(self) -> None:
        """Raises ``RunError``, or what the job raises."""
        case, rows = self._case, self._case.rows
        words = pipeline.Input(case.seed, case.vocabulary)
        for trigger in self._raises.values():
            trigger.directory.mkdir()
        env = StreamEnvironment(
            self._spark,
            zookeeper=self._zookeeper,
            record_machines=str(self._directory / RECORD),
            **self._settings.options(),
        )
        pipeline.draw(env, words, rows, case.rate, str(self._output), self._raises)
        deadline = time.monotonic() + rows / case.rate + self._patience_s
        with env.execute("exactness") as job:
            try:
                self._until(job, lambda: sum(job.rows_out(WORDS).values()) >= case.at_row, deadline)
                self._strike(job, deadline)
                self._until(job, lambda: job.done, deadline)
            finally:
                self._note(job)
            job.await_finish()
        output = pipeline.rows_of(pq.read_table(self._output))
        findings = check(output, words.words(rows), self._settings.parallelism)
        self.figures |= {"exact": findings.exact, "damage": findings.damage, "examples": findings.examples}
        self.figures["rows_out"] = findings.rows

    def _until(self, job: JobHandle, condition: Callable[[], bool], deadline: float) -> None:
        wait_until(job, condition, deadline, self._stop)

    def _strike(self, job: JobHandle, deadline: float) -> None:
        for number, strike in enumerate(self._case.strikes):
            if number:
                self._stop.wait(self._case.apart_s)
            if job.done:
                self._until(job, lambda: False, deadline)  # says what has become of it
            if strike.kind == EXCEPTION:
                self._raises[strike.stage].pull(strike.index)
            else:
                job.kill(strike.subtask)

    def _note(self, job: JobHandle) -> None:
        metrics = job.metrics()
        found = [recovery for recovery in job.recoveries() if recovery["failure"] != HANDOVER]
        self.figures |= {
            "running_s": metrics["running_s"],
            "checkpoints": metrics["checkpoints_completed"],
            "slot_restarts": metrics["slot_restarts"],
            "raised": sum(_raised(strike, self._raises) for strike in self._case.strikes),
            "failovers": metrics["failovers"],
            "handovers": metrics["handovers"],
            "fallbacks": metrics["fallbacks"],
            "fallback_reasons": metrics["fallback_reasons"],
            "message_ids": metrics["message_ids"],
            "recoveries": [{name: recovery[name] for name in RECORDED} for recovery in found],
        }


def _raised(strike: Strike, raises: dict[str, Trigger]) -> bool:
    return strike.kind == EXCEPTION and raises[strike.stage].raised_s(strike.index) is not None
