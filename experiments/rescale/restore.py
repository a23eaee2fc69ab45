"""One job that is resumed from the filled one, at the same or at another parallelism, and what that took.

Spark and its Python processes run already, and what was written last is in the system's memory: not measured is what
the start of a driver takes, nor reading from a disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from experiments.harness.running import Context, RunError, wait_until
from experiments.recovery.measure import milliseconds
from experiments.rescale import measure
from experiments.rescale.job import NAME, RescaledJob
from experiments.rescale.records import new_outputs, read_records
from flinkplus.api.job import JobHandle

INPUT_S, PATIENCE_S = 5.0, 120.0
"""Seconds of input, and how long the job may take beside them."""
POLL_S, CALM_POLL_S = 0.002, 0.05
DEPLOYING, RUNNING = "deploying", "running"
PHASES_MS = ("divided_ms", "slots_ms", "subtasks_ms", "first_ms")
KNOWN = ("running_ms", "output_ms", *PHASES_MS)


class RestoreRun:
    """One resumed job. ``figures``: what is known so far, also when it fails."""

    def __init__(
        self, context: Context[Any], job: RescaledJob, options: dict[str, Any], before: int, after: int
    ) -> None:
        self._context, self._job, self._options = context, job, {**options, "parallelism": after}
        self.figures: dict[str, Any] = {"before": before, "after": after, **dict.fromkeys(KNOWN), "exact": False}
        self.figures["recoveries"] = None

    def run(self) -> None:
        """Resume the job, run it to its end, and check its output. Raises ``RunError``, or what the job raises."""
        env = self._job.environment(self._context, self._options)
        begun_s = time.time()
        with env.execute(NAME, resume=True) as running:
            moments = {"begun": begun_s, "divided": time.time()}
            deadline = time.monotonic() + PATIENCE_S + self._job.words / self._job.rate
            for name, states in (("slots", (DEPLOYING, RUNNING)), ("subtasks", (RUNNING,))):
                self._until(running, deadline, lambda states=states: running.state in states, POLL_S)  # type: ignore[misc]
                moments[name] = time.time()
            self._until(running, deadline, lambda: running.done, CALM_POLL_S)
            running.await_finish()
            metrics = running.metrics()
        self._note(moments)
        check = self._job.check(self._context)
        whole = metrics["state_keys"] == self._job.keys + check.distinct
        self.figures |= {
            "exact": check.matches and check.words == self._job.words and whole,
            "wrong": check.wrong,
            "example_of_wrong": check.example,
            **{name: metrics[name] for name in ("state_keys", "state_bytes", "recoveries")},
        }

    def _until(self, running: JobHandle, deadline: float, condition: Callable[[], bool], poll_s: float) -> None:
        wait_until(running, condition, deadline, self._context.stop, poll_s)

    def _note(self, moments: dict[str, float]) -> None:
        outputs = new_outputs(read_records(self._job.records))
        first_s = measure.last_of(measure.first_outputs(outputs, self.figures["after"], moments["begun"]))
        if first_s is None:
            raise RunError("a partition put out nothing")
        moments["first"] = first_s
        self.figures |= phases(moments)


def phases(moments: dict[str, float]) -> dict[str, float | None]:
    """``KNOWN``, from the moments of ``begun`` and of the end of each phase: ``divided``, ``slots``, ``subtasks``,
    ``first``. A subtask may put something out before it is known that all run."""
    names = tuple(name.removesuffix("_ms") for name in PHASES_MS)
    spans = zip(("begun", *names), names, strict=False)
    return {
        "running_ms": milliseconds(moments["begun"], moments["subtasks"]),
        "output_ms": milliseconds(moments["begun"], moments["first"]),
        **{f"{name}_ms": milliseconds(moments[before], moments[name]) for before, name in spans},
    }
