"""The descriptor of a table that takes the rows of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.protocol.program.description import LOCATION
from flinkplus.sinks.base import SinkCommitter
from flinkplus.sinks.file_writer import Encoder, StagedSink
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.postgres.at_once import PostgresAtOnceSink
from flinkplus.sinks.postgres.columns import LONGEST_NAME, CopyEncoder, check_columns, is_name
from flinkplus.sinks.postgres.committer import PostgresCommitter
from flinkplus.sinks.postgres.connecting import SCHEME, Address
from flinkplus.sinks.postgres.recipe_tables import RECIPE, STEPS
from flinkplus.sinks.postgres.table import PROGRESS, OutputTable

MODES = ("append", "upsert")
VISIBILITIES = ("checkpoint", "at_once")


@dataclass(frozen=True)
class PostgresSink(StagedSink):
    """Rows in ``table`` of the database at ``address``. ``path``: the checkpoint directory, where rows are staged.

    ``keys``: for ``mode`` ``upsert``: a row replaces the one with the same values in these columns.
    """

    suffix: ClassVar[str] = "csv"
    address: Address = field(default_factory=lambda: Address({}))
    table: tuple[str, ...] = ()
    mode: str = "append"
    keys: tuple[str, ...] = ()

    @property
    @override
    def place(self) -> str:
        """The database and table, for users."""
        return f"{self.address.database}/{'.'.join(self.table)}"

    @override
    def check_schema(self, schema: pa.Schema) -> None:
        check_columns(schema, self.keys, self.name)

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {LOCATION: f"{SCHEME}{self.place}", "mode": self.mode, "key": ", ".join(self.keys)}

    @override
    def encoder(self, stream: Any, schema: pa.Schema) -> Encoder:
        return CopyEncoder(stream, schema, self.keys, self.name)

    @override
    def committer(self) -> SinkCommitter:
        table = OutputTable(self.table, self.bound_schema, self.keys, self.place)
        files = OutputFiles(self.path)
        return PostgresCommitter(self.name, self.job_id, self.address, table, files, self.staging)


def postgres_sink(
    name: str, dsn: str, table: str, mode: str, key: str | Sequence[str] | None, visibility: str
) -> PostgresSink | PostgresAtOnceSink:
    """See ``Stream.to_postgres``. Raises ``ConfigurationError``."""
    if visibility not in VISIBILITIES:
        raise ConfigurationError(f"sink {name!r}: visibility {visibility!r} must be one of {VISIBILITIES}")
    if mode not in MODES:
        raise ConfigurationError(f"sink {name!r}: mode {mode!r} must be one of {MODES}")
    keys = () if key is None else (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else key
    if not isinstance(keys, tuple) or not all(isinstance(one, str) for one in keys):
        raise ConfigurationError(f"sink {name!r}: key {key!r} must be a column's name, or a list of such names")
    if bool(keys) != (mode == "upsert") or len(set(keys)) < len(keys):
        raise ConfigurationError(
            f"sink {name!r}: mode='upsert' needs key=, one column or several different ones; mode='append' takes none"
        )
    parts = tuple(table.split(".")) if isinstance(table, str) else ()
    if not 1 <= len(parts) <= 2 or not all(map(is_name, parts)):
        raise ConfigurationError(
            f"sink {name!r}: table {table!r} must be 'name' or 'schema.name', each of at most {LONGEST_NAME} bytes"
        )
    if parts[-1] in (PROGRESS, STEPS, RECIPE):
        raise ConfigurationError(f"sink {name!r}: the table {parts[-1]!r} is kept by jobs; give another name")
    made = PostgresAtOnceSink if visibility == "at_once" else PostgresSink
    return made(name, address=Address.parse(dsn), table=parts, mode=mode, keys=keys)
