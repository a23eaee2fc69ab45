"""A table whose rows are visible at once, as the writer of one subtask stores in it."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import OutputError, OutputTableError, OutputUnavailable
from flinkplus.operators.base.columns import plain
from flinkplus.protocol.determinants.recorded import Recorded
from flinkplus.sinks.at_once.store import Encoded, OutputStore, StepsUpdate
from flinkplus.sinks.postgres.columns import CopyEncoder
from flinkplus.sinks.postgres.connecting import SYNCHRONOUS, connect, translated
from flinkplus.sinks.postgres.recipe_tables import RecipeTables
from flinkplus.sinks.postgres.spare import PreparedConnection, SpareOwner, join_spare, leave_spare
from flinkplus.sinks.postgres.table import OutputTable

log = logging.getLogger("flinkplus.slot")


class RecipeSink(SpareOwner, Protocol):
    """What a writer asks of its sink's descriptor."""

    @property
    def bound_schema(self) -> pa.Schema: ...


class PostgresSubtask(OutputStore[bytes]):
    """The rows of subtask ``index``, as CSV. A new writer uses the spare connection of its process, if there is one."""

    def __init__(self, sink: RecipeSink, index: int, generation: int) -> None:
        self._sink, self._index, self._generation = sink, index, generation
        self._table = sink.output_table()
        self._tables = self._tables_beside(self._table)
        self.place = f"{self._table}"
        self._take: Callable[[], PreparedConnection | None] | None = None
        self._prepared: PreparedConnection | None = None
        self._connection: Any = None
        self._trimmed = 0

    def _tables_beside(self, table: OutputTable) -> RecipeTables:
        return RecipeTables(table, self._sink.job_id)

    @override
    def begin(self, has_successors: bool) -> None:
        if has_successors:
            self._take = join_spare(self._sink)
            self._prepared = self._take()

    @override
    def end(self) -> None:
        if self._take is not None:
            leave_spare(self._sink)

    @override
    def encoded(self, batches: Sequence[pa.RecordBatch]) -> Encoded:
        stream, schema = io.BytesIO(), self._sink.bound_schema
        encoder = CopyEncoder(stream, schema, self._sink.keys, self._sink.name, header=False)
        for batch in batches:
            encoder.write(plain(batch, schema))
        encoder.finish()
        text = stream.getvalue()
        return Encoded(text, text)

    @property
    @override
    def is_connected(self) -> bool:
        return self._connection is not None

    @contextlib.contextmanager
    def _calls(self) -> Iterator[None]:
        with translated(self._sink.address, self.place):
            yield

    @override
    def connect(self) -> Recorded | None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            try:
                return self._continue_on(prepared)
            except OutputUnavailable as error:
                log.info("%s; connecting again", error)
                self.disconnect()
        with self._calls():
            connection = self._connection = connect(self._sink.address, lasting=True)
            connection.execute(SYNCHRONOUS)
            with connection.transaction():
                if not self._table.found(connection):
                    raise OutputTableError(f"{self._table} has gone")
                self._table.ready(connection)
                return self._read()

    def _continue_on(self, prepared: PreparedConnection) -> Recorded | None:
        """Use a spare connection, and read what is recorded."""
        self._connection, self._table = prepared.connection, prepared.table
        self._tables = self._tables_beside(self._table)
        with self._calls(), self._connection.transaction():
            return self._read()

    def _read(self) -> Recorded | None:
        """Give the connection this subtask's name, then read the row, which stays locked until the transaction ends: a
        fence that does not see the name waits for the lock or has changed the row."""
        return self._tables.named_row(self._connection, self._index)

    @override
    def store(self, update: StepsUpdate, rows: Sequence[bytes]) -> bool:
        with self._calls(), self._connection.transaction():
            if not self._tables.update(self._connection, self._index, self._generation, update):
                return False
            if rows:
                self._table.add(self._connection, rows)
            if update.trim > self._trimmed:
                self._tables.trim(self._connection, self._index, update.trim)
        self._trimmed = update.trim
        return True

    @override
    def recorded(self) -> Recorded | None:
        with self._calls():
            return self._tables.row(self._connection, self._index)

    @override
    def disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None

    @override
    def error(self, text: str) -> OutputError:
        return self._table.error(text)
