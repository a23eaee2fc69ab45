"""One run of FlinkPlus: ``python -m experiments.baselines.flinkplus_run --job three-sums --parallelism 2``.

The experiment starts it for every run, so that a run has processes of its own; it also does alone, as a benchmark:
figures go to stdout as one line of JSON. SIGTERM and Ctrl-C end it, and all that it has started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from experiments.baselines.case import (
    EXCEPTION,
    FAILURES,
    FLINKPLUS,
    MEASURES,
    RECOVERY,
    WORKER,
    Case,
    RunFailed,
    job_options,
)
from experiments.baselines.failures import drawn
from experiments.baselines.jobs import JOBS, KEYED, SINK, WORDCOUNT, draw
from experiments.baselines.measure import measured
from experiments.baselines.notes import ORDERS, have_raised
from experiments.baselines.recovery import Struck, run_recoveries
from experiments.baselines.spark import EXECUTOR, environment_in
from experiments.baselines.text import Text
from experiments.baselines.trees import command_of, kill_tree
from experiments.harness.arguments import choices
from experiments.harness.running import VOCABULARY, one_session
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.arguments import positive
from flinkplus.errors import ConfigurationError, FlinkPlusError

EXECUTOR_MB = 512
EXECUTORS = {"spark.executor.memory": f"{EXECUTOR_MB}m"}
REDUNDANCY_S = 60.0
POLL_S = 0.05


class FlinkPlusJob:
    """A job in this process; see ``measure.RunningJob``."""

    def __init__(self, job: JobHandle, notes: Path, parallelism: int, local: bool) -> None:
        self.job = job
        self.notes = notes
        self.parallelism = parallelism
        self.local = local  # whether a failure hits the partitions of one slot alone

    def roots(self) -> list[int]:
        return [os.getpid()]

    def origin_ms(self) -> float:
        return (time.time() - (self.job.running_s or 0.0)) * 1e3

    def check(self) -> None:
        if self.job.done:
            self.job.await_finish()
            raise RunFailed("the job has ended")

    def strike(self, failure: str, index: int) -> Struck:
        slots = self._slots()
        hit = tuple(at for at, slot in slots.items() if slot == slots[index]) if self.local else tuple(slots)
        if failure == EXCEPTION:
            raised_ms = have_raised(self.notes, index, self.check)
            return Struck(raised_ms, (index,) if self.local else hit, f"an exception in partition {index}")
        worker = self.job.slot_pids()[slots[index]]
        if failure == WORKER:
            now_ms = time.time() * 1e3
            os.kill(worker, signal.SIGKILL)
            return Struck(now_ms, hit, f"SIGKILL of the Python worker of partition {index}")
        executor = executor_of(worker)
        now_ms = time.time() * 1e3
        kill_tree(executor)
        return Struck(now_ms, hit, f"SIGKILL of the executor of partition {index} and its Python workers")

    def _slots(self) -> dict[int, int]:
        """The slot of each partition of the output."""
        heads = {subtask: slots[0] for subtask, slots in self.job.chains().items()}
        of = {int(name[name.rindex("[") + 1 : -1]): slot for name, slot in heads.items() if _is_last(name)}
        return of or {index: index for index in self.job.slot_pids()}

    def checkpoint_ms(self) -> float | None:
        return max((checkpoint["triggered_s"] * 1e3 for checkpoint in self.job.checkpoints()), default=None)

    def mend(self) -> None:
        """Spark starts executors and workers again by itself; the next failure waits for them, and for the standbys."""
        deadline_s = time.monotonic() + REDUNDANCY_S
        while self.job.missing_standbys() or len(self.job.slot_pids()) < self.parallelism:
            self.check()
            if time.monotonic() > deadline_s:
                raise RunFailed(f"no full redundancy again within {REDUNDANCY_S:g} s")
            time.sleep(POLL_S)


def _is_last(subtask: str) -> bool:
    return subtask.endswith("]") and SINK in subtask.rpartition("[")[0].split("+")


def executor_of(worker: int) -> int:
    """The process of the Spark executor that has started a Python worker. Raises ``RunFailed``."""
    for parent in psutil.Process(worker).parents():
        if EXECUTOR in command_of(parent):
            return parent.pid
    raise RunFailed("the Python worker is not of an executor that has a process of its own")


def master_of(case: Case) -> str | None:
    """``None``: the default, threads of the driver's Java. Recoveries are on executors of a standalone cluster."""
    return f"local-cluster[{case.parallelism},1,{EXECUTOR_MB}]" if case.measure == RECOVERY else None


