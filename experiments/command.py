"""``flinkplus experiment ...``: what the command line shows of this package.

Rule: quick to import, since every ``flinkplus`` command imports it. The module of an experiment is imported when its
command is used, and has an ``EXPERIMENT``.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

EXPERIMENTS = {
    "recovery": ("recovery.experiment", "kill to first new output, by rollback and by standbys"),
    "rescale": ("rescale.experiment", "another parallelism of a running job, and of a resumed one"),
    "cost": ("cost", "throughput, CPU and memory with 0, 1 and 2 standbys, no failures"),
    "overhead": ("overhead", "running time of a fixed input by interval and mode of checkpoints"),
    "baselines": ("baselines.experiment", "beside Apache Flink and Spark: throughput, latency, recovery"),
    "nexmark": (
        "nexmark.experiment",
        "all queries of Nexmark: exact with and without a kill, throughput, beside Flink",
    ),
    "scaling": ("scaling.experiment", "running time of a fixed input by parallelism"),
    "usage": ("usage", "processors and memory before, during and after a failure"),
    "snapshots": ("snapshots", "incremental against full snapshots by size of state and what changes"),
    "visibility": ("visibility.experiment", "row due to row readable in PostgreSQL, at once and by checkpoint"),
    "exactness": ("exactness.experiment", "three keyed stages under seeded kills, checked row by row"),
    "black-box": (
        "blackbox.experiment",
        "drawn faults, watched at the far end by a checker that knows the input alone",
    ),
    "soak": ("soak.experiment", "one long job, a fault every few seconds, all flat and exact"),
}
"""Name -> module in this package, and what the help says."""


def add_commands(commands: Any) -> None:
    """Add ``experiment`` to the sub-commands of ``flinkplus``."""
    experiment = commands.add_parser(
        "experiment", help="measure recoveries, costs of standbys and checkpoints, scaling, exactness"
    )
    kinds = experiment.add_subparsers(
        dest="experiment", required=True, metavar="EXPERIMENT", parser_class=_ExperimentParser
    )
    for name, (module, text) in EXPERIMENTS.items():
        kinds.add_parser(name, help=text).module = f"{__package__}.{module}"


class _ExperimentParser(argparse.ArgumentParser):
    """Has the options of the experiment in ``module`` from its first use on."""

    module: str | None = None

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        if self.module is not None:
            importlib.import_module(self.module).EXPERIMENT.add_to(self)
            self.module = None
        return super().parse_known_args(args, namespace)
