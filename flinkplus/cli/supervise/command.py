"""The arguments of ``flinkplus supervise``."""

from __future__ import annotations

import argparse
from typing import Any

from flinkplus.cli.arguments import positive_number
from flinkplus.cli.supervise.policy import RestartPolicy
from flinkplus.cli.supervise.prepared import PREPARED, SPARK
from flinkplus.cli.supervise.supervisor import DriverSupervisor
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.base.logs import install, wanted

MAX_RESTARTS, PREPARE_S, STOP_S = 10, 10.0, 30.0
LOG = "text"


def add_supervise(commands: Any) -> None:
    command = commands.add_parser("supervise", help="run a program, and run it again when its driver dies")
    command.add_argument(
        "--max-restarts",
        type=int,
        default=MAX_RESTARTS,
        metavar="N",
        help="in a row, without a minute between two failures (default: %(default)s)",
    )
    command.add_argument(
        "--stop-timeout",
        type=positive_number,
        default=STOP_S,
        metavar="S",
        help="for the driver to end on SIGTERM or Ctrl-C, before it is killed (default: %(default)g)",
    )
    command.add_argument(
        "--prepare",
        choices=PREPARED,
        default=SPARK,
        help="of the next driver, while this one runs: nothing, its Python process, or also Spark's Java process "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--prepare-after",
        type=positive_number,
        default=PREPARE_S,
        metavar="S",
        help="when to do so, after a driver has started Spark: it takes processors for some seconds (default: "
        "%(default)g)",
    )
    command.add_argument("program", metavar="PROGRAM", help="a file of Python, flinkplus, or any other command")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="of the program")
    command.set_defaults(run=run_supervise)


def run_supervise(arguments: argparse.Namespace) -> int:
    """The exit code. Raises ``ConfigurationError`` for a program that cannot be started."""
    if arguments.max_restarts < 0:
        raise ConfigurationError(f"--max-restarts is {arguments.max_restarts}; give a number from 0 up")
    install(wanted(None) or LOG)
    command = [arguments.program, *arguments.arguments]
    policy = RestartPolicy(arguments.max_restarts)
    return DriverSupervisor(command, policy, arguments.prepare, arguments.prepare_after, arguments.stop_timeout).run()
