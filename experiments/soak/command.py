"""``flinkplus experiment soak``: options, the run, tables, files.

Rules: those of ``experiments.recovery.command``. The exit code is 0 when nothing failed the soak.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from experiments import console
from experiments.beside import beside
from experiments.cluster.network import ClusterError
from experiments.running import one_session
from experiments.soak.settings import CLUSTER_FAULTS, LOCAL_FAULTS, Draw, Settings
from flinkplus.cli.figures import check_json
from flinkplus.errors import ConfigurationError

EXIT_OK, EXIT_FAILED = 0, 1
DEFAULT_OUT = "results/soak"
CLUSTERS = ("local", "namespaces", "here")
DEFAULT_HOSTS = 4


def add_soak(command: argparse.ArgumentParser) -> None:
    """The options of ``flinkplus experiment soak``."""
    from flinkplus.cli.arguments import positive, positive_number

    numbers = positive_number
    command.add_argument("--minutes", type=numbers, default=30.0, metavar="M", help="of input (default: 30)")
    command.add_argument("--every", type=numbers, default=10.0, metavar="S", help="between faults (default: 10)")
    command.add_argument("--seed", type=int, default=1, metavar="S")
    command.add_argument("--rate", type=numbers, default=5_000.0, metavar="WORDS_PER_S", help="default: 5000")
    command.add_argument("--parallelism", type=positive, default=4, metavar="N", help="slots (default: 4)")
    command.add_argument("--replicas", type=positive, default=3, metavar="N", help="of each subtask (default: 3)")
    command.add_argument("--interval", type=numbers, default=1.0, metavar="S", help="between checkpoints")
    kinds = tuple(dict.fromkeys((*LOCAL_FAULTS, *CLUSTER_FAULTS)))
    command.add_argument(
        "--fault", type=console.choices(kinds), default=(), metavar=",".join(kinds), help="default: all that can be"
    )
    command.add_argument(
        "--cluster",
        choices=CLUSTERS,
        default="local",
        help="local: without one; namespaces: start one on this machine, which takes root; here: its job's host",
    )
    command.add_argument("--hosts", type=positive, metavar="N", help="workers of the cluster (default: 4)")
    console.add_output(command, "soak.json", DEFAULT_OUT)
    command.set_defaults(run=run_soak_command)


def run_soak_command(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    local = arguments.cluster == "local"
    if local and arguments.hosts is not None:
        raise ConfigurationError("--hosts is for --cluster namespaces")
    if not local and arguments.master is not None:
        raise ConfigurationError("--cluster has a master of its own")
    hosts = None if local else arguments.hosts or DEFAULT_HOSTS
    settings = Settings(
        minutes=arguments.minutes,
        every=arguments.every,
        seed=arguments.seed,
        rate=arguments.rate,
        parallelism=arguments.parallelism,
        replicas=arguments.replicas,
        interval=arguments.interval,
        hosts=hosts,
        faults=arguments.fault,
    )
    settings.check()
    out = Path(arguments.out)
    json_path = Path(arguments.json or out / "soak.json")
    for path in (json_path, out / "soak.png"):
        check_json(path)
    if arguments.cluster == "namespaces":
        from experiments.cluster.inside import run_inside

        assert hosts is not None
        return run_inside(hosts)
    content = run_soak(settings, json_path, out, arguments.master)
    return EXIT_FAILED if content["problems"] else EXIT_OK


def run_soak(settings: Settings, json_path: Path, out: Path, master: str | None = None) -> dict[str, Any]:
    """Run it, print tables, write JSON and picture; returns the document.

    Raises ``ConfigurationError`` and the like before anything runs; on ``KeyboardInterrupt`` what there is is written.
    """
    from experiments.cluster.place import Place
    from experiments.soak import report
    from experiments.soak.run import SoakRun

    place, session_settings = None if settings.hosts is None else Place.here(), None
    if place is not None and settings.hosts is not None:
        if place.control is None:
            raise ClusterError("a soak gives orders to the cluster, and here is nobody to take them")
        master, session_settings = place.master, place.session_settings(settings.hosts)
    document = report.soak_document(settings, json_path)
    with one_session(master, settings.parallelism, session_settings) as spark:
        shared = None if place is None else place.shared
        total = max(1, round(settings.minutes * 60 / settings.every))
        with (
            tempfile.TemporaryDirectory(prefix="flinkplus-soak-", dir=shared) as directory,
            console.bar(total, "starting") as bar,
        ):
            run = SoakRun(spark, settings, Path(directory), place)

            def begun(draw: Draw | None) -> None:
                bar.begin("running" if draw is None else draw.kind)

            try:
                for figures in beside(run.faults(begun), run.stop):
                    document.add(figures)
                    bar.end()
            except KeyboardInterrupt:
                document.content["interrupted"] = True
                raise
            finally:
                document.content |= run.content
                document.content["flat"] = report.flatness(run.content["usage"])
                document.content["problems"] = [*run.content["problems"], *report.verdict(document.content)]
                document.write()
                show_soak(document.content, json_path, out)
    return document.content


def show_soak(content: dict[str, Any], json_path: Path, out: Path) -> None:
    """Tables and what failed to stdout, the picture to ``out``."""
    from experiments.soak import report

    console.show(*report.tables(content))
    final = content["final"]
    if final is not None:
        exact = "equal to the batch count" if final["exact"] else "NOT equal to the batch count, or not compared"
        console.show(f"{final['words']:,} words in {final['running_s']:,.0f} s, output {exact}")
    for problem in content["problems"]:
        console.show(f"failed: {problem}")
    if report.picture(content, out / "soak.png"):
        console.show(f"written: {out / 'soak.png'}")
    console.show(f"written: {json_path}")
