"""``flinkplus check-upgrade``: whether a program fits the checkpoints that it would be resumed from.

The program is run up to its ``execute``, which compares and starts nothing (``flinkplus.api.upgrades``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from flinkplus.api.upgrades import CHECK_VARIABLE
from flinkplus.cli.tables import Table, console, text
from flinkplus.errors import ConfigurationError
from flinkplus.printable import escaped

EXIT_PERMITTED, EXIT_REFUSED = 0, 1
STDERR = 2


def add_check_upgrade(commands: Any) -> None:
    command = commands.add_parser(
        "check-upgrade", help="compare a program with the checkpoints that it would be resumed from; start nothing"
    )
    command.add_argument("--json", action="store_true", help="one JSON document on stdout")
    command.add_argument("program", metavar="PROGRAM", help="a file of Python, flinkplus, or any other command")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="of the program")
    command.set_defaults(run=run_check_upgrade)


def run_check_upgrade(arguments: argparse.Namespace) -> int:
    """The exit code. Raises ``ConfigurationError`` for a program that compares nothing."""
    found = comparison_of([arguments.program, *arguments.arguments])
    if arguments.json:
        print(escaped(json.dumps(found, ensure_ascii=False)), flush=True)
    else:
        print_table(found)
    return EXIT_PERMITTED if found["permitted"] else EXIT_REFUSED


def comparison_of(command: list[str]) -> dict[str, Any]:
    """What the program's ``execute`` found (``Upgrade.as_dict``). The program's own output goes to stderr."""
    if command[0].endswith(".py"):
        command = [sys.executable, *command]
    elif command[0] == "flinkplus":
        command = [sys.executable, "-m", *command]
    with tempfile.TemporaryDirectory(prefix="flinkplus-check-") as folder:
        path = Path(folder) / "comparison"
        try:
            environment = {**os.environ, CHECK_VARIABLE: str(path)}
            ended = subprocess.run(command, env=environment, stdout=STDERR, check=False)
        except OSError as error:
            raise ConfigurationError(f"the program {command[0]!r} cannot be started: {error}") from error
        if not path.exists():
            raise ConfigurationError(
                f"the program ended with exit code {ended.returncode} before it called execute: there is nothing to "
                "compare"
            )
        found: dict[str, Any] = json.loads(path.read_text().splitlines()[0])
    return found


def print_table(found: dict[str, Any]) -> None:
    """The comparison for people."""
    if not found["begun"]:
        console().print(text(f"no job has begun in {found['directory']}: the program would start a new one"))
        return
    table = Table(f"Job {found['job']} in {found['directory']}", ("operator",), ("verdict", "was", "is"), note="why")
    for change in found["changes"]:
        table.add_row(change["operator"], change["verdict"], change["was"], change["now"], change["why"])
    refused = sum(change["verdict"] == "refused" for change in found["changes"])
    verdict = f"{refused} refused: the program cannot be resumed" if refused else "the program can be resumed"
    console().print(table, text(verdict))
