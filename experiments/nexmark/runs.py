"""The runs of one query on FlinkPlus: its output compared, undisturbed and with a kill; and its throughput."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.harness.running import Context, RunError, complete, measure, wait_until
from experiments.nexmark.catalogue import QUERIES
from experiments.nexmark.check import compare, input_tables, output_table
from experiments.nexmark.streams import NUMBERS, Events
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle

SINK = "out"
PATIENCE_S = 300.0
"""For a job of a fixed input, beyond the time that a paced input takes."""
CHECKPOINTS_BEFORE = 2
KILL_AT = (0.4, 0.6)
"""Shares of the input that has been read, between which the kill comes."""
PHASES = ("detect_ms", "fence_ms", "promote_ms", "restore_ms")
"""Of a recovery, from the signal to when all subtasks run again."""


@dataclass
class FlinkPlusRuns:
    """The runs in one session. Raises ``RunError``, and what a job raises."""

    context: Context[Any]
    _tables: dict[str, pa.Table] = field(default_factory=dict)

    def _environment(self) -> StreamEnvironment:
        return StreamEnvironment(self.context.spark, **self.context.settings.options())

    def exact(self, name: str) -> dict[str, Any]:
        """A fixed input as fast as it goes, to files, compared."""
        return self._compared(name, None, lambda job: {})

    def exact_with_kill(self, name: str, chance: np.random.Generator) -> dict[str, Any]:
        """The same at a rate at which it takes some seconds, with a SIGKILL of a slot in the middle."""
        settings = self.context.settings
        index, share = int(chance.integers(settings.parallelism)), float(chance.uniform(*KILL_AT))
        return self._compared(name, settings.events / settings.kill_seconds, lambda job: self._kill(job, index, share))

    def throughput(self, name: str) -> dict[str, Any]:
        """Events per second of an input without an end, whose output is counted and dropped."""
        env = self._environment()
        QUERIES[name].draw(Events(env)).discard(name=SINK)
        with env.execute(f"nexmark {name}") as job:
            rate, usage = measure(job, NUMBERS, self.context.settings.seconds, self.context.stop)
            job.cancel()
        cpu_s, span_s = usage["total"]["cpu_s"], usage["span_s"]
        return {
            "events_per_s": rate,
            "cpu_s_per_million": round(cpu_s / (rate * span_s) * 1e6, 4) if rate else None,
            "rss_mb": usage["total"]["rss_mb"],
        }

    def _compared(
        self, name: str, rate: float | None, disturb: Callable[[JobHandle], dict[str, Any]]
    ) -> dict[str, Any]:
        query, settings = QUERIES[name], self.context.settings
        with self.context.run_directory(name) as directory:
            env, path = self._environment(), str(directory / SINK)
            rows = query.draw(Events(env, settings.events, rate))
            rows.to_parquet(path, partition_by=query.partition_by, name=SINK)
            deadline = time.monotonic() + PATIENCE_S + (settings.events / rate if rate else 0.0)
            with env.execute(f"nexmark {name}") as job:
                figures = disturb(job)
                wait_until(job, lambda: job.done, deadline, self.context.stop)
                job.await_finish()
                figures |= self._recovered(job) if figures else {}
            written = self.context.spark.read.parquet(path).inputFiles()
            found = compare(query, output_table(written, query.partition_by), self._input())
        return {"exact": found.exact, "rows": found.rows, "lost": found.lost, "wrong": found.wrong, **figures}

    def _input(self) -> dict[str, pa.Table]:
        if not self._tables:
            self._tables |= input_tables(self.context.settings.events)
        return self._tables

    def _kill(self, job: JobHandle, index: int, share: float) -> dict[str, Any]:
        """Wait until so much has been read, checkpoints are complete and no standby is missing; then kill.

        Raises ``RunError`` when all has been read before that.
        """
        settings = self.context.settings
        deadline = time.monotonic() + PATIENCE_S + settings.kill_seconds

        def ready() -> bool:
            read = sum(job.rows_out(NUMBERS).values()) / settings.events
            if read >= 1:
                raise RunError("all input was read before the kill: give a larger --kill-seconds")
            return read >= share and len(complete(job)) >= CHECKPOINTS_BEFORE and job.missing_standbys() == 0

        wait_until(job, ready, deadline, self.context.stop)
        read = sum(job.rows_out(NUMBERS).values())
        if not job.kill(f"{SINK}[{index}]"):
            raise RunError("the input ended before the kill")
        return {"killed": f"{SINK}[{index}]", "read_at_kill": read}

    def _recovered(self, job: JobHandle) -> dict[str, Any]:
        found = job.recoveries()
        if not found:
            raise RunError("the kill led to no recovery")
        first = found[0]
        phases = [first[phase] for phase in PHASES]
        return {
            "recoveries": len(found),
            "mode": first["mode"],
            "fallback": first["fallback"],
            "recovery_ms": first["recovery_ms"],
            "restart_ms": None if None in phases else round(sum(phases), 3),
        }