def options_of(case: Case) -> dict[str, Any]:
    """The options of the job."""
    return {"parallelism": case.parallelism, "checkpoint_interval": case.interval, **dict(case.options)}


def run(case: Case, spark: SparkSession, directory: Path, text: Path, stop: threading.Event) -> list[dict[str, Any]]:
    """The figures of one run; of ``recovery``, of each of its failures.

    Raises ``RunFailed``, and what the job raises.
    """
    notes = directory / "notes"
    (notes / ORDERS).mkdir(parents=True)
    env = StreamEnvironment(spark, **options_of(case))
    draw(env, case.job, case.paced, notes, text)
    with env.execute("baselines") as job:
        local = env.options.recovery == "standby"
        running = FlinkPlusJob(job, notes, case.parallelism, local)
        if case.measure == RECOVERY:
            return run_recoveries(running, case, stop, job.recoveries)
        found = measured(running, case, stop, lambda: state_totals(job, case.job))
        per_row = round(found["state_reads"] / found["state_rows"], 4) if found["state_rows"] else None
        return [{**found, "state_keys": job.metrics()["state_keys"], "state_reads_per_row": per_row}]


def state_totals(job: JobHandle, drawn_as: str) -> dict[str, int]:
    """``state_rows``: rows that came to operators with keyed state; ``state_reads``: keys that these looked up in
    RocksDB, because memory did not have them; ``state_new_keys``: keys that there are."""
    metrics = job.metrics()
    rows = sum(metrics["operators"][name]["rows_in"] for name in KEYED[drawn_as])
    return {"state_rows": rows, "state_reads": metrics["state_reads"], "state_new_keys": metrics["state_keys"]}


def _arguments() -> tuple[Case, Path | Text]:
    """The case, and its text, or what that is made as."""
    parser = argparse.ArgumentParser(prog="python -m experiments.baselines.flinkplus_run", description=__doc__)
    parser.add_argument("--case", metavar="JSON", help="all of it; instead of the others")
    parser.add_argument("--text", type=Path, metavar="FILE", help="of wordcount (default: made up)")
    parser.add_argument("--job", choices=JOBS, default="three-sums")
    parser.add_argument("--measure", choices=MEASURES, default="throughput")
    parser.add_argument("--parallelism", type=int, default=2, metavar="N")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S")
    parser.add_argument("--settle", type=float, default=3.0, metavar="S")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S")
    parser.add_argument("--rate", type=float, default=30_000.0, metavar="ROWS_PER_S")
    parser.add_argument("--failures", type=choices(FAILURES), default=FAILURES, metavar=",".join(FAILURES))
    parser.add_argument("--vocabulary", type=positive, default=VOCABULARY, metavar="N", help="of wordcount's text")
    parser.add_argument("--uniform", action="store_true", help="words that are equally likely")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the job")
    given = parser.parse_args()
    if given.case is not None:
        return Case.from_json(given.case), given.text or Text()
    try:
        options = tuple(job_options(given.option, {}).items())
    except ConfigurationError as error:
        parser.error(str(error))
    failures = tuple(failure for kind in given.failures for failure in drawn(kind, 1, given.parallelism, (1,)))
    names = ("job", "parallelism", "measure", "seconds", "settle", "interval", "rate")
    fields = {name: getattr(given, name) for name in names}
    case = Case(engine=FLINKPLUS, run=0, options=options, failures=failures, **fields)
    return case, given.text or Text(given.vocabulary, given.uniform)


def main() -> int:
    """Command line; returns the exit code."""
    case, text = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="flinkplus-baselines-") as name:
        directory = Path(name)
        path = directory / "text" if isinstance(text, Text) else text
        if isinstance(text, Text) and case.job == WORDCOUNT:
            text.write(path, 1)
        os.environ |= environment_in(directory)
        try:
            with one_session(master_of(case), case.parallelism, EXECUTORS) as spark:
                found = run(case, spark, directory, path, threading.Event())
        except (RunFailed, FlinkPlusError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
