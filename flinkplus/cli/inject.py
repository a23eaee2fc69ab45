"""``flinkplus inject``: hurt a running job, to see it recover."""

from __future__ import annotations

import argparse
import json
from typing import Any

from flinkplus.cli.arguments import add_job_arguments, job_of
from flinkplus.printable import escaped
from flinkplus.runtime.coordinator.commands.operations import InjectCommand
from flinkplus.runtime.faults.injections import FAULTS
from flinkplus.runtime.operations.access_file import REPLY_TIMEOUT_S, call

DONE = {
    "exception": "an exception in {subtasks}",
    "kill": "SIGKILL to {slots}",
    "pause": "{slots} stopped for {for_s:g} s",
    "cut": "{slots} cut off for {for_s:g} s",
    "slow": "{subtasks} slowed down for {for_s:g} s",
}


def add_inject(commands: Any) -> None:
    command = commands.add_parser("inject", help="inject a fault into a running job: exception, kill, pause, cut, slow")
    command.add_argument("fault", choices=FAULTS)
    command.add_argument("target", metavar="SUBTASK|SLOT|HOST", help="count:1, slot-2, or a host as status shows it")
    add_job_arguments(command)
    command.add_argument("--at", type=float, metavar="S", help="S seconds after the job started to run (default: now)")
    command.add_argument(
        "--for", type=float, dest="for_s", default=1.0, metavar="S", help="pause, cut, slow: duration in seconds"
    )
    command.add_argument(
        "--delay", type=float, default=0.01, metavar="S", help="slow: delay before each step in seconds"
    )
    command.add_argument("--from", action="append", dest="peers", metavar="PEER", help="cut: driver or slot-N only")
    command.add_argument("--json", action="store_true", help="what was done, as JSON")
    command.set_defaults(run=run_inject)


def run_inject(arguments: argparse.Namespace) -> int:
    """The exit code. Raises as ``job_of`` and ``call``."""
    request = InjectCommand(
        arguments.fault, arguments.target, arguments.at, arguments.for_s, arguments.delay, arguments.peers
    )
    done = call(job_of(arguments), request, REPLY_TIMEOUT_S + (arguments.at or 0.0))
    if arguments.json:
        print(json.dumps(done))
    else:
        slots = ", ".join(f"slot-{slot}" for slot in done["slots"])
        subtasks = ", ".join(done["subtasks"])
        print(escaped(DONE[done["fault"]].format(slots=slots, subtasks=subtasks, for_s=done["for_s"] or 0.0)))
    return 0
