"""A table that shows rows at once and exactly once: the descriptor, and the driver's side."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import Self, override

from flinkplus.errors import OutputTableError
from flinkplus.operators.base.operator import JsonValue, OperatorContext
from flinkplus.protocol.determinants.recipe import Division, StoredOutput
from flinkplus.protocol.program.description import LOCATION
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.at_once.attempts import patiently
from flinkplus.sinks.at_once.writer import AtOnceWriter
from flinkplus.sinks.base import RecipeKeeper, RecipeWriter, Sink
from flinkplus.sinks.postgres.columns import check_columns
from flinkplus.sinks.postgres.connecting import SCHEME, Address
from flinkplus.sinks.postgres.kept import KeptConnection
from flinkplus.sinks.postgres.recipe_tables import RecipeTables
from flinkplus.sinks.postgres.run_keeper import SETTINGS, RunKeeper
from flinkplus.sinks.postgres.subtask import PostgresSubtask
from flinkplus.sinks.postgres.table import BEGIN_LOCK_TIMEOUT, OutputTable

PASSWORD = "PGPASSWORD"
log = logging.getLogger("flinkplus")


@dataclass(frozen=True)
class PostgresAtOnceSink(Sink):
    """Rows in ``table`` of the database at ``address``, visible at once. Other fields: see ``PostgresSink``."""

    keeps_recipe: ClassVar[bool] = True
    address: Address = field(default_factory=lambda: Address({}))
    table: tuple[str, ...] = ()
    mode: str = "append"
    keys: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The database and table, for users."""
        return f"{self.address.database}/{'.'.join(self.table)}"

    @override
    def check_schema(self, schema: pa.Schema) -> None:
        check_columns(schema, self.keys, self.name)

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        settings = {LOCATION: f"{SCHEME}{self.place}", "mode": self.mode, "key": ", ".join(self.keys)}
        return {**settings, "visibility": "at_once"}

    @override
    def secrets(self) -> Mapping[str, str]:
        known = dict(self.address.secrets)
        if "password" not in known and PASSWORD in os.environ:
            known["password"] = os.environ[PASSWORD]
        return known

    @override
    def with_secrets(self, secrets: Mapping[str, str]) -> Self:
        return replace(self, address=replace(self.address, secrets=dict(secrets)))

    def output_table(self) -> OutputTable:
        return OutputTable(self.table, self.bound_schema, self.keys, self.place)

    @override
    def writer(self, context: OperatorContext, generation: int) -> RecipeWriter:
        store = PostgresSubtask(self, context.index, generation)
        return AtOnceWriter(self.name, context.index, generation, store)

    @override
    def committer(self) -> AtOnceKeeper:
        return AtOnceKeeper(self.name, self.job_id, self.address, self.output_table())


class AtOnceKeeper(RunKeeper, RecipeKeeper):
    """The driver's side: it makes the tables, fences writers and reads recipes. Rows never go through it."""

    def __init__(self, sink: str, job_id: str, address: Address, table: OutputTable) -> None:
        super().__init__(sink, job_id, address, table)
        self._tables = RecipeTables(table, job_id)
        self._fenced_at: int | None = None
        """The parallelism at which this driver has fenced the writers: table and parallelism were checked then."""
        self._kept = KeptConnection(address, f"{table}", self._settle)

    def _settle(self, connection: Any) -> None:
        connection.execute(SETTINGS, self._settings(BEGIN_LOCK_TIMEOUT))

    @override
    def _make_beside(self, connection: Any) -> None:
        self._tables.make(connection)

    @override
    def _has_output(self, connection: Any) -> bool:
        return self._tables.exist(connection) and self._tables.has_rows(connection)

    @override
    def fence(
        self, generation: int, subtasks: Collection[int], parallelism: int, patience_s: float
    ) -> Mapping[int, StoredOutput]:
        def action(connection: Any) -> Mapping[int, StoredOutput]:
            self._locked(connection, looked=self._fenced_at == parallelism)
            if self._fenced_at != parallelism:
                self._tables.check_parallelism(connection, parallelism)
            stored = self._tables.fence(connection, generation, subtasks)
            self._fenced_at = parallelism
            return stored

        return patiently(lambda: self._kept.transacted(action), patience_s, f"{self._table}: the recipe is read")

    @override
    def close(self) -> None:
        self._kept.close()

    @override
    def divide(self, generation: int, division: Division, parallelism: int, patience_s: float) -> None:
        def action(connection: Any) -> None:
            self._locked(connection)
            if self._tables.trimmed(connection) < division.checkpoint:
                self._tables.begin(connection, generation, parallelism, division)

        self._transacted(action, patience_s, "begun")

    @override
    def close_behind(self, generation: int, behind: int) -> bool:
        def action(connection: Any) -> bool:
            known = self._table.found(connection) and self._table.progress(connection, self._job_id) is not None
            if not known or not self._tables.exist(connection):
                return True
            self._ready(self._take_over(connection))
            self._tables.end_writers(connection, generation)
            return not self._tables.reaches_behind(connection, behind)

        return self._transacted(action, self.patience_s, "the recipe is read")

    @override
    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        return None

    @override
    def retract_after(self, checkpoint: int | None) -> None:
        def action(connection: Any) -> int:
            self._locked(connection)
            return self._tables.trimmed(connection) if self._tables.exist(connection) else 0

        trimmed = self._transacted(action, self.patience_s, "read")
        if trimmed > (checkpoint or 0):
            raise OutputTableError(
                f"{self._table}: rows are visible that can be made again from checkpoint {trimmed} on only, so the job "
                f"cannot continue from {f'checkpoint {checkpoint}' if checkpoint else 'the start'}"
            )

    @override
    def check_successor(self, job_id: str | None, checkpoint: int) -> None:
        self._transacted(lambda connection: self._refuse_former(connection, job_id), 0.0, "ready")

    @override
    def succeed(self, job_id: str | None, checkpoint: int) -> None:
        def action(connection: Any) -> Any:
            self._refuse_former(connection, job_id)
            return self._take_over(connection) if self._has_begun(connection) else self._begin(connection)

        self._ready(self._transacted(action, self.patience_s, "ready"))

    def _has_begun(self, connection: Any) -> bool:
        """Whether an earlier run of this job has begun this sink's output: rows of it may be visible."""
        known = self._table.progress(connection, self._job_id) if self._table.found(connection) else None
        return known is not None and known.sink == self._sink

    def _refuse_former(self, connection: Any, job_id: str | None) -> None:
        if job_id is None or not self._table.found(connection):
            return
        if self._table.progress(connection, job_id) is not None:
            raise OutputTableError(
                f"{self._table} holds rows of the job that the savepoint is of, also rows after the savepoint, since "
                "they are visible at once: give another table"
            )

    @override
    def finish(self) -> None:
        def action(connection: Any) -> None:
            self._locked(connection)
            self._tables.forget(connection)

        try:
            self._transacted(action, 0.0, "finished")
        except OSError as error:
            log.warning("the recipe of a finished job stays in the database: %s", error)
