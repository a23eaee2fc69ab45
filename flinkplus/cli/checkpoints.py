"""``flinkplus checkpoints``: what is in a checkpoint directory or savepoint; ``flinkplus savepoint``: takes one."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.console import Group

from flinkplus.api.checkpoints import checkpoints
from flinkplus.cli.arguments import add_job_arguments, add_option, job_of
from flinkplus.cli.tables import Table, console, text
from flinkplus.errors import ConfigurationError
from flinkplus.printable import escaped
from flinkplus.runtime.coordinator.commands.savepoints import SavepointCommand, SavepointNewsCommand
from flinkplus.runtime.operations.access_file import connected
from flinkplus.state.durable.listing import READABLE, StoredCheckpoint, StoredCheckpoints
from flinkplus.state.file_system import absolute

EXIT_INTACT, EXIT_NOT_INTACT = 0, 1
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
WAIT_S, MAX_WAIT_S = 600.0, 86_400.0
NEWS_S = 1.0


def add_checkpoints(commands: Any) -> None:
    command = commands.add_parser("checkpoints", help="list the checkpoints in a directory, also while its job runs")
    command.add_argument("directory", metavar="CHECKPOINT_DIR", help="a path, or a URI such as s3://bucket/path")
    command.add_argument("--verify", action="store_true", help="read every state file and compare its checksum")
    add_option(command, "signing_key")
    command.add_argument("--json", action="store_true", help="one JSON document on stdout")
    command.set_defaults(run=run_checkpoints)


def run_checkpoints(arguments: argparse.Namespace) -> int:
    """The exit code. Raises as ``flinkplus.checkpoints``."""
    found = checkpoints(arguments.directory, signing_key=arguments.signing_key, verify=arguments.verify)
    if arguments.json:
        print(escaped(json.dumps(found.to_json(), ensure_ascii=False)), flush=True)
    else:
        console().print(tables(found))
    return EXIT_INTACT if found.intact else EXIT_NOT_INTACT


def add_savepoint(commands: Any) -> None:
    command = commands.add_parser("savepoint", help="take a savepoint of a running job, from which new jobs can start")
    command.add_argument("target", metavar="TARGET", help="a path on the driver's host, or a URI; new, or empty")
    command.add_argument("--stop", action="store_true", help="stop the job with it")
    add_job_arguments(command)
    command.add_argument(
        "--wait", type=float, default=WAIT_S, metavar="S", help="seconds to wait (%(default)s; 0: do not wait)"
    )
    command.add_argument("--json", action="store_true", help="report progress as one JSON document per line")
    command.set_defaults(run=run_savepoint)


def run_savepoint(arguments: argparse.Namespace) -> int:
    """The exit code: 1 when it is not complete within ``--wait``. Raises as ``job_of`` and ``connected``."""
    if not 0 <= arguments.wait <= MAX_WAIT_S:
        raise ConfigurationError(f"--wait must be from 0 to {MAX_WAIT_S:g} seconds, not {arguments.wait:g}")
    access = job_of(arguments)
    until_s = time.monotonic() + arguments.wait
    with connected(access) as ask:
        news = ask(SavepointCommand(absolute(arguments.target), arguments.stop))
        _print_savepoint(news, arguments.json)
        while news["status"] != "done" and arguments.wait > 0:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return EXIT_NOT_INTACT
            news = ask(SavepointNewsCommand(news["number"], news["status"], min(left_s, NEWS_S)))
            _print_savepoint(news, arguments.json)
    return EXIT_INTACT


def _print_savepoint(news: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(escaped(json.dumps(news, ensure_ascii=False)), flush=True)
    elif news["status"] == "done":
        stops = "; the job stops" if news["stop"] else ""
        size = f"checkpoint {news['checkpoint']}, {news['files']} files, {_size(news['bytes'])}"
        print(escaped(f"savepoint {news['target']}: {size}{stops}"), flush=True)
    else:
        copied = f" ({_size(news['bytes'])} of {_size(news['bytes_in_all'])})" if news["status"] == "copying" else ""
        print(escaped(f"{news['status']}{copied}"), flush=True)


def tables(found: StoredCheckpoints) -> Group:
    job = "unknown job" if found.job is None else f"{found.job} ({found.job_id or 'not signed'})"
    what = "a savepoint" if found.savepoint else f"{len(found)} checkpoints"
    parts: list[Any] = [
        text(
            f"{job}: {what} in {found.directory} (format {_cell(found.format)}); "
            f"{_size(found.stored_bytes)} of state files, {_size(found.unnamed_bytes)} that no checkpoint names"
        )
    ]
    if found.problem:
        parts.append(text(f"the job is not known: {found.problem}"))
    if found.checkpoints:
        parts.append(checkpoint_table(found))
    if found.latest is not None:
        parts.append(operator_table(found.latest))
    if found.other_files:
        parts.append(text(f"not of a checkpoint: {', '.join(found.other_files)}"))
    return Group(*parts)


def checkpoint_table(found: StoredCheckpoints) -> Table:
    """One line for each checkpoint, oldest first."""
    reasons = any(one.reason for one in found)
    numbers = ("age", "parallelism", "keys", "bytes", "new bytes", "in flight", "format")
    table = Table("Checkpoints", ("number",), ("status", "kind"), numbers, "reason" if reasons else None)
    for one in found:
        sizes = [_size(value) for value in (one.bytes, one.bytes_new, one.in_flight_bytes)]
        cells = [_age(one.age_s), _cell(one.parallelism), _cell(one.keys), *sizes, _cell(one.format)]
        table.add_row(str(one.number), one.status, one.kind or "-", *cells, *[one.reason] * reasons)
    return table


def operator_table(one: StoredCheckpoint) -> Table:
    """The operators of one checkpoint, over all subtasks."""
    title = f"Operators of checkpoint {one.number}, the newest that is {READABLE}"
    table = Table(title, ("operator",), ("vertex",), ("keys", "bytes", "rows in", "rows out"))
    for operator in one.operators:
        size = "shared" if operator.bytes is None else _size(operator.bytes)
        counts: tuple[int | str, ...] = (operator.keys, size, operator.rows_in, operator.rows_out)
        table.add_row(operator.name, operator.vertex, *map(_cell, counts))
    return table


def _cell(value: int | str | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value


def _size(value: int | None) -> str:
    if value is None or value < 10_000:
        return _cell(value)
    return f"{value / 1e3:,.1f} kB" if value < 1e6 else f"{value / 1e6:,.1f} MB"


def _age(seconds: float | None) -> str:
    """``4.2 s``, ``3 min``, ``5.1 h``, ``12 days``."""
    if seconds is None:
        return "-"
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h" if seconds < 2 * DAY_S else f"{seconds / DAY_S:.0f} days"
