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

from experiments.cluster.control import Control
from experiments.cluster.place import Place
from experiments.recovery import measure
from experiments.recovery.processes import ProcessSampler
from experiments.recovery.settings import (
    CHECKPOINTS_AFTER_FILL,
    CHECKPOINTS_BEFORE,
    HOST_FAILURES,
    PAUSE_S,
    Case,
    Settings,
)
from experiments.recovery.workload import PROBE, Probe, Trigger, draw
from experiments.running import RunError, wait_until
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.batch_check import check_output
from flinkplus.cli.wordcount import COUNT, TOKENIZE
from flinkplus.protocol.vocabulary.phases import DURATIONS

PATIENCE_S = 90.0
KILL = "kill"
ORDERS = dict(zip(HOST_FAILURES, (KILL, "pause", "cut"), strict=True))
"""What the harness is told to do to a host, by the kind of failure."""
CHECK_TAG = "flinkplus-check"
TIMELINE_S = (2.0, 3.0)
"""Seconds before and after the kill that are kept for a picture."""


@dataclass(frozen=True)
class Kill:
    """Which subtask fails, when after the last checkpoint that was waited for, and how: by itself, with its process,
    or with its host.
    """

    index: int
    offset_s: float
    failure: str
    trigger: Trigger | None = None
    control: Control | None = None

    @classmethod
    def drawn(cls, case: Case, interval: float, directory: Path, control: Control | None = None) -> Kill:
        generator = np.random.default_rng(case.seed)
        trigger = Trigger(directory) if case.failure == "exception" else None
        index, offset_s = int(generator.integers(case.parallelism)), float(generator.uniform(0, interval))
        return cls(index, offset_s, case.failure, trigger, control)

    @property
    def subtask(self) -> str:
        return f"{COUNT}[{self.index}]"

    def strike(self, job: JobHandle) -> Struck:
        """Do it."""
        now_s = time.time()
        if self.failure in HOST_FAILURES:
            return self._strike_host(job.placement())
        if self.trigger is None:
            job.kill(self.subtask)
        else:
            self.trigger.pull(self.index)
        return Struck(now_s, (f"[{self.index}]",))

    def _strike_host(self, placement: dict[str, str]) -> Struck:
        if self.control is None:
            raise RunError(f"the failure {self.failure} takes a cluster that this program can give orders to")
        place = next((host for name, host in placement.items() if _is_of(name, COUNT, self.index)), None)
        if place is None:
            raise RunError(f"{self.subtask} was on no host when it was to be killed")
        indices = sorted({name[name.rindex("[") :] for name, host in placement.items() if host == place})
        struck_s = self.control.order(ORDERS[self.failure], place)
        return Struck(struck_s, tuple(indices), place)


@dataclass(frozen=True)
class Struck:
    """What was done: ``time_s``, right before it, in seconds since the Unix epoch; ``failed``: what the names of the
    subtasks that it hit end with; ``host``: that it was done to.
    """

    time_s: float
    failed: tuple[str, ...]
    host: str | None = None


def _is_of(subtask: str, operator: str, index: int) -> bool:
    """Whether a subtask, as placed (``count+out[1]``), is number ``index`` of the vertex with ``operator``."""
    vertex, _, number = subtask.rstrip("]").rpartition("[")
    return operator in vertex.split("+") and number == str(index)


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
        place: Place | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._case = case
        self._text = text
        self._output = directory / "out"
        self._traces = directory / "trace"
        self._kill = kill
        self._stop = stop
        self._struck: Struck | None = None
        self._options = {} if place is None else place.options(directory)
        self.timeline: dict[str, Any] | None = None
        self.figures: dict[str, Any] = {"exact": False, "fallback": None, "recovery_ms": None, "caught_up_ms": None}
        self.figures |= {f"{phase}_ms": None for phase in DURATIONS}
        self.figures |= {f"output_gap_{which}_ms": None for which in ("failed", "others", "before")}

    @property
    def struck_host(self) -> str | None:
        """The host that something was done to, if so."""
        return None if self._struck is None else self._struck.host

    def run(self) -> None:
        """Run the job with its kill to its end, and check its output. Raises ``RunError``, or what the job raises."""
        case = self._case
        options = {**self._settings.options(case), **self._options}
        env = StreamEnvironment(self._spark, trace_output=str(self._traces), **options)
        probe = None
        if self._kill.trigger is not None or case.state_keys:
            probe = Probe(PROBE, self._kill.trigger, case.state_keys)
        draw(env, str(self._text), str(self._output), self._settings.rate, probe)
        with env.execute("recovery") as job:
            deadline = time.monotonic() + self._settings.words(case.state_keys) / self._settings.rate + PATIENCE_S
            self._until(job, lambda: job.running_s is not None, deadline)
            with ProcessSampler(self._processes(job)) as sampler:
                self._until(job, lambda: job.metrics()["state_keys"] >= case.state_keys, deadline)
                filled = job.metrics()["checkpoints_completed"]
                wanted = filled + CHECKPOINTS_AFTER_FILL if case.state_keys else CHECKPOINTS_BEFORE
                self._until(job, lambda: job.metrics()["checkpoints_completed"] >= wanted, deadline)
                self._stop.wait(self._kill.offset_s)
                if job.state != "running":
                    raise RunError(f"the job was {job.state} when it was to be killed")
                self._struck = self._kill.strike(job)
                if self._struck.host is not None and ORDERS[case.failure] != KILL:
                    self._stop.wait(PAUSE_S)
                    assert self._kill.control is not None
                    self._kill.control.order("revive", self._struck.host)
                self._until(job, lambda: job.done, deadline)
            self._note(job, sampler)
            job.await_finish()
        self._check()

    def _processes(self, job: JobHandle) -> Callable[[], dict[int, int]]:
        """The process of each slot, where they are on this machine: numbers of other hosts mean nothing here."""
        return job.slot_pids if self._settings.hosts is None else dict

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
        known = {f"{phase}_ms": recovery[f"{phase}_ms"] for phase in DURATIONS}
        known |= {"registry_ms": recovery["registry_ms"]}
        known |= {"recovery_ms": recovery["recovery_ms"], "caught_up_ms": recovery["caught_up_ms"]}
        assert self._struck is not None
        killed_s = recovery["begin_s"]
        detected_s = killed_s + (known["detect_ms"] or 0.0) / 1e3
        silent_s = detected_s
        if self._kill.trigger is not None:
            killed_s = silent_s = self._kill.trigger.raised_s(self._kill.index) or self._struck.time_s
        elif self._struck.host is not None:
            killed_s = self._struck.time_s
        known["detect_ms"] = measure.milliseconds(killed_s, detected_s)
        self.figures |= known
        arrival = measure.Arrival(self._settings.rate, self._settings.words(self._case.state_keys))
        failed = [name for name in trace if name.endswith(self._struck.failed)]
        self.figures |= measure.figures(trace, failed, arrival, killed_s, silent_s)
        total, before = self.figures["recovery_ms"], [known[f"{phase}_ms"] for phase in DURATIONS[:-1]]
        if total is not None and None not in before:
            self.figures["replay_ms"] = round(max(0.0, total - sum(before)), 3)
        begin_s, end_s = killed_s - TIMELINE_S[0], killed_s + TIMELINE_S[1]
        self.timeline = {
            **dataclasses.asdict(self._case),
            "failed": failed,
            "bucket_s": measure.BUCKET_S,
            "kill_at_s": TIMELINE_S[0],
            "phases_ms": {phase: self.figures[f"{phase}_ms"] for phase in DURATIONS},
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
