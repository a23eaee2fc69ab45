"""``flinkplus experiment recovery`` and ``flinkplus experiment cost``: options, runs, tables, files.

Rules: whatever can be seen to be wrong is said before Spark is started; Ctrl-C ends the job and Spark, and what was
found until then is written and shown; quick to import, as every ``flinkplus`` command does it.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any

from experiments import console
from experiments.beside import beside
from experiments.recovery.settings import FAILURES, HOST_FAILURES, RECOVERIES, USUAL, Case, Settings
from experiments.running import one_session, shown
from flinkplus.cli.figures import check_json
from flinkplus.config import GUARANTEES
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.faults.points import PARTS

EXIT_OK, EXIT_FAILED = 0, 1
DEFAULT_OUT = "results/recovery"
CLUSTERS = ("namespaces", "here")
DEFAULT_HOSTS = 4


def add_recovery(command: argparse.ArgumentParser) -> None:
    """The options of ``flinkplus experiment recovery``."""
    from flinkplus.cli.arguments import positive, positive_number

    numbers, choices = console.whole_numbers, console.choices
    command.add_argument("--parallelism", type=numbers(1), default=(1, 2, 4, 8), metavar="N,...")
    command.add_argument("--recovery", type=choices(RECOVERIES), default=USUAL, metavar=",".join(RECOVERIES))
    command.add_argument(
        "--failure",
        type=choices((*FAILURES, *HOST_FAILURES)),
        default=FAILURES,
        metavar=",".join((*FAILURES, *HOST_FAILURES)),
        help=f"default: {','.join(FAILURES)}; the others are of hosts of a cluster",
    )
    command.add_argument("--runs", type=positive, default=10, metavar="N", help="kills of each kind (default: 10)")
    command.add_argument("--rate", type=positive_number, default=30_000.0, metavar="WORDS_PER_S")
    command.add_argument("--interval", type=positive_number, default=1.0, metavar="S", help="between checkpoints")
    command.add_argument("--seed", type=int, default=1, metavar="S")
    command.add_argument("--replicas", type=positive, default=3, metavar="N", help="of each subtask (default: 3)")
    command.add_argument(
        "--state-keys", type=numbers(0), default=(0,), metavar="N,...", help="objects of 1 KB of further keyed state"
    )
    command.add_argument("--no-warm-up", action="store_true", help="measure from the first run on")
    command.add_argument(
        "--cluster",
        choices=CLUSTERS,
        help="namespaces: start one on this machine, which takes root; here: this is the job's host of one",
    )
    command.add_argument("--hosts", type=positive, metavar="N", help="workers of the cluster (default: 4)")
    console.add_output(command, "recovery.json", DEFAULT_OUT)
    command.set_defaults(run=run_recovery_command)


def add_cost(command: argparse.ArgumentParser) -> None:
    """The options of ``flinkplus experiment cost``."""
    from flinkplus.cli.arguments import positive, positive_number

    command.add_argument("--replicas", type=console.whole_numbers(1), default=(1, 2, 3), metavar="N,...")
    command.add_argument(
        "--guarantees",
        type=console.choices(GUARANTEES),
        default=(),
        metavar="G,...",
        help="weaker ones, beside exactly-once",
    )
    command.add_argument(
        "--without",
        type=console.choices(PARTS),
        default=(),
        metavar="PART,...",
        help=f"also without these parts, all of them together: {', '.join(PARTS)}",
    )
    command.add_argument("--parallelism", type=positive, default=4, metavar="N")
    command.add_argument("--rate", type=positive_number, default=30_000.0, metavar="WORDS_PER_S")
    command.add_argument("--interval", type=positive_number, default=1.0, metavar="S", help="between checkpoints")
    command.add_argument("--rounds", type=positive, default=3, metavar="N", help="of every variant (default: 3)")
    command.add_argument("--seconds", type=positive_number, default=10.0, metavar="S", help="measured in each run")
    command.add_argument("--seed", type=int, default=1, metavar="S")
    console.add_output(command, "cost.json", DEFAULT_OUT)
    command.set_defaults(run=run_cost_command)


def run_recovery_command(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    if arguments.cluster is None and arguments.hosts is not None:
        raise ConfigurationError("--hosts is for --cluster")
    if arguments.cluster is not None and arguments.master is not None:
        raise ConfigurationError("--cluster has a master of its own")
    hosts = None if arguments.cluster is None else arguments.hosts or DEFAULT_HOSTS
    settings = Settings(
        hosts=hosts,
        parallelism=arguments.parallelism,
        recovery=arguments.recovery,
        failure=arguments.failure,
        runs=arguments.runs,
        rate=arguments.rate,
        interval=arguments.interval,
        seed=arguments.seed,
        replicas=arguments.replicas,
        state_keys=arguments.state_keys,
        warm_up=not arguments.no_warm_up,
    )
    out = Path(arguments.out)
    json_path = Path(arguments.json or out / "recovery.json")
    if arguments.cluster == "namespaces":
        from experiments.cluster.inside import run_inside

        settings.check()
        check_json(json_path)
        assert hosts is not None
        return run_inside(hosts)
    content = run_recovery(settings, json_path, out, arguments.master)
    return EXIT_OK if all(run["exact"] for run in content["runs"]) else EXIT_FAILED


def run_recovery(settings: Settings, json_path: Path, out: Path, master: str | None = None) -> dict[str, Any]:
    """Check the settings, run everything, print tables, write JSON and pictures; returns the document.

    Raises ``ConfigurationError`` and the like before anything runs; on ``KeyboardInterrupt`` what there is is written.
    """
    from experiments.cluster.place import Place
    from experiments.recovery.report import RecoveryDocument
    from experiments.recovery.runner import Runner

    settings.check()
    for path in (json_path, out / "recovery.png"):
        check_json(path)
    place, session_settings = None if settings.hosts is None else Place.here(), None
    if place is not None and settings.hosts is not None:
        ordered = [failure for failure in settings.failure if failure in HOST_FAILURES]
        if ordered and place.control is None:
            raise ConfigurationError(f"the failure {ordered[0]} is ordered, and here is nobody to take orders")
        master, session_settings = place.master, place.session_settings(settings.hosts)
    document = RecoveryDocument(settings, json_path)
    with (
        shown(document, lambda content: show_recovery(content, out)),
        one_session(master, max(settings.parallelism), session_settings) as spark,
    ):
        first = "warming up" if settings.warm_up else "starting"
        shared = None if place is None else place.shared
        with (
            tempfile.TemporaryDirectory(prefix="flinkplus-recovery-", dir=shared) as directory,
            console.bar(len(settings.cases()), first) as bar,
        ):

            def begun(case: Case) -> None:
                bar.begin(f"parallelism {case.parallelism}, {case.failure}, {case.recovery}")

            runner = Runner(spark, settings, Path(directory), begun, place)
            for outcome in beside(runner.outcomes(), runner.stop):
                document.add_timeline(outcome.timeline if outcome.figures["exact"] else None)
                document.add(outcome.figures)
                bar.end()
                if outcome.figures["error"] is not None:
                    bar.say(f"a run failed: {outcome.figures['error']}")
    return document.content


def show_recovery(content: dict[str, Any], out: Path) -> None:
    """Tables to stdout, pictures to ``out``."""
    from experiments.recovery import pictures, report

    console.show(*report.tables(content))
    for run in content["runs"]:
        if run["error"] or not run["exact"]:
            what = f"parallelism {run['parallelism']}, {run['recovery']}, {run['failure']}, run {run['run']}"
            wrong = f"{run.get('wrong_words')} words differ, such as {run.get('example_of_wrong_word')!r}"
            console.show(f"{what}: {run['error'] or wrong}")
    for name, draw in (
        ("recovery.png", pictures.recovery_by_parallelism),
        ("state.png", pictures.recovery_by_state),
        ("timeline.png", pictures.timeline),
    ):
        if draw(content, out / name):
            console.show(f"written: {out / name}")


def run_cost_command(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    from experiments.recovery.cost import CostSettings, cost_document, cost_table, run_costs

    settings = CostSettings(
        replicas=arguments.replicas,
        guarantees=arguments.guarantees,
        without=arguments.without,
        parallelism=arguments.parallelism,
        rate=arguments.rate,
        interval=arguments.interval,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        seed=arguments.seed,
    )
    settings.check()
    _, json_path = console.output_files(arguments, "cost.json")
    document = cost_document(settings, json_path)
    total = 2 * settings.rounds * len(settings.variants)
    with (
        shown(document, lambda content: console.show(cost_table(content))),
        one_session(arguments.master, settings.parallelism) as spark,
        console.bar(total, "costs") as bar,
    ):
        stop = threading.Event()
        for figures in beside(run_costs(spark, settings, stop), stop.set):
            document.add(figures)
            bar.end()
            bar.begin(f"round {figures['round'] + 1}, {figures['kind']}, {figures['variant']}")
    return EXIT_OK
