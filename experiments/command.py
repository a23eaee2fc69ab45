"""``flinkplus experiment ...``: what the command line shows of this package.

Rule: quick to import, since every ``flinkplus`` command does it; what an experiment needs is imported when it runs.
"""

from __future__ import annotations

from typing import Any

from experiments.exactness import command as exactness
from experiments.overhead import command as overhead
from experiments.recovery import command as recovery
from experiments.scaling import command as scaling
from experiments.soak import command as soak


def add_commands(commands: Any) -> None:
    """Add ``experiment`` to the sub-commands of ``flinkplus``."""
    experiment = commands.add_parser(
        "experiment", help="measure recoveries, costs of standbys and checkpoints, scaling, exactness"
    )
    kinds = experiment.add_subparsers(dest="experiment", required=True, metavar="EXPERIMENT")
    recovery.add_recovery(kinds.add_parser("recovery", help="kill to first new output, by rollback and by standbys"))
    recovery.add_cost(kinds.add_parser("cost", help="throughput, CPU and memory with 0, 1 and 2 standbys, no failures"))
    overhead.add_overhead(kinds.add_parser("overhead", help="throughput by interval and mode of checkpoints"))
    scaling.add_scaling(kinds.add_parser("scaling", help="running time of a fixed input by parallelism"))
    exactness.add_exactness(
        kinds.add_parser("exactness", help="three keyed stages under seeded kills, checked row by row")
    )
    soak.add_soak(kinds.add_parser("soak", help="one long job, a fault every few seconds, all flat and exact"))
