"""``flinkplus demo``: one slot of a WordCount is killed, once with standbys and once with rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.harness import console
from experiments.harness.experiment import EXIT_FAILED, EXIT_OK
from experiments.recovery.experiment import EXPERIMENT, Settings

PARALLELISM = 4
RATE = 30_000.0
OUT = Path("results/demo")


def run_demo(json_path: str | None = None) -> int:
    """Run the demo and print its story; returns the exit code."""
    settings = Settings(parallelism=(PARALLELISM,), failure=("sigkill",), runs=1, rate=RATE)
    console.show(
        f"WordCount at {RATE:,.0f} words/s on Spark, {PARALLELISM} slots, a checkpoint every second. In full flow one",
        "slot's process is killed with SIGKILL: once a standby resumes where the dead process was, once the whole job",
        "goes back to its last checkpoint (rollback). A run to warm up comes first. Takes about a minute.",
    )
    content = EXPERIMENT.run(settings, Path(json_path or OUT / "recovery.json"), OUT)
    for line in story(content):
        console.show(line)
    fine = all(run["exact"] and run["recovery_ms"] is not None for run in content["runs"])
    return EXIT_OK if fine else EXIT_FAILED


def story(content: dict[str, Any]) -> list[str]:
    """What has happened, in sentences."""
    lines = []
    for run in content["runs"]:
        if run["error"] is not None:
            lines.append(f"{run['recovery']}: the run failed: {run['error']}")
            continue
        took = "never" if run["recovery_ms"] is None else f"{run['recovery_ms']:,.0f} ms after the kill"
        gap = run["output_gap_others_ms"]
        others = "" if gap is None else f"; longest silence of the others: {gap:,.0f} ms"
        result = "equal to the Spark SQL batch count" if run["exact"] else "DIFFERENT from the Spark SQL batch count"
        fallback = "" if run["fallback"] is None else f" (fell back to rollback: {run['fallback']})"
        lines.append(f"{run['recovery']}: the words of {run['subtask']} were counted on {took}{others}{fallback}.")
        lines.append(f"{' ' * len(run['recovery'])}  The result is {result} ({run['rows']:,} words).")
    reductions = [row["reduction_percent"] for row in content["comparison"] if row["reduction_percent"] is not None]
    return lines + [f"Standbys took {reduction:.1f} % less time." for reduction in reductions]
