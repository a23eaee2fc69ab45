"""The output of a query beside what DuckDB gives over the same events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from experiments.harness.running import RunError
from experiments.nexmark.catalogue import Query
from experiments.nexmark.events import EVENTS_PER_S, KINDS, SCHEMAS, events
from experiments.nexmark.expected import DUCKDB
from flinkplus.errors import ConfigurationError
from flinkplus.sinks.file_names import PartName

CHUNK = 1 << 16
INSTALL = "pip install 'flinkplus[experiments]'"


@dataclass(frozen=True)
class Findings:
    """``rows``: expected; ``lost``: expected rows that the output lacks; ``wrong``: rows that are not expected."""

    rows: int
    lost: int
    wrong: int

    @property
    def exact(self) -> bool:
        return not (self.lost or self.wrong)


def check_duckdb() -> None:
    """Raises ``ConfigurationError`` where DuckDB is not installed."""
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise ConfigurationError(f"outputs are compared with DuckDB's, which is not installed: {INSTALL}") from None


def input_tables(count: int, events_per_s: int = EVENTS_PER_S) -> dict[str, pa.Table]:
    """The first ``count`` events, by kind."""
    starts = range(0, count, CHUNK)
    numbers = [np.arange(start, min(start + CHUNK, count), dtype=np.int64) for start in starts]
    return {
        kind: pa.Table.from_batches([events(kind, part, events_per_s) for part in numbers], SCHEMAS[kind])
        for kind in KINDS
    }


def output_table(files: Sequence[str], partition_by: Sequence[str] = ()) -> pa.Table:
    """The rows of these files (paths or ``file:`` URIs), those of each subtask in the order in which it made them."""
    paths = [unquote(file.removeprefix("file://")) for file in files]
    if partition_by:
        columns = ds.partitioning(pa.schema([(name, pa.string()) for name in partition_by]), flavor="hive")
        return ds.dataset(paths, format="parquet", partitioning=columns).to_table()
    return pa.concat_tables([pq.read_table(path) for path in sorted(paths, key=_order)])


def _order(path: str) -> tuple[int, ...]:
    name = PartName.parse(Path(path).name)
    if name is None:
        raise RunError(f"{path} is not a file of the output")
    return name.checkpoint, name.generation, name.number


def compare(query: Query, output: pa.Table, tables: dict[str, pa.Table]) -> Findings:
    """The rows of ``output`` that count, or what is made of them, beside what is expected.

    Raises ``RunError`` for other columns.
    """
    import duckdb

    with duckdb.connect(config={"threads": 2}) as connection:
        for kind, table in tables.items():
            connection.register(kind, table)
        connection.register("made", output.append_column("#at", pa.array(np.arange(len(output)))))
        try:
            connection.execute(f"CREATE TEMP TABLE expected AS {DUCKDB[query.name]}")
            connection.execute(f"CREATE TEMP TABLE found AS {_counted(query)}")
            rows, lost, wrong = (
                _count(connection, part)
                for part in (
                    "FROM expected",
                    "FROM (FROM expected EXCEPT ALL FROM found)",
                    "FROM (FROM found EXCEPT ALL FROM expected)",
                )
            )
        except duckdb.Error as error:
            raise RunError(f"{query.name} cannot be compared: {error}") from error
    return Findings(rows, lost, wrong)


def _counted(query: Query) -> str:
    rows = query.found or 'SELECT * EXCLUDE ("#at") FROM made'
    if not query.last_of:
        return rows
    keys = ", ".join(f'"{name}"' for name in query.last_of)
    return f'{rows} QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY "#at" DESC) = 1'


def _count(connection: Any, rows: str) -> int:
    return int(connection.execute(f"SELECT count(*) {rows}").fetchone()[0])
