"""``flinkplus ui``: where the page of a running job is; and ``--ui``, ``--no-ui`` of the commands that run a job."""

from __future__ import annotations

import argparse
from typing import Any

from flinkplus.cli.arguments import add_job_arguments, add_option, job_of
from flinkplus.config import SITE
from flinkplus.errors import CommandRefused
from flinkplus.runtime.coordinator.commands.operations import StatusCommand
from flinkplus.runtime.operations.access_file import call
from flinkplus.runtime.operations.web.page import token_of
from flinkplus.runtime.operations.web.site import is_installed

EMBEDDED = "#token="


def add_ui_options(command: argparse.ArgumentParser) -> None:
    """``--ui [HOST:PORT]`` and ``--no-ui``. A page is served by default, if its packages are installed."""
    add_option(command, "ui", nargs="?", const=True, default=is_installed(), type=_place)
    command.add_argument("--no-ui", dest="ui", action="store_false", help="serve no page")


def _place(given: str) -> str:
    if SITE.match(given) is None:
        raise argparse.ArgumentTypeError(f"{given!r} is not HOST:PORT; put other arguments before --ui")
    return given


def add_ui(commands: Any) -> None:
    command = commands.add_parser("ui", help="the address of a running job's page, with the token for its buttons")
    add_job_arguments(command)
    command.add_argument("--token", action="store_true", help="print the token alone, for other programs")
    command.set_defaults(run=run_ui)


def run_ui(arguments: argparse.Namespace) -> int:
    """The exit code. Raises as ``job_of`` and ``call``, and ``CommandRefused`` for a job without a page."""
    access = job_of(arguments)
    address = call(access, StatusCommand())["job"].get("ui")
    if address is None:
        raise CommandRefused(f"job {access.name!r} serves no page: it was started without the option ui")
    token = token_of(access.credentials)
    print(token if arguments.token else f"{address}{EMBEDDED}{token}")
    return 0
