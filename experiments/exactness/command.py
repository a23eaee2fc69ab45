"""``flinkplus experiment exactness``: options, runs, table, files.

Rules: those of ``experiments.recovery.command``. The exit code is 0 when every run was exact. Where all parts of the
protocol are left out that protect against one kind of damage (``Settings.does_damage``), it is 0 when the check found
damage in some run, since this is what is to be shown.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from experiments import console
from experiments.beside import beside
from experiments.exactness.settings import APART_S, Case, Settings
from experiments.running import one_session, shown
from flinkplus.cli.figures import check_json
from flinkplus.runtime.faults.points import PARTS

EXIT_OK, EXIT_FAILED = 0, 1
DEFAULT_OUT = "results/exactness"


def add_exactness(command: argparse.ArgumentParser) -> None:
    """The options of ``flinkplus experiment exactness``."""
    from flinkplus.cli.arguments import positive, positive_number

    command.add_argument("--runs", type=positive, default=200, metavar="N", help="jobs (default: 200)")
    command.add_argument("--first", type=int, default=0, metavar="N", help="number of the first run (default: 0)")
    command.add_argument("--seed", type=int, default=1, metavar="S")
    command.add_argument("--parallelism", type=positive, default=4, metavar="N", help="slots (default: 4)")
    command.add_argument(
        "--replicas", type=positive, metavar="N", help="of each subtask (default: as many as slots, so any may die)"
    )
    command.add_argument("--recovery", choices=["standby", "partial"], default="standby", help="of the jobs")
    command.add_argument("--interval", type=positive_number, default=0.3, metavar="S", help="between checkpoints")
    command.add_argument(
        "--apart", type=positive_number, default=APART_S, metavar="S", help=f"between failures (default: {APART_S})"
    )
    command.add_argument(
        "--without",
        type=console.choices(PARTS),
        default=(),
        metavar="PART,...",
        help=f"jobs that lack {', '.join(PARTS)}",
    )
    command.add_argument("--go-on", action="store_true", help="keep the runs that the file of --json has, do the rest")
    what = "for files, and what is left of runs that are not exact or not local"
    console.add_output(command, "exactness.json", DEFAULT_OUT, what)
    command.set_defaults(run=run_exactness_command)


def run_exactness_command(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    settings = Settings(
        runs=arguments.runs,
        first=arguments.first,
        seed=arguments.seed,
        parallelism=arguments.parallelism,
        replicas=arguments.replicas or arguments.parallelism,
        recovery=arguments.recovery,
        interval=arguments.interval,
        apart=arguments.apart,
        without=arguments.without,
    )
    out = Path(arguments.out)
    path = Path(arguments.json or out / "exactness.json")
    content = run_exactness(settings, path, out, arguments.master, arguments.go_on)
    whole = content["summary"][-1]
    shows = whole["wrong"] > 0 if settings.does_damage else whole["exact"] == whole["runs"]
    return EXIT_OK if shows else EXIT_FAILED


def run_exactness(
    settings: Settings, json_path: Path, out: Path, master: str | None = None, go_on: bool = False
) -> dict[str, Any]:
    """Check the settings, run everything, print the table, write the JSON; returns the document.

    Raises ``ConfigurationError`` and the like before anything runs; on ``KeyboardInterrupt`` what there is is written.
    """
    from experiments.exactness.report import exactness_document, exactness_table, lines
    from experiments.exactness.run import Runner

    settings.check()
    check_json(json_path)
    document = exactness_document(settings, json_path, go_on)
    done = {run["run"] for run in document.content["runs"]}
    cases = [case for case in settings.cases() if case.run not in done]

    def show(content: dict[str, Any]) -> None:
        console.show(exactness_table(content), *lines(content))

    with (
        shown(document, show),
        one_session(master, settings.parallelism) as spark,
        _one_zookeeper(master) as zookeeper,
        tempfile.TemporaryDirectory(prefix="flinkplus-exactness-") as directory,
        console.bar(len(cases), "starting") as bar,
    ):

        def begun(case: Case) -> None:
            bar.begin(f"run {case.run}: {', '.join(f'{strike.kind} {strike.subtask}' for strike in case.strikes)}")

        runner = Runner(spark, settings, Path(directory), begun, zookeeper, out)
        for figures in beside(runner.outcomes(cases), runner.stop):
            document.add(figures)
            bar.end()
            if not figures["exact"] and not settings.does_damage:
                bar.say(f"run {figures['run']} is not exact: {figures['error'] or figures['examples']}")
    return document.content


def _one_zookeeper(master: str | None) -> contextlib.AbstractContextManager[str | None]:
    """One server for all jobs, where all of them are on this machine; elsewhere each has its own."""
    from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
    from flinkplus.runtime.job.local_masters import local_master

    @contextlib.contextmanager
    def started() -> Any:
        with EmbeddedZooKeeper() as server:
            yield server.hosts

    return started() if master is None or local_master(master) is not None else contextlib.nullcontext()
