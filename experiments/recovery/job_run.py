"""One job with its kills, and what each of them took.

A job at a steady rate; when two checkpoints are complete (and the ballast, if any, is in them), the first kill: at its
planned moment after the next trigger of a checkpoint. The next one when the job is as it was before: the backlog is
worked off, every slot is back, subtasks have been handed back to the slots where they were, no standby is missing; and
``INTERVALS_BETWEEN`` checkpoint intervals after the kill before at the earliest. This wait is bounded: the kills are
due in equal spans of the input. The rest of the input; the check of the output, once for all kills.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.harness.load import LoadSampler
from experiments.harness.processes import ProcessSampler
from experiments.harness.running import Context, RunError, wait_until
from experiments.harness.workload import Trigger
from experiments.recovery import measure
from experiments.recovery.jobs import StruckJob
from experiments.recovery.kill import Striker, Struck, heads_of
from experiments.recovery.kill_log import UNKNOWN, KillLog
from experiments.recovery.plan import EXCEPTION, Case, PlannedKill
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle

CHECKPOINTS_BEFORE = 2
CHECKPOINTS_AFTER_FILL = 8
"""Complete checkpoints between the last of the ballast and the kill: its size counts, and not that it is written."""
INTERVALS_BETWEEN = 3
CALM_S = 2.0
"""How long a job runs, or runs as before, until the next kill may come: what is usual is taken from there."""
PATIENCE_S = 90.0
POLL_S, FINE_POLL_S, FINE_S = 0.05, 0.003, 0.05
"""Between two looks; the same, from ``FINE_S`` before a checkpoint is expected to be triggered."""
QUIET_S, TRACE_POLL_S = 1.0, 0.5
"""From the hand-back, which is measured, to the first look at the trace; between two looks: the trace is long, and
reading it takes processor time from the job. The processes are looked at once in ``SAMPLE_S``, for the same reason."""
SAMPLE_S = 1.0
SAME_MOMENT_S = 0.01


@dataclass
class Stroke:
    """One kill of a job. ``ready_s``: since when the job had been as before; ``load``: share of busy processors;
    ``restored_s``: when it was as before again, ``None``: not in time."""

    kill: PlannedKill
    ready_s: float
    load: float | None
    struck: Struck
    restored_s: float | None = None


class JobRun:
    """One job. ``interval``, ``span_s``: between checkpoints, and of the input that each kill has. ``without``: IDs of
    processes that are not the job's.

    ``kills`` (figures of each kill), ``strokes`` and ``timeline`` hold what is known so far, also when it fails.
    """

    def __init__(
        self,
        context: Context[Any],
        case: Case,
        job: StruckJob,
        directory: Path,
        options: dict[str, Any],
        span_s: float,
        without: tuple[int, ...] = (),
    ) -> None:
        self._context, self._case, self._job = context, case, job
        self._span_s, self._without = span_s, without
        self._interval: float = options["checkpoint_interval"]
        place = context.place
        self._options = {**options, "trace_output": str(directory / "trace")}
        self._options |= {} if place is None else place.options(directory)
        stages = {kill.stage for kill in case.kills} if case.failure == EXCEPTION else set()
        self._triggers = {stage: Trigger(directory / f"{stage}-orders") for stage in stages}
        self._control = None if place is None else place.control
        self._arrival = measure.Arrival(job.rate, job.rows)
        self._deadline = 0.0
        self.strokes: list[Stroke] = []
        self.timeline: dict[str, Any] | None = None
        self.kills = [unknown(case, kill) for kill in case.kills]

    def run(self) -> None:
        """Run the job with its kills to its end, and check its output. Raises ``RunError``, or what the job raises."""
        for trigger in self._triggers.values():
            trigger.directory.mkdir()
        env = StreamEnvironment(self._context.spark, **self._options)
        self._job.draw(env, self._triggers, self._case.state_keys)
        with env.execute("recovery") as job:
            self._deadline = time.monotonic() + self._job.rows / self._job.rate + PATIENCE_S
            self._until(job, lambda: job.running_s is not None)
            # Numbers of processes of other hosts mean nothing here.
            pids = job.slot_pids if self._context.place is None else dict
            sampler = ProcessSampler(pids, SAMPLE_S, without=self._without)
            try:
                with sampler, LoadSampler() as load:
                    self._fill(job)
                    self._strike_all(job, load)
                    self._until(job, lambda: job.done)
            finally:  # kills before the one at which a job fails are measured
                self._note(job, sampler)
            job.await_finish()
        check = self._job.check(self._context)
        exact = check.exact and check.rows == self._job.rows == self.kills[0]["rows"]
        self._know({"exact": exact, "wrong": check.wrong, "example_of_wrong": check.example})

    # --- the kills

    def _until(self, job: JobHandle, condition: Callable[[], bool], poll_s: float = POLL_S) -> None:
        wait_until(job, condition, self._deadline, self._context.stop, poll_s)

    def _fill(self, job: JobHandle) -> None:
        """Wait until the state is as large as it is to be, and in checkpoints."""
        state_keys = self._case.state_keys
        self._until(job, lambda: job.metrics()["state_keys"] >= state_keys)
        filled = job.metrics()["checkpoints_completed"]
        wanted = filled + CHECKPOINTS_AFTER_FILL if state_keys else CHECKPOINTS_BEFORE
        self._until(job, lambda: job.metrics()["checkpoints_completed"] >= wanted)

    def _strike_all(self, job: JobHandle, load: LoadSampler) -> None:
        striker = Striker(job, self._case.failure, self._triggers, self._control, self._context.stop)
        homes, first_s, ready_s = heads_of(job), job.running_s or 0.0, 0.0
        not_before_s = time.time() + max(0.0, CALM_S - first_s)
        for kill in self._case.kills:
            self._await_moment(job, kill, not_before_s)
            load_before = load.share()
            stroke = Stroke(kill, ready_s, load_before, striker.strike(kill))
            self.strokes.append(stroke)
            last = kill is self._case.kills[-1]
            until_s = math.inf if last else first_s + (kill.kill + 1) * self._span_s
            stroke.restored_s = self._await_restored(job, stroke, homes, until_s)
            ready_s = stroke.restored_s or time.time()
            not_before_s = max(stroke.struck.time_s + INTERVALS_BETWEEN * self._interval, ready_s + CALM_S)

    def _await_moment(self, job: JobHandle, kill: PlannedKill, not_before_s: float) -> None:
        """Wait until so long after the first trigger of a checkpoint that is later than ``not_before_s``."""

        def triggered_s() -> float:
            return max((one["triggered_s"] for one in job.checkpoints()), default=0.0)

        stop = self._context.stop
        expected_s = max(not_before_s, triggered_s() + self._interval)
        stop.wait(max(0.0, expected_s - FINE_S - time.time()))
        self._until(job, lambda: triggered_s() > not_before_s, FINE_POLL_S)
        stop.wait(max(0.0, triggered_s() + kill.offset_s - time.time()))
        if job.state != "running":
            raise RunError(f"the job was {job.state} when it was to be killed")

    def _await_restored(self, job: JobHandle, stroke: Stroke, homes: dict[str, int], until_s: float) -> float | None:
        """When the job was as before; ``None``: not before it had run for ``until_s``, or had ended."""
        stop, whole_s = self._context.stop, None
        while not job.done and (job.running_s or 0.0) < until_s:
            if stop.wait(POLL_S if whole_s is None else TRACE_POLL_S):
                raise RunError("interrupted")
            if whole_s is None and self._is_whole(job, stroke, homes):
                whole_s = time.time()
                stop.wait(QUIET_S)
            if whole_s is not None:
                caught_up_ms = self._log(job, stroke, math.inf).figures(job.output_trace(), self._arrival)[
                    "caught_up_ms"
                ]
                if caught_up_ms is not None:
                    return max(whole_s, stroke.struck.time_s + caught_up_ms / 1e3)
        return None

    def _is_whole(self, job: JobHandle, stroke: Stroke, homes: dict[str, int]) -> bool:
        log = self._log(job, stroke, math.inf)
        return (
            bool(log.recoveries)
            and all(one["caught_up_ms"] is not None for one in (*log.recoveries, *log.handovers))
            and len(job.slot_pids()) >= self._case.parallelism
            and heads_of(job) == homes
            and job.missing_standbys() == 0
        )

    # --- the figures

    def _log(self, job: JobHandle, stroke: Stroke, end_s: float) -> KillLog:
        """What is known of a kill, until ``end_s``."""
        since_s = stroke.struck.time_s - SAME_MOMENT_S
        return KillLog(
            stroke.struck,
            raised=self._case.failure == EXCEPTION,
            recovery=self._case.recovery,
            stage=stroke.kill.stage,
            recoveries=_between(job.recoveries(), since_s, end_s),
            handovers=_between(job.handovers(), since_s, end_s),
            ready_s=stroke.ready_s,
            end_s=end_s,
        )

    def _know(self, figures: dict[str, Any]) -> None:
        """They are the same for all kills."""
        for known in self.kills:
            known.update(figures)

    def _note(self, job: JobHandle, sampler: ProcessSampler) -> None:
        """The figures of the kills that were carried out, when the job is over or has failed."""
        metrics = job.metrics()
        shared = {
            "rows": metrics["operators"][self._job.counted]["rows_out"],
            "running_s": metrics["running_s"],
            "state_bytes": metrics["state_bytes"],
            "checkpoints": metrics["checkpoints_completed"],
            "slot_restarts": metrics["slot_restarts"],
            "usage": sampler.figures(),
        }
        trace, checkpoints = job.output_trace(), job.checkpoints()
        ends_s = [*(stroke.struck.time_s for stroke in self.strokes[1:]), math.inf]
        for stroke, end_s in zip(self.strokes, ends_s, strict=True):
            log, known = self._log(job, stroke, end_s), self.kills[stroke.kill.kill]
            known |= {**log.figures(trace, self._arrival), **measure.at_kill(checkpoints, log.killed_s)}
            known["busy_share"] = stroke.load
            if stroke.restored_s is not None:
                known["restored_s"] = round(stroke.restored_s - stroke.struck.time_s, 3)
            if self.timeline is None and log.recoveries:
                self.timeline = {**_named(self._case, stroke.kill), **log.timeline(trace, known)}
        self._know(shared)


def _between(recoveries: Sequence[dict[str, Any]], begin_s: float, end_s: float) -> list[dict[str, Any]]:
    """Those that began in this span of time."""
    return [one for one in recoveries if one["begin_s"] is not None and begin_s <= one["begin_s"] < end_s]


def _named(case: Case, kill: PlannedKill) -> dict[str, Any]:
    """What was done."""
    return {
        "parallelism": case.parallelism,
        "recovery": case.recovery,
        "failure": case.failure,
        "state_keys": case.state_keys,
        "job": case.job,
        "run": kill.run,
        "kill": kill.kill,
        "seed": kill.seed,
        "subtask": kill.subtask,
        "offset_s": round(kill.offset_s, 4),
    }


def unknown(case: Case, kill: PlannedKill) -> dict[str, Any]:
    """The figures of a kill of which nothing is known yet."""
    names = ("since_trigger_s", "during_checkpoint", "busy_share", "restored_s", "rows", "usage")
    return {**_named(case, kill), **dict.fromkeys(names), **UNKNOWN, "exact": False, "error": None}
