"""One job whose driver is killed, under ``flinkplus supervise``: from the kill to the first new output, phase by phase.

The job runs in a process of its own (``driver_program``), which marks the steps of its start in a file; the log of the
supervisor has the others. The kill comes when the next driver is prepared, if it is to be, at its planned moment after
a complete checkpoint. The output of the whole job is checked at the end.

The input stands still without a driver and goes on at its rate from the checkpoint, so there is no backlog to work off:
what was put out between the checkpoint and the kill comes again at that rate, which is the phase ``repeated``.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.harness.running import Context, RunError
from experiments.recovery import driver_program, measure
from experiments.recovery.driver_program import BEGUN, DEPLOYING, EXECUTED, FINISHED, IMPORTED, RUNNING, SPARK
from experiments.recovery.job_run import CHECKPOINTS_BEFORE, PATIENCE_S, unknown
from experiments.recovery.jobs import StruckJob, document_of
from flinkplus.api.checkpoints import checkpoints
from flinkplus.cli.session import default_master
from flinkplus.cli.supervise.prepared import NOTHING
from flinkplus.errors import FlinkPlusError
from flinkplus.runtime.base.logs import VARIABLE
from flinkplus.runtime.slot.subtasks.output_trace import read_traces

INPUT_S = 35.0
"""Seconds of input: the preparation of the next driver, the kill, its restart, and until it has caught up."""
PREPARE_AFTER_S = 3.0
POLL_S = 0.02
SETTLED_S = 2.0
"""From the end of the preparation to the kill, at least."""
READY, ENDED, RUNS = "is ready to be the next driver", "has ended after", "runs: "
ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS, MARKS, TRACE, LOG, SETTINGS = "checkpoints", "marks", "trace", "log", "settings.json"


class DriverRun:
    """One job. ``kills``: the figures of its one kill, as far as they are known. ``prepare``: of the next driver."""

    def __init__(
        self, context: Context[Any], case: Any, job: StruckJob, directory: Path, options: dict[str, Any], prepare: str
    ) -> None:
        self._context, self._case, self._job, self._directory = context, case, job, directory
        self._prepare = prepare
        self._options = {
            **options,
            "checkpoint_dir": str(directory / CHECKPOINTS),
            "trace_output": str(directory / TRACE),
        }
        self._deadline = time.monotonic() + 2 * PATIENCE_S + job.rows / job.rate
        self.timeline: dict[str, Any] | None = None
        self.kills = [unknown(case, case.kills[0])]

    def run(self) -> None:
        """Run the job with its kill to its end, and check its output. Raises ``RunError``."""
        settings = {
            "job": document_of(self._job),
            "options": self._options,
            "state_keys": self._case.state_keys,
            "master": default_master(self._case.parallelism),
            "marks": str(self._directory / MARKS),
        }
        (self._directory / SETTINGS).write_text(json.dumps(settings))
        options = ["--prepare", self._prepare, "--prepare-after", str(PREPARE_AFTER_S)]
        program = [str(Path(driver_program.__file__)), str(self._directory / SETTINGS)]
        with (self._directory / LOG).open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "flinkplus", "supervise", *options, *program],
                stdout=log,
                stderr=log,
                env={**os.environ, VARIABLE: "json", "PYTHONPATH": str(ROOT)},
                start_new_session=True,  # Ctrl-C is for the experiment, which ends it
            )
        try:
            killed_s = self._strike(supervisor)
            self._until(supervisor, lambda: supervisor.poll() is not None)
        finally:
            _end(supervisor)
        if supervisor.returncode != 0:
            raise RunError(f"the supervisor ended with {supervisor.returncode}: {self._log()[-500:]}")
        self._note(killed_s)

    # --- the kill

    def _strike(self, supervisor: subprocess.Popen[bytes]) -> float:
        """Kill the driver; returns when, right before the signal."""
        self._until(supervisor, lambda: self._marks(RUNNING))
        if self._prepare != NOTHING:
            self._until(supervisor, lambda: READY in self._log())
        self._context.stop.wait(SETTLED_S)
        self._until(supervisor, lambda: self._complete() >= CHECKPOINTS_BEFORE)
        last = self._complete()
        self._until(supervisor, lambda: self._complete() > last)
        self._context.stop.wait(self._case.kills[0].offset_s)
        killed_s = time.time()
        os.kill(self._marks(RUNNING)[-1]["pid"], signal.SIGKILL)
        return killed_s

    def _complete(self) -> int:
        """The number of the newest checkpoint."""
        try:
            found = checkpoints(self._directory / CHECKPOINTS).latest
        except FlinkPlusError:  # the job has not begun
            return 0
        return 0 if found is None else found.number

    def _until(self, supervisor: subprocess.Popen[bytes], condition: Callable[[], object]) -> None:
        while not condition():
            if supervisor.poll() is not None and not condition():
                raise RunError(f"the supervisor ended with {supervisor.returncode}: {self._log()[-500:]}")
            if time.monotonic() > self._deadline:
                raise RunError(f"not finished in time: {self._log()[-500:]}")
            if self._context.stop.wait(POLL_S):
                raise RunError("interrupted")

    def _log(self) -> str:
        return (self._directory / LOG).read_text(errors="replace")

    def _marks(self, name: str) -> list[dict[str, Any]]:
        return [mark for mark in driver_program.read_marks(self._directory / MARKS) if mark["mark"] == name]

    # --- the figures

    def _note(self, killed_s: float) -> None:
        trace = read_traces(self._directory / TRACE)
        logged = logged_at(self._log(), killed_s)
        marks = {mark["mark"]: mark for mark in driver_program.read_marks(self._directory / MARKS)}
        arrival = measure.Arrival(self._job.rate, self._job.rows)
        figures = measure.figures(trace, trace, arrival, killed_s, logged[RUNS])
        times: dict[str, float | None] = {
            name: marks[name]["time_s"] if name in marks else None for name in (BEGUN, *STEPS)
        }
        output_s = None if figures["recovery_ms"] is None else killed_s + figures["recovery_ms"] / 1e3
        known = self.kills[0]
        running_s = times[RUNNING]
        times[OUTPUT] = None if running_s is None else first_output(trace, running_s)
        known |= {**figures, "caught_up_ms": None, "restart_phases": phases(killed_s, logged, times, output_s)}
        known["restored_from"] = marks[EXECUTED]["restored_from"]
        known["restored_s"] = None if output_s is None else round(output_s - killed_s, 3)
        known["rows"] = marks[FINISHED]["rows"]
        check = self._job.check(self._context)
        exact = check.exact and check.rows == self._job.rows == known["rows"]
        known |= {"exact": exact, "wrong": check.wrong, "example_of_wrong": check.example}


STEPS = (IMPORTED, SPARK, EXECUTED, DEPLOYING, RUNNING)
OUTPUT = "output"


def first_output(trace: measure.Trace, since_s: float) -> float | None:
    """When every partition had put out something, new or not, after ``since_s``; ``None`` if one never did."""
    firsts = [next((time_s for time_s, _ in samples if time_s > since_s), None) for samples in trace.values()]
    known = [time_s for time_s in firsts if time_s is not None]
    return max(known) if known and len(known) == len(firsts) else None


def logged_at(text: str, since_s: float) -> dict[str, float]:
    """When the supervisor logged, after ``since_s``, that a driver has ended, and that the next one runs."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if '"flinkplus.supervise"' not in line:
            continue
        record = json.loads(line)
        time_s = datetime.datetime.fromisoformat(record["time"].replace("Z", "+00:00")).timestamp()
        for what in (ENDED, RUNS):
            if what in record["message"] and time_s > since_s - 0.001:
                found.setdefault(what, time_s)
    return found


