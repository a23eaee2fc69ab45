"""One soak: the job, its faults one after the other, and what it took meanwhile.

WordCount at a steady rate over one text that is read again and again, so that state stops growing early. After each
fault the run waits until the job runs with every chain full. The end of the input ends it; the output is compared with
a Spark SQL batch count.

Rules: whatever goes wrong ends the run and is told; what was found until then is kept. An interrupt ends the job at
once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from experiments.cluster.place import Place
from experiments.recovery.workload import PROBE, Probe, Trigger, draw
from experiments.running import RunError, run_until
from experiments.soak.faults import Striker
from experiments.soak.settings import RESTORE_LIMIT_S, Draw, Settings
from experiments.soak.usage import Sampler, cluster_usage, local_usage
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.batch_check import check_output
from flinkplus.cli.wordcount import TOKENIZE
from flinkplus.corpus import write_corpus
from flinkplus.errors import FlinkPlusError
from flinkplus.state.storage import CheckpointStorage

CHECK_TAG = "flinkplus-check"
TEXT_WORDS, VOCABULARY = 50_000, 20_000
SETTLE_S = 5.0
POLL_S = 0.05
LAST_FAULT_S = 20.0
"""Before the end of the input: the last one is recovered from while there is something to do."""


class SoakRun:
    """``directory`` is shared by all hosts, if there are hosts. ``content``: what is found beside the faults."""

    def __init__(self, spark: SparkSession, settings: Settings, directory: Path, place: Place | None = None) -> None:
        self._spark = spark
        self._settings = settings
        self._directory = directory
        self._place = place
        self._stop = threading.Event()
        self._began_s = 0.0
        self.content: dict[str, Any] = {"output": [], "usage": [], "problems": [], "final": None}

    def stop(self) -> None:
        """End the run soon."""
        self._stop.set()
        self._spark.sparkContext.cancelJobsWithTag(CHECK_TAG)

    def faults(self, begun: Callable[[Draw | None], None]) -> Iterator[dict[str, Any]]:
        """Run it; the figures of each fault when it is over. ``begun`` is told what comes next (``None``: nothing
        just now). What went wrong is in ``content["problems"]``."""
        try:
            yield from self._run(begun)
        except (RunError, FlinkPlusError, OSError) as error:
            self.content["problems"].append(f"{type(error).__name__}: {error}")

    def _run(self, begun: Callable[[Draw | None], None]) -> Iterator[dict[str, Any]]:
        settings, directory = self._settings, self._directory
        text, output, checkpoints = directory / "zipf.txt", directory / "out", directory / "checkpoints"
        work = directory / "work"
        work.mkdir()
        write_corpus(str(text), TEXT_WORDS, VOCABULARY, settings.seed)
        repeat = max(1, round(settings.words / TEXT_WORDS))
        options = {**settings.options(), "checkpoint_dir": str(checkpoints), "work_dir": str(work)}
        if self._place is not None:
            del options["work_dir"]
            options |= self._place.options(directory)
        env = StreamEnvironment(self._spark, **options)
        trigger = Trigger(directory)
        draw(env, str(text), str(output), settings.rate, Probe(PROBE, trigger), repeat)
        begun(None)
        with env.execute("soak") as job:
            run_until(job, SETTLE_S, self._stop)
            control = None if self._place is None else self._place.control
            if self._place is None:
                usage = local_usage(checkpoints, work)
            else:
                assert control is not None
                hosts = [f"worker-{number + 1}" for number in range(settings.hosts or 0)]
                usage = cluster_usage(control, [*hosts, "job"], checkpoints)
            ensemble = "" if self._place is None else self._place.zookeeper
            striker = Striker(job, settings.parallelism, trigger, self._stop, control, ensemble)
            with Sampler(job, usage) as sampler:
                try:
                    yield from self._strike(job, striker, sampler, begun)
                    self._finish(job)
                finally:
                    self.content |= {"output": sampler.output, "usage": sampler.usage}
                    if sampler.failed is not None:
                        self.content["problems"].append(f"a sample of memory and disk failed: {sampler.failed}")
            self._note(job)
            job.await_finish()
        self._check(text, output, repeat)

    def _strike(
        self, job: JobHandle, striker: Striker, sampler: Sampler, begun: Callable[[Draw | None], None]
    ) -> Iterator[dict[str, Any]]:
        settings = self._settings
        end_s = time.monotonic() + settings.minutes * 60 - LAST_FAULT_S
        self._restored(job)
        for one in settings.drawn():
            next_s = time.monotonic() + settings.every
            if next_s > end_s:
                return
            while time.monotonic() < next_s and not job.done:
                if self._stop.wait(POLL_S):
                    raise RunError("interrupted")
            begun(one)
            before, at_s, chains = job.metrics(), sampler.since_begin_s(), job.chain_hosts()
            struck = striker.strike(one)
            taken_back_s = time.monotonic()
            told_s = self._restored(job)
            metrics = job.metrics()
            recoveries = job.recoveries()[before["recoveries"] :]
            begun(None)
            yield {
                "at_s": at_s,
                "kind": one.kind,
                "struck": struck,
                "hold_s": one.hold_s,
                "failovers": metrics["failovers"] - before["failovers"],
                "fallbacks": metrics["fallbacks"] - before["fallbacks"],
                "together": sum(len(set(hosts)) == 1 for hosts in chains.values()),
                "doomed": sum(set(hosts) == {struck} for hosts in chains.values()),
                "recovery_ms": max(
                    (r["recovery_ms"] for r in recoveries if r["recovery_ms"] is not None), default=None
                ),
                "restored_s": round(told_s - taken_back_s, 3),
                "reasons": [r["reason"] for r in recoveries],
            }

    def _restored(self, job: JobHandle) -> float:
        """When the job ran with all standbys in step; waits for that, and for a complete checkpoint since.

        Raises ``RunError`` when it takes too long.
        """
        deadline = time.monotonic() + RESTORE_LIMIT_S
        complete = job.metrics()["checkpoints_completed"]
        since: float | None = None
        while True:
            if job.done:
                job.await_finish()
                raise RunError("the job was over before redundancy was back")
            if self._stop.wait(POLL_S):
                raise RunError("interrupted")
            full = job.state == "running" and job.missing_standbys() == 0
            since = (since or time.monotonic()) if full else None
            if since is not None and job.metrics()["checkpoints_completed"] > complete:
                return since
            if time.monotonic() > deadline:
                missing = f"{job.missing_standbys()} standbys missing, the job is {job.state}"
                raise RunError(f"redundancy was not back within {RESTORE_LIMIT_S:.0f} s: {missing}")

    def _finish(self, job: JobHandle) -> None:
        deadline = time.monotonic() + 60 + self._settings.minutes * 60
        while not job.wait(POLL_S):
            if self._stop.is_set():
                raise RunError("interrupted")
            if time.monotonic() > deadline:
                raise RunError(f"the job did not end in time; it is {job.state}")

    def _note(self, job: JobHandle) -> None:
        metrics = job.metrics()
        names = ("running_s", "checkpoints_completed", "failovers", "handovers", "fallbacks", "fallback_reasons")
        self.content["final"] = {
            "words": metrics["operators"][TOKENIZE]["rows_out"],
            **{name: metrics[name] for name in (*names, "slot_restarts", "state_bytes")},
            "unnamed_state_files": len(CheckpointStorage(job.checkpoint_dir).unnamed()),
            "exact": False,
        }

    def _check(self, text: Path, output: Path, repeat: int) -> None:
        context = self._spark.sparkContext
        context.addJobTag(CHECK_TAG)  # so that an interrupt can cancel this query, and nothing else
        try:
            check = check_output(self._spark, str(output), [str(text)], repeat)
        finally:
            context.removeJobTag(CHECK_TAG)
        final = self.content["final"]
        final |= {"exact": check.matches and check.words == final["words"], "batch_words": check.words}
        if not final["exact"]:
            example = f", such as {check.example!r}" if check.example is not None else ""
            self.content["problems"].append(f"{check.wrong} words differ from the batch count{example}")
