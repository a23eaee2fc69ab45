"""One running job, whose parallelism changes step by step, and what each step took.

The job is resumed from the filled one, at the first parallelism. A step begins when the job has run evenly for
so many seconds: all subtasks run, no standby is missing, and the words keep up with their rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from experiments.harness.running import Context, RunError, wait_until
from experiments.recovery.measure import Arrival, milliseconds
from experiments.rescale import measure
from experiments.rescale.job import NAME, RescaledJob
from experiments.rescale.measure import Step
from experiments.rescale.records import new_outputs, read_records
from flinkplus.api.job import JobHandle
from flinkplus.cli.wordcount import TOKENIZE
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM
from flinkplus.protocol.vocabulary.phases import DURATIONS

BEHIND_S = 1.0
"""The words keep up: fewer have not been read than come in this time. Counts of the job are half a second old."""
START_S, PATIENCE_S, POLL_S = 5.0, 90.0, 0.05
"""Seconds of input until a resumed job runs evenly; how long a job may take beside its input; between two looks."""
PHASES_MS = ("prepare_ms", *(f"{phase}_ms" for phase in DURATIONS[1:-1]))
KNOWN = (*measure.MEASURED, "moved_ms", *PHASES_MS, "checkpoint", "fallback")


class LiveRun:
    """One job with its steps. ``calm_s``: how long it runs evenly before each, and after the last.

    ``steps``: the figures of each, as far as they are known, also when it fails.
    """

    def __init__(
        self,
        context: Context[Any],
        job: RescaledJob,
        options: dict[str, Any],
        parallelisms: Sequence[int],
        calm_s: float,
    ) -> None:
        self._context, self._job, self._options, self._calm_s = context, job, options, calm_s
        self._deadline = 0.0
        self._rescales: list[tuple[float, float, float]] = []
        self.steps: list[dict[str, Any]] = [
            {"before": before, "after": after, **dict.fromkeys(KNOWN), "exact": False, "recoveries": None}
            for before, after in pairwise(parallelisms)
        ]

    def run(self) -> None:
        """Run the job with all steps to its end, and check its output. Raises ``RunError``, or what the job raises."""
        job = self._job
        env = job.environment(self._context, self._options)
        with env.execute(NAME, resume=True) as running:
            self._deadline = time.monotonic() + PATIENCE_S + job.words / job.rate
            try:
                end_s = self._carry_out(running)
            except BaseException:  # the steps before the one at which a job fails are measured
                self._note(running.rescales(), time.time())
                raise
            metrics, rescales = running.metrics(), running.rescales()
        if len(rescales) != len(self.steps):
            raise RunError(f"the job says that it was rescaled {len(rescales)} times, not {len(self.steps)}")
        self._note(rescales, end_s)
        check = job.check(self._context)
        words = metrics["operators"][TOKENIZE]["rows_out"]
        exact = check.matches and check.words == job.words == words
        whole = metrics["state_keys"] == job.keys + check.distinct
        for known in self.steps:
            known.update(exact=exact and whole, wrong=check.wrong, example_of_wrong=check.example)
            known.update({name: metrics[name] for name in ("state_keys", "state_bytes", "recoveries")})

    def _carry_out(self, running: JobHandle) -> float:
        """All steps, and the rest of the job; returns up to when the last step is looked at."""
        self._until(running, lambda: running.running_s is not None)
        for step in self.steps:
            ready_s = self._await_calm(running)
            self._rescale(running, step["after"], ready_s)
        self._await_calm(running)
        end_s = time.time()
        self._until(running, lambda: running.done)
        running.await_finish()
        return end_s

    def _until(self, running: JobHandle, condition: Callable[[], bool]) -> None:
        wait_until(running, condition, self._deadline, self._context.stop, POLL_S)

    def _await_calm(self, running: JobHandle) -> float:
        """Wait until the job has run evenly for ``calm_s``; returns since when."""
        since_s = 0.0

        def is_calm() -> bool:
            nonlocal since_s
            due = self._job.rate * (running.running_s or 0.0)
            behind = due - sum(running.rows_out(TOKENIZE).values())
            even = running.state == "running" and not running.missing_standbys()
            if not even or behind > self._job.rate * BEHIND_S:
                since_s = 0.0
                return False
            since_s = since_s or time.time()
            return time.time() >= since_s + self._calm_s

        self._until(running, is_calm)
        return since_s

    def _rescale(self, running: JobHandle, parallelism: int, ready_s: float) -> None:
        requested_s = time.time()
        move = running.rescale(parallelism)

        def moved() -> bool:
            try:
                move.await_done(0.0)
            except TimeoutError:
                return False
            return True

        self._until(running, moved)
        self._rescales.append((ready_s, requested_s, time.time()))

    def _note(self, rescales: Sequence[dict[str, Any]], end_s: float) -> None:
        """The figures of the steps that were carried out. ``end_s``: up to when the last is looked at."""
        outputs = new_outputs(read_records(self._job.records))
        until_s = [*(requested_s for _, requested_s, _ in self._rescales[1:]), end_s]
        steps = zip(self.steps, rescales, self._rescales, until_s, strict=False)
        for known, told, (ready_s, requested_s, moved_s), end in steps:
            one = Step(known["before"], known["after"], ready_s, requested_s, end)
            before = sum(rows for samples in outputs.values() for at, rows in samples if at < ready_s)
            arrival = Arrival(self._job.rate, self._job.words - before)
            known.update(measure.figures(outputs, one, arrival, DEFAULT_MAX_PARALLELISM))
            known.update({name: told[name] for name in (*PHASES_MS[1:], "checkpoint", "fallback")})
            known["prepare_ms"] = milliseconds(requested_s, told["begin_s"])
            known["moved_ms"] = milliseconds(requested_s, moved_s)
            known["rescale"] = {name: part for name, part in told.items() if name != "restarted"}