def phases(
    killed_s: float, logged: dict[str, float], marks: dict[str, float | None], output_s: float | None
) -> dict[str, float | None]:
    """The milliseconds of each step from the kill to the first new output; ``None``: not known.

    ``noticed``: the supervisor knows. ``cleared``: the dead driver's processes are gone. ``begun``: the program runs.
    ``imported``: its imports. ``spark``: its session. ``executed``: checkpoints and output are taken over. ``slots``:
    all are registered. ``restored``: the subtasks run. ``output``: every partition puts out something. ``repeated``: it
    is new.
    """
    moments = {
        "noticed_ms": logged.get(ENDED),
        "cleared_ms": logged.get(RUNS),
        "begun_ms": marks[BEGUN],
        "imported_ms": marks[IMPORTED],
        "spark_ms": marks[SPARK],
        "executed_ms": marks[EXECUTED],
        "slots_ms": marks[DEPLOYING],
        "restored_ms": marks[RUNNING],
        "output_ms": marks[OUTPUT],
        "repeated_ms": output_s,
    }
    found: dict[str, float | None] = {}
    before_s: float | None = killed_s
    for name, moment_s in moments.items():
        found[name] = None if before_s is None else measure.milliseconds(before_s, moment_s)
        before_s = moment_s
    return found


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    """End it, and with it its driver, if it still runs."""
    if supervisor.poll() is None:
        supervisor.terminate()
        try:
            supervisor.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
