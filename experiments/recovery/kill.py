"""One run with one kill, and what it took.

WordCount at a steady rate over a made-up text; when two checkpoints are complete (and the ballast, if any, is in them),
a moment drawn uniformly from the next checkpoint interval; the failure of a subtask of ``count``, drawn as well; the
rest of the text; the output compared with a Spark SQL batch count of the same text.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cluster.control import Control
from experiments.harness.processes import ProcessSampler
from experiments.harness.running import Context, RunError, wait_until
from experiments.harness.workload import PROBE, Probe, Trigger, draw
from experiments.recovery import measure
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.wordcount import COUNT, TOKENIZE
from flinkplus.protocol.vocabulary.phases import DURATIONS
from flinkplus.runtime.coordinator.record.recovery_times import HANDOVER

SIGKILL, EXCEPTION = FAILURES = ("sigkill", "exception")
HOST_FAILURES = ("host", "hang", "cut")
"""On a cluster: a host is killed; it is frozen, or is cut off from all others, for ``PAUSE_S``."""
PAUSE_S = 2.5
CHECKPOINTS_BEFORE = 2
CHECKPOINTS_AFTER_FILL = 8
"""Complete checkpoints between the last of the ballast and the kill: its size counts, and not that it is written."""
PATIENCE_S = 90.0
KILL = "kill"
ORDERS = dict(zip(HOST_FAILURES, (KILL, "pause", "cut"), strict=True))
"""What the cluster is ordered to do to a host, by the kind of failure."""
TIMELINE_S = (2.0, 3.0)
"""Seconds before and after the kill that are kept for a picture."""


@dataclass(frozen=True)
class Case:
    """One run. ``seed``: of its kill."""

    parallelism: int
    recovery: str
    failure: str
    state_keys: int
    run: int
    seed: int


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
        trigger = Trigger(directory) if case.failure == EXCEPTION else None
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
    """One run, with the ``options`` of its job and so many ``words`` at a ``rate``.

    ``figures`` and ``struck`` hold what is known so far, also when it fails.
    """

    def __init__(
        self,
        context: Context[Any],
        case: Case,
        kill: Kill,
        directory: Path,
        options: dict[str, Any],
        rate: float,
        words: int,
    ) -> None:
        self._context, self._case, self._kill = context, case, kill
        self._options, self._rate, self._words = options, rate, words
        self._output, self._traces = directory / "out", directory / "trace"
        if context.place is not None:
            self._options = {**options, **context.place.options(directory)}
        self.struck: Struck | None = None
        self.timeline: dict[str, Any] | None = None
        self.figures: dict[str, Any] = {"exact": False, "fallback": None, "recovery_ms": None, "caught_up_ms": None}
        self.figures |= {f"{phase}_ms": None for phase in DURATIONS}
        self.figures |= {f"output_gap_{which}_ms": None for which in ("failed", "others", "before")}

    def run(self) -> None:
        """Run the job with its kill to its end, and check its output. Raises ``RunError``, or what the job raises."""
        case, kill, stop = self._case, self._kill, self._context.stop
        text = self._context.text(self._words)
        env = StreamEnvironment(self._context.spark, trace_output=str(self._traces), **self._options)
        probe = Probe(PROBE, kill.trigger, case.state_keys) if kill.trigger is not None or case.state_keys else None
        draw(env, str(text), str(self._output), self._rate, probe)
        with env.execute("recovery") as job:
            deadline = time.monotonic() + self._words / self._rate + PATIENCE_S

            def until(condition: Callable[[], bool]) -> None:
                wait_until(job, condition, deadline, stop)

            until(lambda: job.running_s is not None)
            # Numbers of processes of other hosts mean nothing here.
            with ProcessSampler(job.slot_pids if self._context.place is None else dict) as sampler:
                until(lambda: job.metrics()["state_keys"] >= case.state_keys)
                filled = job.metrics()["checkpoints_completed"]
                wanted = filled + CHECKPOINTS_AFTER_FILL if case.state_keys else CHECKPOINTS_BEFORE
                until(lambda: job.metrics()["checkpoints_completed"] >= wanted)
                stop.wait(kill.offset_s)
                if job.state != "running":
                    raise RunError(f"the job was {job.state} when it was to be killed")
                self.struck = kill.strike(job)
                if self.struck.host is not None and ORDERS[case.failure] != KILL:
                    stop.wait(PAUSE_S)
                    assert kill.control is not None
                    kill.control.order("revive", self.struck.host)
                until(lambda: job.done)
            self._note(job, sampler)
            job.await_finish()
        check = self._context.batch_check(self._output, text)
        exact = check.matches and check.words == self._words == self.figures["words"]
        self.figures |= {"exact": exact, "wrong_words": check.wrong, "example_of_wrong_word": check.example}

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
        unplanned = [recovery for recovery in recoveries if recovery["failure"] != HANDOVER]
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
        assert self.struck is not None
        killed_s = recovery["begin_s"]
        detected_s = killed_s + (known["detect_ms"] or 0.0) / 1e3
        silent_s = detected_s
        if self._kill.trigger is not None:
            killed_s = silent_s = self._kill.trigger.raised_s(self._kill.index) or self.struck.time_s
        elif self.struck.host is not None:
            killed_s = self.struck.time_s
        known["detect_ms"] = measure.milliseconds(killed_s, detected_s)
        self.figures |= known
        arrival = measure.Arrival(self._rate, self._words)
        failed = [name for name in trace if name.endswith(self.struck.failed)]
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
