"""``flinkplus migrate``, ``drain``, ``undrain``, ``scale`` and ``rescale``: planned moves, spare slots and another
parallelism of a running job.

Each ``run_...`` returns the exit code, and raises as ``job_of`` and ``call``.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from typing import Any

from flinkplus.cli.arguments import add_job_arguments, job_of
from flinkplus.errors import ConfigurationError
from flinkplus.printable import escaped
from flinkplus.runtime.coordinator.commands import moves
from flinkplus.runtime.operations.access_file import call, connected

SLOT = re.compile(r"(?:slot-)?(\d{1,9})\Z")
POLL_S = 0.1
WAIT_S, MAX_WAIT_S = 300.0, 86_400.0
EXIT_NOT_DONE = 1


def add_moves(commands: Any) -> None:
    migrate = commands.add_parser("migrate", help="move a subtask of a running job to another slot")
    migrate.add_argument("subtask", metavar="SUBTASK", help="count:1, with all that is fused with it")
    migrate.add_argument("--to", required=True, metavar="SLOT", help="slot-2, as status shows it")
    _add_common(migrate)
    migrate.set_defaults(run=run_migrate)
    drain = commands.add_parser("drain", help="move all subtasks of a running job off a host, and keep them off")
    drain.add_argument("host", metavar="HOST", help="a host as status shows it")
    drain.add_argument("--force", action="store_true", help="even if this leaves fewer copies of the state")
    _add_common(drain)
    drain.set_defaults(run=run_drain_host)
    undrain = commands.add_parser("undrain", help="allow a drained host to be used again")
    undrain.add_argument("host", metavar="HOST")
    add_job_arguments(undrain)
    undrain.set_defaults(run=run_undrain_host)
    scale = commands.add_parser(
        "scale", help="set the number of spare slots, in addition to those that a job started with"
    )
    scale.add_argument("spares", type=int, metavar="SPARES", help="number of spare slots")
    scale.add_argument("--force", action="store_true", help="even if this leaves fewer copies of the state")
    _add_common(scale)
    scale.set_defaults(run=run_scale)

    rescale = commands.add_parser("rescale", help="change the parallelism of a running job")
    rescale.add_argument("parallelism", type=int, metavar="N", help="number of subtasks of each operator, and of slots")
    _add_common(rescale)
    rescale.set_defaults(run=run_rescale)


def _add_common(command: argparse.ArgumentParser) -> None:
    add_job_arguments(command)
    command.add_argument(
        "--wait",
        type=float,
        default=WAIT_S,
        metavar="S",
        help="seconds to wait for the end (%(default)s; 0: do not wait)",
    )
    command.add_argument("--json", action="store_true", help="report progress as one JSON document per line")


def run_migrate(arguments: argparse.Namespace) -> int:
    slot, subtask = SLOT.match(arguments.to), arguments.subtask
    if slot is None:
        raise ConfigurationError(
            f"--to {arguments.to!r} is not a slot; write slot-0, slot-1, ... (see flinkplus status)"
        )
    number = int(slot[1])
    return _see_through(arguments, moves.MigrateCommand(subtask, number), f"{subtask} is on slot-{number}")


def run_drain_host(arguments: argparse.Namespace) -> int:
    host = arguments.host
    return _see_through(arguments, moves.DrainHostCommand(host, arguments.force), f"nothing is left on {host}")


def run_undrain_host(arguments: argparse.Namespace) -> int:
    call(job_of(arguments), moves.UndrainHostCommand(arguments.host))
    print(f"{arguments.host} may be used again")
    return 0


def run_scale(arguments: argparse.Namespace) -> int:
    count = moves.check_count(arguments.spares)
    done = f"there {'is 1 spare slot' if count == 1 else f'are {count} spare slots'}"
    return _see_through(arguments, moves.ScaleSparesCommand(count, arguments.force), done)


def run_rescale(arguments: argparse.Namespace) -> int:
    count = arguments.parallelism
    return _see_through(arguments, moves.RescaleCommand(count), f"the job runs at parallelism {count}")


def _see_through(arguments: argparse.Namespace, request: Any, done: str) -> int:
    """Send the request, and print progress until it is done, or the wait is over."""
    if not 0 <= arguments.wait <= MAX_WAIT_S:
        raise ConfigurationError(f"--wait must be from 0 to {MAX_WAIT_S:g} seconds, not {arguments.wait:g}")
    access = job_of(arguments)
    deadline = time.monotonic() + arguments.wait
    with connected(access) as ask:
        news = ask(request)
        _print(news, arguments.json, done)
        while news["status"] != "done" and arguments.wait > 0:
            if time.monotonic() >= deadline:
                return EXIT_NOT_DONE
            time.sleep(POLL_S)
            before, news = news, ask(moves.MoveNewsCommand(news["number"]))
            if news != before:
                _print(news, arguments.json, done)
    return 0


def _print(news: dict[str, Any], as_json: bool, done: str) -> None:
    if as_json:
        print(json.dumps(news), flush=True)
    elif news["status"] == "done":
        print(done, flush=True)
    else:
        print(escaped(f"under way; left: {', '.join(news['left'])}"), flush=True)
