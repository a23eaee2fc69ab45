"""``flinkplus experiment scaling``: options, runs, table, files. Quick to import, as every command does it."""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path
from typing import Any

from experiments import console
from experiments.beside import beside
from experiments.running import one_session, shown

EXIT_OK = 0
DEFAULT_OUT = "results/scaling"
PICTURE = "scaling.png"


def add_scaling(command: argparse.ArgumentParser) -> None:
    """The options."""
    from flinkplus.cli.arguments import positive, positive_number

    command.add_argument(
        "--parallelism", type=console.whole_numbers(1), default=(1, 2, 4, 8, 16), metavar="N,...", help="(1,2,4,8,16)"
    )
    command.add_argument(
        "--measured",
        type=positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="measured up to this parallelism, simulated beyond (default: the machine's cores)",
    )
    command.add_argument("--interval", type=positive_number, default=1.0, metavar="S", help="between checkpoints (1.0)")
    command.add_argument(
        "--repeat", type=positive, default=6, metavar="N", help="1.1 M words are read N times over (6)"
    )
    command.add_argument("--rounds", type=positive, default=3, metavar="N", help="of every measured run (3)")
    command.add_argument("--batch-rows", type=positive, metavar="N", help="rows per message aimed at")
    command.add_argument("--seed", type=int, default=1, metavar="S")
    console.add_output(command, "scaling.json", DEFAULT_OUT)
    command.set_defaults(run=run_scaling_command)


def run_scaling_command(arguments: argparse.Namespace) -> int:
    """Returns the exit code."""
    from experiments.scaling.runs import ScalingSettings, run_all, scaling_document

    settings = ScalingSettings(
        parallelism=tuple(sorted(arguments.parallelism)),
        measured=arguments.measured,
        interval=arguments.interval,
        repeat=arguments.repeat,
        rounds=arguments.rounds,
        batch_rows=arguments.batch_rows,
        seed=arguments.seed,
    )
    settings.check()
    out, json_path = console.output_files(arguments, "scaling.json", PICTURE)
    document = scaling_document(settings, json_path)
    with (
        shown(document, lambda content: show(content, out)),
        one_session(arguments.master, max(settings.to_measure, default=1)) as spark,
        console.bar(settings.steps, "scaling") as bar,
    ):
        stop = threading.Event()
        for figures in beside(run_all(spark, settings, stop), stop.set):
            bar.begin(document_of(document, figures))
            bar.end()
    return EXIT_OK


def document_of(document: Any, figures: Any) -> str:
    """Note what was found; returns what it was."""
    import dataclasses

    if isinstance(figures, dict):
        document.add(figures)
        return f"{'simulated' if figures['simulated'] else 'measured'}: {figures['parallelism']}, {figures['variant']}"
    if figures is not None:
        document.content["costs"] = dataclasses.asdict(figures)
    return "costs"


def show(content: dict[str, Any], out: Path) -> None:
    """The table to stdout, the picture to ``out``."""
    from experiments.scaling import pictures
    from experiments.scaling.runs import table_of

    console.show(table_of(content))
    if pictures.time_by_parallelism(content, out / PICTURE):
        console.show(f"written: {out / PICTURE}")
