"""``make kill-check``: SIGKILL at every point of every kind of checkpoint, with every recovery, on real Spark.

Each job runs without end; its slots are killed one after the other, each when it reaches the point that it was told,
and the next one only when the job is whole again. Then it is drained, and its output is compared with what it has to
be. A cell of the table counts when that slot died there and no other one did, the job recovered in the way that it was
to, and the output of the whole job is exact. The exit status is 1 when one does not count, or when a process, a thread
or a directory is left behind.

``python -m tests.kills [--mode NAME...] [--recovery NAME...] [--point NAME] [--beside N] [--json FILE]``
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from experiments.harness.document import environment
from flinkplus.cli.figures import check_json, write_json
from flinkplus.cli.session import open_session
from flinkplus.errors import ConfigurationError, FlinkPlusError
from flinkplus.protocol.vocabulary.phases import DURATIONS
from tests.kills.matrix import COLUMNS, MODES, PARALLELISM, RECOVERIES, REFUSED, Plan, plans
from tests.kills.runner import GONE_S, PATIENCE_S, Cell, run

TOLD = (
    *("mode", "subtasks", "restarted", "checkpoint", "reason", "fallback"),
    *(f"{phase}_ms" for phase in DURATIONS),
    "recovery_ms",
)
"""What is kept of a recovery."""


def refusals(spark: SparkSession, folder: Path) -> dict[str, str]:
    """What cannot be had, and what is said of it; ``WRONG`` when it can."""
    found = {}
    for number, (name, kind, options) in enumerate(REFUSED):
        path = folder / f"refused-{number}"
        path.mkdir()
        try:
            kind(spark, path, **options).job.cancel()
            found[name] = "WRONG: it was not refused"
        except ConfigurationError as error:
            found[name] = str(error)
    return found


def table(cells: Sequence[Cell]) -> str:
    """Markdown: a row for each mode and recovery, a column for each point."""
    lines = [f"| checkpoints | recovery | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 2) + "|"]
    for mode in MODES:
        for recovery in RECOVERIES:
            row = {cell.point: cell for cell in cells if (cell.plan.mode, cell.plan.recovery) == (mode, recovery)}
            if row:
                told = [row[point].result.partition(":")[0] if point in row else "" for point in COLUMNS]
                lines.append(f"| {mode.name} | {recovery} | {' | '.join(told)} |")
    return "\n".join(lines)


def figures_of(cell: Cell) -> dict[str, Any]:
    plan, recovery = cell.plan, cell.recovery
    phases = {name: recovery.get(name) for name in TOLD}
    key = {"checkpoints": plan.mode.name, "recovery": plan.recovery, "point": cell.point, "subtask": cell.subtask}
    return {**key, "result": cell.result, "recovered": phases if recovery else None}


def figures(cells: Sequence[Cell], refused: dict[str, str], took_s: float, left: list[str]) -> dict[str, Any]:
    """All that was seen. JSON-able."""
    seen = {"refused": refused, "left_behind": left, "kills": [figures_of(cell) for cell in cells]}
    return {"experiment": "kills", **environment(), "took_s": round(took_s), **seen}


def selected(options: argparse.Namespace) -> list[Plan]:
    """The jobs to be run: all, or those of some modes, recoveries and points."""
    modes = [mode for mode in MODES if options.mode is None or mode.name in options.mode]
    recoveries = [recovery for recovery in RECOVERIES if options.recovery is None or recovery in options.recovery]
    found = [plan for mode in modes for recovery in recoveries for plan in plans(mode, recovery)]
    if options.point is not None:
        found = [replace(plan, points=(options.point,)) for plan in found if options.point in plan.points]
    return found


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Kill slots at every point of every kind of checkpoint.")
    parser.add_argument("--mode", choices=[mode.name for mode in MODES], nargs="+")
    parser.add_argument("--recovery", choices=RECOVERIES, nargs="+")
    parser.add_argument("--point", choices=COLUMNS)
    parser.add_argument("--beside", type=int, default=2, metavar="N", help="so many jobs at once (2)")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, metavar="S", help="for each step of a job (120)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen to this file")
    options = parser.parse_args()
    check_json(options.json)
    begun_s = time.monotonic()
    cells: list[Cell] = []
    spark = open_session(f"local[{options.beside * PARALLELISM + 2}]")
    before = set(psutil.Process().children())
    try:
        with tempfile.TemporaryDirectory(prefix="flinkplus-kills-") as name:
            refused = refusals(spark, Path(name))
            wanted = selected(options)
            with ThreadPoolExecutor(options.beside) as pool:
                jobs = [
                    pool.submit(run, spark, Path(name) / str(at), plan, options.patience)
                    for at, plan in enumerate(wanted)
                ]
                for done in as_completed(jobs):
                    cells += done.result()
                    write_json(options.json, figures(cells, refused, time.monotonic() - begun_s, []))  # so far
                    for cell in done.result():
                        took = cell.recovery.get("recovery_ms")
                        told = "" if took is None else f" ({took:.0f} ms)"
                        where = f"{cell.plan.mode.name}, {cell.plan.recovery}, {cell.point} of {cell.subtask}"
                        print(f"{where}: {cell.result}{told}", flush=True)
        psutil.wait_procs(set(psutil.Process().children()) - before, timeout=GONE_S)
        left = [str(child) for child in psutil.Process().children() if child not in before]
        left += [thread.name for thread in threading.enumerate() if not thread.daemon and thread.name != "MainThread"]
    finally:
        spark.stop()
    print()
    print(table(cells))
    print()
    for what, why in refused.items():
        print(f"{what}: {why}")
    bad = [cell for cell in cells if not cell.good]
    wrong = [what for what, why in refused.items() if why.startswith("WRONG")]
    took_s = time.monotonic() - begun_s
    print(f"{len(cells)} kills in {took_s:.0f} s, {len(cells) - len(bad)} exact; left behind: {left or 'nothing'}")
    write_json(options.json, figures(cells, refused, took_s, left))
    return 1 if bad or wrong or left or not cells else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FlinkPlusError as error:
        sys.exit(f"error: {error}")
