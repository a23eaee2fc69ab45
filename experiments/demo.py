"""``flinkplus demo``: one slot of a WordCount is killed, once with standbys and once with rollback."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.harness import console
from experiments.harness.experiment import EXIT_FAILED, EXIT_OK
from experiments.recovery.experiment import EXPERIMENT, Settings
from experiments.recovery.plan import Case
from flinkplus.errors import ConfigurationError

PARALLELISM = 4
RATE = 30_000.0
OUT = Path("results/demo")
STAY_S = 1e8
LOOK_S = 0.5


@dataclass(frozen=True)
class ShownSettings(Settings):
    """Settings of jobs with a page. ``ui``, ``ui_linger``: as the options of a job."""

    ui: bool | str = False
    ui_linger: float = 0.0

    def options(self, case: Case) -> dict[str, Any]:
        return {**super().options(case), "ui": self.ui, "ui_linger": self.ui_linger}


def check_stay(ui: bool | str, stay: bool) -> None:
    """Raises ``ConfigurationError`` for pages that are to stay where they cannot."""
    if stay and ui is False:
        raise ConfigurationError("--stay keeps the pages of the jobs open: it needs --ui")
    if stay and isinstance(ui, str) and not ui.endswith(":0"):
        raise ConfigurationError(
            f"--stay keeps the pages of several jobs open, which cannot all be at {ui}: give port 0"
        )


def run_demo(json_path: str | None = None, ui: bool | str = False, stay: bool = False) -> int:
    """Run the demo and print its story; returns the exit code. ``ui``: where the page of each job is. ``stay``: keep
    all pages open at the end, until Ctrl-C. Raises ``ConfigurationError`` as ``check_stay``."""
    check_stay(ui, stay)
    settings = ShownSettings(
        parallelism=(PARALLELISM,),
        failure=("sigkill",),
        runs=1,
        rate=RATE,
        ui=ui,
        ui_linger=STAY_S if stay else 0.0,
    )
    console.show(
        f"WordCount at {RATE:,.0f} words/s on Spark, {PARALLELISM} slots, a checkpoint every second. In full flow one",
        "slot's process is killed with SIGKILL: once a standby resumes where the dead process was, once the whole job",
        "goes back to its last checkpoint (rollback). A run to warm up comes first. Takes about a minute.",
    )
    if ui is not False:
        console.show("Each job has a page with its graph, slots and failovers, at the address that it prints.")
    content = EXPERIMENT.run(settings, Path(json_path or OUT / "recovery.json"), OUT)
    for line in story(content):
        console.show(line)
    fine = all(run["exact"] and run["recovery_ms"] is not None for run in content["runs"])
    if stay:
        console.show("The pages stay open, at the addresses above, until Ctrl-C: the last one is of the rollback.")
        _wait()
    elif ui is not False:
        console.show("To look at the pages after the jobs have ended: flinkplus demo --stay")
    return EXIT_OK if fine else EXIT_FAILED


def _wait() -> None:
    """Until Ctrl-C or SIGTERM."""
    try:
        while not threading.Event().wait(LOOK_S):
            pass
    except KeyboardInterrupt:
        console.show("")


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
