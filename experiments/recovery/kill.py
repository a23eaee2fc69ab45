"""One run with one kill, and what it took.

WordCount at a steady rate over a made-up text; when two checkpoints are complete (and the ballast, if any, is in them),
a moment drawn uniformly from the next checkpoint interval; the failure of a subtask of ``count``, drawn as well; the
rest of the text; the output compared with a Spark SQL batch count of the same text.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from experiments.recovery import measure
from experiments.recovery.processes import ProcessSampler
from experiments.recovery.settings import CHECKPOINTS_AFTER_FILL, CHECKPOINTS_BEFORE, Case, Settings
from experiments.recovery.summary import PHASES
from experiments.recovery.workload import PROBE, Probe, Trigger, draw
from experiments.running import RunError, wait_until
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.batch_check import check_output
from flinkplus.cli.wordcount import COUNT, TOKENIZE

PATIENCE_S = 90.0
CHECK_TAG = "flinkplus-check"
TIMELINE_S = (2.0, 3.0)
"""Seconds before and after the kill that are kept for a picture."""


@dataclass(frozen=True)
class Kill:
    """Which subtask fails, when after the last checkpoint that was waited for, and how."""

    index: int
    offset_s: float
    trigger: Trigger | None

    @classmethod
    def drawn(cls, case: Case, interval: float, directory: Path) -> Kill:
        generator = np.random.default_rng(case.seed)
        trigger = Trigger(directory) if case.failure == "exception" else None
        return cls(int(generator.integers(case.parallelism)), float(generator.uniform(0, interval)), trigger)

    @property
    def subtask(self) -> str:
        return f"{COUNT}[{self.index}]"

    def strike(self, job: JobHandle) -> float:
        """Do it; the time right before, in seconds since the Unix epoch."""
        now_s = time.time()
        if self.trigger is None:
            job.kill(self.subtask)
        else:
            self.trigger.pull(self.index)
        return now_s


class KillRun:
    """One run; ``figures`` holds what is known so far, also when it fails."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        case: Case,
        text: Path,
        directory: Path,
        kill: Kill,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._case = case
        self._text = text
        self._output = directory / "out"
        self._traces = directory / "trace"
        self._kill = kill
        self._stop = stop
        self._struck_s = 0.0
        self.timeline: dict[str, Any] | None = None
        self.figures: dict[str, Any] = {"exact": False, "fallback": None, "recovery_ms": None, "caught_up_ms": None}
        self.figures |= {f"{phase}_ms": None for phase in PHASES}
        self.figures |= {f"output_gap_{which}_ms": None for which in ("failed", "others", "before")}

    def run(self) -> None:
        """Run the job with its kill to its end, and check its output. Raises ``RunError``, or what the job raises."""
        case = self._case
        env = StreamEnvironment(self._spark, trace_output=str(self._traces), **self._settings.options(case))
        probe = None
        if self._kill.trigger is not None or case.state_keys:
            probe = Probe(PROBE, self._kill.trigger, case.state_keys)
        draw(env, str(self._text), str(self._output), self._settings.rate, probe)
        with env.execute("recovery") as job:
            deadline = time.monotonic() + self._settings.words(case.state_keys) / self._settings.rate + PATIENCE_S
            self._until(job, lambda: job.running_s is not None, deadline)
            with ProcessSampler(job.slot_pids) as sampler:
                self._until(job, lambda: job.metrics()["state_keys"] >= case.state_keys, deadline)
                filled = job.metrics()["checkpoints_completed"]
                wanted = filled + CHECKPOINTS_AFTER_FILL if case.state_keys else CHECKPOINTS_BEFORE
                self._until(job, lambda: job.metrics()["checkpoints_completed"] >= wanted, deadline)
                self._stop.wait(self._kill.offset_s)
                if job.state != "running":
                    raise RunError(f"the job was {job.state} when it was to be killed")
                self._struck_s = self._kill.strike(job)
                self._until(job, lambda: job.done, deadline)
            self._note(job, sampler)
            job.await_finish()
        self._check()

    def _until(self, job: JobHandle, condition: Callable[[], bool], deadline: float) -> None:
        wait_until(job, condition, deadline, self._stop)

    def _note(self, job: JobHandle, sampler: ProcessSampler) -> None:
        metrics = job.metrics()
        recoveries = job.recoveries()
        self.figures |= {
            "words": metrics["operators"][TOKENIZE]["rows_out"],
            "running_s": metrics["running_s"],
            "state_bytes": metrics["state_bytes"],
            "checkpoints": metrics["checkpoints_completed"],
            "slot_restarts": metrics["slot_restarts"],
            "usage": sampler.figures(),
            "recoveries": recoveries,
        }
        unplanned = [recovery for recovery in recoveries if recovery["failure"] != "handover"]
        if not unplanned:
            raise RunError("the kill led to no recovery")
        reasons = [recovery["fallback"] for recovery in unplanned if recovery["fallback"]]
        modes = [recovery["mode"] for recovery in unplanned if recovery["mode"] != self._case.recovery]
        self.figures["fallback"] = next(iter(reasons + [f"recovered by {mode}" for mode in modes]), None)
        self._measure(unplanned[0], job.output_trace())

    def _measure(self, recovery: dict[str, Any], trace: dict[str, list[tuple[float, int]]]) -> None:
        """The times of the recovery: phases as the job tells them, everything about output from the trace."""
        known = {f"{phase}_ms": recovery[f"{phase}_ms"] for phase in PHASES}
        known |= {"registry_ms": recovery["registry_ms"]}
        known |= {"recovery_ms": recovery["recovery_ms"], "caught_up_ms": recovery["caught_up_ms"]}
        killed_s = recovery["begin_s"]
        detected_s = killed_s + (known["detect_ms"] or 0.0) / 1e3
        silent_s = detected_s
        if self._kill.trigger is not None:
            killed_s = silent_s = self._kill.trigger.raised_s(self._kill.index) or self._struck_s
            known["detect_ms"] = measure.milliseconds(killed_s, detected_s)
        self.figures |= known
        arrival = measure.Arrival(self._settings.rate, self._settings.words(self._case.state_keys))
        failed = [name for name in trace if name.endswith(f"[{self._kill.index}]")]
        self.figures |= measure.figures(trace, failed, arrival, killed_s, silent_s)
        total, before = self.figures["recovery_ms"], [known[f"{phase}_ms"] for phase in PHASES[:-1]]
        if total is not None and None not in before:
            self.figures["replay_ms"] = round(max(0.0, total - sum(before)), 3)
        begin_s, end_s = killed_s - TIMELINE_S[0], killed_s + TIMELINE_S[1]
        self.timeline = {
            **dataclasses.asdict(self._case),
            "failed": failed,
            "bucket_s": measure.BUCKET_S,
            "kill_at_s": TIMELINE_S[0],
            "phases_ms": {phase: self.figures[f"{phase}_ms"] for phase in PHASES},
            "recovery_ms": total,
            "rows_per_s": measure.buckets(trace, begin_s, end_s),
        }

    def _check(self) -> None:
        words = self._settings.words(self._case.state_keys)
        context = self._spark.sparkContext
        context.addJobTag(CHECK_TAG)  # so that an interrupt can cancel this query, and nothing else
        try:
            check = check_output(self._spark, str(self._output), [str(self._text)], 1)
        finally:
            context.removeJobTag(CHECK_TAG)
        exact = check.matches and check.words == words == self.figures["words"]
        self.figures |= {"exact": exact, "wrong_words": check.wrong, "example_of_wrong_word": check.example}
