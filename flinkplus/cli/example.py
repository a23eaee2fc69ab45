"""``flinkplus example components|pagerank``: jobs with loops, on a graph of yours or a random one."""

from __future__ import annotations

import argparse
from typing import Any

from flinkplus.cli import session
from flinkplus.cli.arguments import add_option, given_options, positive, positive_number
from flinkplus.cli.figures import check_json, write_json
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError

EXIT_OK, EXIT_WRONG = 0, 1
DESCRIPTIONS = {
    "components": "connected components by label propagation",
    "pagerank": "PageRank by pushing residuals",
}


def add_example(commands: Any) -> None:
    example = commands.add_parser("example", help="jobs with loops: connected components, PageRank")
    kinds = example.add_subparsers(dest="name", required=True, metavar="EXAMPLE")
    for name, description in DESCRIPTIONS.items():
        command = kinds.add_parser(name, help=description)
        command.add_argument(
            "input", nargs="?", metavar="INPUT", help="lines of 'vertex neighbour ...' (default: a random graph)"
        )
        command.add_argument(
            "--vertices", type=positive, default=2_000, metavar="N", help="vertices of the random graph"
        )
        command.add_argument(
            "--degree", type=positive, default=2, metavar="N", help="maximum number of neighbours of a vertex"
        )
        command.add_argument("--output", metavar="DIR", help="Parquet directory (default: results are only compared)")
        command.add_argument("--rate", type=positive_number, default=1_000.0, metavar="VERTICES_PER_S")
        command.add_argument("--kills", type=int, default=0, metavar="N", help="slots killed on the way (default: 0)")
        command.add_argument(
            "--seed", type=int, default=1, metavar="S", help="seed of the random graph and of the kills"
        )
        add_option(command, "parallelism", default=3)
        add_option(command, "recovery", choices=["standby", "rollback"])
        add_option(command, "checkpoint_interval", default=0.5)
        command.add_argument("--json", metavar="FILE", help="write every figure here")
        command.add_argument("--master", metavar="URL", help="Spark master (default: local)")
        command.set_defaults(run=run_example_command)


def run_example_command(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 0 when the result is that of the sequential computation."""
    from flinkplus.examples.graphs import GraphFile, RandomGraph
    from flinkplus.examples.running import Run, run_example

    graph: GraphFile | RandomGraph = RandomGraph(arguments.vertices, arguments.degree, arguments.seed)
    if arguments.input is not None:
        graph = GraphFile(arguments.input)
        graph.adjacency()
    if arguments.kills < 0:
        raise ConfigurationError(f"--kills must not be negative, it is {arguments.kills}")
    options = given_options(arguments)
    options_from({}, options)
    run = Run(arguments.name, graph, arguments.rate, arguments.output, arguments.kills, arguments.seed, options)
    check_json(arguments.json)
    with session.session(session.check_master(arguments.master, arguments.parallelism)) as spark:
        figures = run_example(spark, run)
    for line in story(figures):
        print(line)
    write_json(arguments.json, figures)
    return EXIT_OK if figures["equal"] else EXIT_WRONG


def story(figures: dict[str, Any]) -> list[str]:
    equal = "equal to" if figures["equal"] else "DIFFERENT from"
    lines = [
        f"{figures['example']}: {figures['vertices']:,} vertices in {figures['running_s']:.2f} s; "
        f"{figures['went_round']:,} rows went into the loop, or round it",
        f"the result is {equal} that of the sequential computation, {figures['results']:,} values",
    ]
    if figures["killed"]:
        lines.append(
            f"slots killed: {figures['killed']}; failovers by standbys: {figures['failovers']}; "
            f"fallbacks to a rollback: {figures['fallbacks']}"
        )
    return lines + [f"fell back: {reason}" for reason in figures["fallback_reasons"]]
