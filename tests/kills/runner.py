"""One job of the matrix: killed at one point after another, drained, and compared with what it has to put out.

Rules: the next kill comes only when the job is whole again. A cell counts when that slot died there and no other one
did, the job recovered in the way that it was to, and the output of the whole job is exact.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.faults.points import STANDBY_POINTS
from tests.integration.failover_jobs import Victim
from tests.kills.matrix import AT_THE_END, AT_THE_START, OPTIONS, Plan

EXACT = "exact"
GONE_S = 10.0
"""How long what a job has told to stop may take to be gone."""
PROGRESS_S = 5.0
PATIENCE_S = 120.0
"""For how long a job may take to be killed, or to be whole again."""
WRONG = (Exception, pytest.fail.Exception)


@dataclass
class Cell:
    """A kill at a point, and what came of it."""

    plan: Plan
    point: str
    subtask: str
    result: str = "not reached"
    recovery: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.result.startswith(EXACT)


class Processes:
    """What the slots of a job have run beside themselves, and the slots that were killed."""

    def __init__(self) -> None:
        self._helpers: set[psutil.Process] = set()
        self._killed: set[psutil.Process] = set()

    def look(self, slots: dict[int, int]) -> None:
        for pid in slots.values():
            try:
                self._helpers.update(psutil.Process(pid).children(recursive=True))
            except psutil.NoSuchProcess:
                continue

    def left(self) -> list[str]:
        _, alive = psutil.wait_procs(self._helpers | self._killed, timeout=GONE_S)
        return [str(process) for process in alive if process.is_running()]

    def killed(self, process: psutil.Process) -> None:
        self._killed.add(process)


def kill_at(victim: Victim, cell: Cell, processes: Processes, *, ends: bool) -> None:
    """One kill of a job that is whole, and the recovery from it; ``ends``: in the end of the job."""
    job, subtask = victim.job, parse_subtask(cell.subtask)
    slot = subtask.index
    known = len(job.recoveries())
    if cell.point in AT_THE_START:  # it was told before it began
        known = 0
    else:
        victim.wait_for_strength()
        processes.look(job.slot_pids())
        if cell.point in STANDBY_POINTS:
            slot = victim.chain(cell.subtask)[1]
        processes.killed(psutil.Process(job.slot_pids()[slot]))
        job.kill(cell.subtask, at=cell.point)
    if ends:
        victim.finish()
    else:
        victim.wait(lambda: len(job.recoveries()) > known, f"a slot dies at {cell.point} of {cell.subtask}")
        victim.wait_for_checkpoints(2)
    found = job.recoveries()[known:]
    assert found, f"nobody died at {cell.point} of {cell.subtask}"
    assert len(found) == 1, f"{len(found)} failures: {[recovery['reason'] for recovery in found]}"
    cell.recovery = found[0]
    struck = {parse_subtask(name).index for name in cell.recovery["subtasks"]}
    assert (cell.recovery["failure"], struck) == ("slot", {slot}), f"another one died: {cell.recovery}"
    assert cell.recovery["mode"] == cell.plan.recovers, f"recovered by {cell.recovery['mode']}: {cell.recovery}"
    assert cell.recovery["fallback"] is None, f"rolled back: {cell.recovery['fallback']}"


def run(spark: SparkSession, folder: Path, plan: Plan, patience_s: float = PATIENCE_S) -> list[Cell]:
    """The job of a plan; its cells."""
    folder.mkdir()
    cells = [Cell(plan, point, f"{operator}[{index}]") for point, operator, index in plan.kills()]
    at_start = tuple(f"{cell.point}:{cell.subtask}" for cell in cells if cell.point in AT_THE_START)
    options = {**OPTIONS, **plan.mode.options, **plan.options, "recovery": plan.recovery, "faults": at_start}
    processes, at = Processes(), cells[0]
    try:
        victim = plan.mode.kind(spark, folder, **options)
        victim.limit_s = patience_s
        with victim:
            try:
                for at in cells:
                    kill_at(victim, at, processes, ends=at.point in AT_THE_END)
                    at.result = "survived"
                if not victim.job.done:
                    victim.finish()
            except WRONG:
                print(state_of(victim), file=sys.stderr, flush=True)
                raise
            restarts = victim.metrics["slot_restarts"]
            assert restarts <= len(cells), f"{restarts} slots were started again after {len(cells)} kills"
        left = processes.left()
        assert not left, f"left running: {left}"
    except WRONG as error:
        what = (str(error).strip() or type(error).__name__).splitlines()[0]
        for cell in cells:
            if cell is at or cell.result == "survived":
                cell.result = f"WRONG: {type(error).__name__}: {what}"
        return cells
    for cell in cells:
        cell.result = EXACT if plan.recovers == plan.recovery else f"{EXACT}, rolled back"
    return cells


def state_of(victim: Victim) -> str:
    """What is to be known of a job that did not do what it should, and whether it still does anything."""
    job, metrics = victim.job, victim.metrics
    job.wait(PROGRESS_S)
    moved = {
        name: (metrics["operators"][name]["rows_out"], found["rows_out"])
        for name, found in job.metrics()["operators"].items()
    }
    told = {name: metrics[name] for name in ("failovers", "fallbacks", "slot_restarts", "blocked", "running_s")}
    lines = [f"state {job.state}, {told}, slots {job.slot_pids()}, in {PROGRESS_S} s rows out {moved}"]
    lines += [f"checkpoint {found}" for found in job.checkpoints()[-4:]]
    lines += [f"recovery {found}" for found in job.recoveries()]
    lines += [f"chain of {name}: {slots}" for name, slots in job.chains().items()]
    return "\n".join(lines)


def run_beside(spark: SparkSession, folder: Path, plans: Sequence[Plan]) -> list[Cell]:
    """The jobs of ``plans``, all at once."""
    with ThreadPoolExecutor(len(plans)) as pool:
        jobs = [pool.submit(run, spark, folder / str(number), plan) for number, plan in enumerate(plans)]
        return [cell for job in jobs for cell in job.result()]
