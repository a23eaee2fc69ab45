"""``flinkplus experiment overhead``: options, runs, table, files. Quick to import, as every command does it."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Any

from experiments import console
from experiments.beside import beside
from experiments.running import one_session, shown
from flinkplus.config import CHECKPOINT_MODES

EXIT_OK = 0
DEFAULT_OUT = "results/overhead"
PICTURE = "overhead.png"


def add_overhead(command: argparse.ArgumentParser) -> None:
    """The options."""
    from flinkplus.cli.arguments import positive, positive_number

    command.add_argument(
        "--intervals",
        type=console.positive_numbers,
        default=(0.25, 0.5, 1.0, 2.0, 5.0, 10.0),
        metavar="S,...",
        help="between checkpoints (default: 0.25,0.5,1,2,5,10)",
    )
    command.add_argument(
        "--modes", type=console.choices(CHECKPOINT_MODES), default=CHECKPOINT_MODES, metavar=",".join(CHECKPOINT_MODES)
    )
    command.add_argument("--parallelism", type=positive, default=2, metavar="N")
    command.add_argument("--rounds", type=positive, default=3, metavar="N", help="of every variant (default: 3)")
    command.add_argument("--seconds", type=positive_number, default=8.0, metavar="S", help="measured in each run")
    command.add_argument("--seed", type=int, default=1, metavar="S")
    console.add_output(command, "overhead.json", DEFAULT_OUT)
    command.set_defaults(run=run_overhead_command)


def run_overhead_command(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    from experiments.overhead.runs import OverheadSettings, overhead_document, run_all

    settings = OverheadSettings(
        intervals=arguments.intervals,
        modes=arguments.modes,
        parallelism=arguments.parallelism,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        seed=arguments.seed,
    )
    settings.check()
    out, json_path = console.output_files(arguments, "overhead.json", PICTURE)
    document = overhead_document(settings, json_path)
    with (
        shown(document, lambda content: show(content, out)),
        one_session(arguments.master, settings.parallelism) as spark,
        console.bar(settings.runs, "overhead") as bar,
    ):
        stop = threading.Event()
        for figures in beside(run_all(spark, settings, stop), stop.set):
            document.add(figures)
            bar.end()
            bar.begin(f"round {figures['round'] + 1}, {figures['variant']}")
    return EXIT_OK


def show(content: dict[str, Any], out: Path) -> None:
    """The table to stdout, the picture to ``out``."""
    from experiments.overhead import pictures
    from experiments.overhead.runs import table_of

    console.show(table_of(content))
    if pictures.throughput_by_interval(content, out / PICTURE):
        console.show(f"written: {out / PICTURE}")
