"""``flinkplus state``: the state in a checkpoint, as a table or as JSON lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from flinkplus.api.state import begun
from flinkplus.cli.arguments import add_option, positive
from flinkplus.cli.tables import Table, console, text
from flinkplus.printable import escaped
from flinkplus.runtime.job.reading.found import StateQuery

EXIT_OK = 0
TABLE_ROWS = 100
MAX_CELL = 200
TIMES = ("timer", "window_start", "window_end")


def add_state(commands: Any) -> None:
    command = commands.add_parser("state", help="the keyed state in a checkpoint, a row for each key")
    command.add_argument("directory", metavar="CHECKPOINT_DIR", help="a path, or a URI such as s3://bucket/path")
    command.add_argument("--operator", metavar="NAME", help="only the state of this operator")
    command.add_argument(
        "--key", metavar="K", help="only this key: a text or number, or a JSON array or object for several columns"
    )
    command.add_argument("--checkpoint", type=positive, metavar="N", help="its number (default: the newest)")
    command.add_argument("--limit", type=positive, metavar="N", help=f"rows at most (default: {TABLE_ROWS}; JSON: all)")
    add_option(command, "signing_key")
    command.add_argument("--trust", action="store_true", help="read state that another key has signed")
    command.add_argument("--json", action="store_true", help="a line of JSON for each row")
    command.set_defaults(run=run_state)


def run_state(arguments: argparse.Namespace) -> int:
    """The exit code. Raises as ``flinkplus.read_state``."""
    texts = frozenset(("key", "value"))
    query = StateQuery(arguments.directory, arguments.operator, arguments.key, arguments.checkpoint, texts)
    found, batches = begun(query, None, arguments.signing_key, arguments.trust)
    rows = rows_of(batches)
    if arguments.json:
        for row in islice(rows, arguments.limit):
            print(escaped(json.dumps(document(row), ensure_ascii=False)))
        return EXIT_OK
    limit = arguments.limit or TABLE_ROWS
    shown = list(islice(rows, limit + 1))
    console().print(text(f"{found.job}: state of checkpoint {found.checkpoint}"))
    console().print(table(shown[:limit]) if shown else text("no such key" if arguments.key is not None else "no state"))
    if len(shown) > limit:
        console().print(text(f"there are more rows: --limit N shows more than {limit}, --json all of them"))
    return EXIT_OK


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """All rows; times are texts."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for name in TIMES:
            table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.string()))
        yield from table.to_pylist()


def document(row: dict[str, Any]) -> dict[str, Any]:
    """A row with key and value as the JSON that they are."""
    return {name: json.loads(value) if name in ("key", "value") and value else value for name, value in row.items()}


def table(rows: list[dict[str, Any]]) -> Table:
    """Columns without any content are left out."""
    optional = [name for name in ("state", "timer", "window_start", "window_end") if any(row[name] for row in rows)]
    made = Table("State", ("operator", "key"), ("kind", *optional, "subtask"), ("key group",), "value")
    for row in rows:
        names = ("operator", "key", "kind", *optional, "subtask", "key_group", "value")
        made.add_row(*("-" if row[name] is None else _cell(str(row[name])) for name in names))
    return made


def _cell(value: str) -> str:
    return value if len(value) <= MAX_CELL else f"{value[:MAX_CELL]}... ({len(value):,} characters)"
