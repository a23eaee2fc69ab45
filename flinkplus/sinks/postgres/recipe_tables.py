"""The tables ``flinkplus_steps`` and ``flinkplus_recipe`` beside an output whose rows are visible at once.

``flinkplus_steps`` has a row for each job, table and subtask of the sink: the generation that may write, the first step
whose rows are not in the table, and a digest of all rows so far. ``flinkplus_recipe`` has the entries of the recipe, by
the step at which their cut ended (``protocol.determinants.recipe``). One transaction changes these and the output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

from flinkplus.protocol.determinants.recipe import Division, RecipeEntry, StoredOutput
from flinkplus.protocol.determinants.recorded import Recorded
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.sinks.at_once.store import StepsUpdate
from flinkplus.sinks.postgres.connecting import psycopg_module, together
from flinkplus.sinks.postgres.table import OutputTable

STEPS, RECIPE = "flinkplus_steps", "flinkplus_recipe"
STEPS_FORMAT = 1
KEY = "job text NOT NULL, output text NOT NULL, subtask integer NOT NULL"
_STEPS_COLUMNS = (
    f"{KEY}, format integer NOT NULL, generation bigint NOT NULL, step bigint NOT NULL, digest bytea NOT NULL, "
    "trimmed bigint NOT NULL, rows bigint NOT NULL, changed timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (job, output, subtask)"
)
_RECIPE_COLUMNS = (
    f"{KEY}, step bigint NOT NULL, checkpoint bigint NOT NULL, spans bytea NOT NULL, "
    "PRIMARY KEY (job, output, subtask, step)"
)
_ROW = "format, generation, step, digest"
_SUBTASKS = "WHERE job = %s AND output = %s AND subtask = ANY(%s)"
_END_WRITERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ANY(%s) "
    "AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() "
    f"AND NOT EXISTS (SELECT FROM {{steps}} {_SUBTASKS} AND generation > %s)"
)


class RecipeTables:
    """The rows of ``job`` for ``table``, whose ``found`` comes first in each connection."""

    def __init__(self, table: OutputTable, job: str) -> None:
        self._sql = psycopg_module().sql
        self._table = table
        self._job = job

    def _named(self, text: str, *, values: bool = True) -> Any:
        """A statement; a percent sign in the schema's name is doubled where values follow."""
        schema = self._table.schema.replace("%", "%%") if values else self._table.schema
        names = {"steps": self._sql.Identifier(schema, STEPS), "recipe": self._sql.Identifier(schema, RECIPE)}
        return self._sql.SQL(text).format(**names)

    @property
    def _key(self) -> list[Any]:
        return [self._job, self._table.output]

    # --- by the driver

    def make(self, connection: Any) -> None:
        """Create what is missing."""
        connection.execute(self._named(f"CREATE TABLE IF NOT EXISTS {{steps}} ({_STEPS_COLUMNS})", values=False))
        connection.execute(self._named(f"CREATE TABLE IF NOT EXISTS {{recipe}} ({_RECIPE_COLUMNS})", values=False))

    def exist(self, connection: Any) -> bool:
        text = self._sql.Identifier(self._table.schema, STEPS).as_string(connection)
        return bool(connection.execute("SELECT to_regclass(%s) IS NOT NULL", [text]).fetchone()[0])

    def trimmed(self, connection: Any) -> int:
        """The newest checkpoint before which entries may be gone."""
        text = self._named("SELECT coalesce(max(trimmed), 0) FROM {steps} WHERE job = %s AND output = %s")
        return int(connection.execute(text, self._key).fetchone()[0])

    def has_rows(self, connection: Any) -> bool:
        """Whether the job has written rows."""
        text = self._named(
            "SELECT EXISTS (SELECT FROM {steps} WHERE job = %s AND output = %s AND (step > 0 OR rows > 0))"
        )
        return bool(connection.execute(text, self._key).fetchone()[0])

    def check_parallelism(self, connection: Any, parallelism: int) -> None:
        """Raises ``OutputTableError`` if there are rows of another number of subtasks. The first fence is of all."""
        text = self._named("SELECT count(*) FROM {steps} WHERE job = %s AND output = %s")
        known = connection.execute(text, self._key).fetchone()[0]
        if known not in (0, parallelism):
            raise self._table.error(
                f"the job has written its rows, which are visible at once, at parallelism {known}: resume it at that"
            )

    def begin(self, connection: Any, generation: int, parallelism: int, division: Division) -> None:
        """The subtasks before give way to ``parallelism`` new ones, which have written nothing. Raises
        ``OutputTableError`` if rows are visible that only those before can make again, or as ``end_writers``."""
        self.end_writers(connection, generation)
        if self.reaches_behind(connection, division.of):
            raise self._table.error(
                f"rows are visible that were made behind checkpoint {division.of}, of which checkpoint "
                f"{division.checkpoint} was made: the database was changed or restored"
            )
        text = self._named("SELECT coalesce(sum(rows), 0) FROM {steps} WHERE job = %s AND output = %s")
        rows = connection.execute(text, self._key).fetchone()[0]
        self.forget(connection)
        connection.execute(self._named("DELETE FROM {steps} WHERE job = %s AND output = %s"), self._key)
        text = self._named(
            "INSERT INTO {steps} (job, output, subtask, format, generation, step, digest, trimmed, rows) "
            "SELECT %s, %s, subtask, %s, %s, 0, '', %s, CASE subtask WHEN 0 THEN %s ELSE 0 END "
            "FROM generate_series(0, %s - 1) AS subtask"
        )
        values = [STEPS_FORMAT, generation, division.checkpoint, rows, parallelism]
        connection.execute(text, [*self._key, *values])

    def end_writers(self, connection: Any, generation: int) -> None:
        """Refuse older generations of all subtasks from now on; transactions under way of these end. Raises
        ``OutputTableError`` if a newer one was faster."""
        text = self._named("SELECT subtask, generation FROM {steps} WHERE job = %s AND output = %s")
        known = dict(connection.execute(text, self._key).fetchall())
        if max(known.values(), default=0) > generation:
            raise self._table.error(f"a later generation than {generation} writes already")
        indexes = sorted(known)
        names = [writer_name(self._job, self._table.output, index) for index in indexes]
        connection.execute(self._named(_END_WRITERS), [names, *self._key, indexes, generation])
        text = self._named("UPDATE {steps} SET generation = %s WHERE job = %s AND output = %s AND generation < %s")
        connection.execute(text, [generation, *self._key, generation])

    def reaches_behind(self, connection: Any, checkpoint: int) -> bool:
        """Whether something was stored that was made behind ``checkpoint``, which is complete."""
        text = self._named("SELECT EXISTS (SELECT FROM {recipe} WHERE job = %s AND output = %s AND checkpoint >= %s)")
        return bool(connection.execute(text, [*self._key, checkpoint]).fetchone()[0])

    def fence(self, connection: Any, generation: int, subtasks: Collection[int]) -> Mapping[int, StoredOutput]:
        """Refuse older generations of ``subtasks`` from now on; what is stored of each. Transactions under way of older
        generations end. Raises ``OutputTableError`` if a newer one of the same run was faster; the caller knows that no
        other driver writes."""
        indexes = sorted(subtasks)
        names = [writer_name(self._job, self._table.output, index) for index in indexes]
        raised = self._named(
            "INSERT INTO {steps} AS known (job, output, subtask, format, generation, step, digest, trimmed, rows) "
            "SELECT %s, %s, subtask, %s, %s, 0, '', 0, 0 FROM unnest(%s::integer[]) AS subtask ORDER BY subtask "
            "ON CONFLICT (job, output, subtask) DO UPDATE SET generation = EXCLUDED.generation "
            "WHERE known.generation < EXCLUDED.generation"
        )
        # Each statement sees what is committed when it begins. So the recipe is read last: once the rows are locked, no
        # writer of an older generation can add to it.
        locked = self._named(f"SELECT subtask, {_ROW} FROM {{steps}} {_SUBTASKS} ORDER BY subtask FOR UPDATE")
        recipe = self._named(f"SELECT subtask, checkpoint, spans FROM {{recipe}} {_SUBTASKS} ORDER BY subtask, step")
        with together(connection):
            connection.execute(self._named(_END_WRITERS), [names, *self._key, indexes, generation])
            connection.execute(raised, [*self._key, STEPS_FORMAT, generation, indexes])
            steps = connection.execute(locked, [*self._key, indexes])
            entries = connection.execute(recipe, [*self._key, indexes])
        rows = {index: self._row(*row) for index, *row in steps}
        if len(rows) != len(indexes) or any(row.generation != generation for row in rows.values()):
            raise self._table.error(f"a later generation than {generation} writes already")
        recipes: dict[int, list[RecipeEntry]] = {index: [] for index in indexes}
        for index, checkpoint, spans in entries:
            recipes[index].append(RecipeEntry(CheckpointId(checkpoint), bytes(spans)))
        return {index: StoredOutput(rows[index].step, tuple(recipes[index])) for index in indexes}

    def forget(self, connection: Any) -> None:
        """Nothing will be made again: the job has finished, or has other subtasks."""
        connection.execute(self._named("DELETE FROM {recipe} WHERE job = %s AND output = %s"), self._key)

    # --- by the writers

    def row(self, connection: Any, subtask: int) -> Recorded | None:
        """The row of a subtask, locked until the end of the transaction. Raises ``OutputTableError`` for another
        format."""
        return self._first(self._locked(connection, subtask))

    def named_row(self, connection: Any, subtask: int) -> Recorded | None:
        """As ``row``; before that the connection gets the name of the subtask's writers."""
        with together(connection):
            name = writer_name(self._job, self._table.output, subtask)
            connection.execute("SELECT set_config('application_name', %s, false)", [name])
            found = self._locked(connection, subtask)
        return self._first(found)

    def _locked(self, connection: Any, subtask: int) -> Any:
        text = self._named(f"SELECT {_ROW} FROM {{steps}} WHERE job = %s AND output = %s AND subtask = %s FOR UPDATE")
        return connection.execute(text, [*self._key, subtask])

    def _first(self, found: Any) -> Recorded | None:
        row = found.fetchone()
        return None if row is None else self._row(*row)

    def _row(self, version: int, generation: int, step: int, digest: bytes) -> Recorded:
        if version != STEPS_FORMAT:
            raise self._table.error(
                f"the format of its rows in {STEPS} is {version}; this version reads {STEPS_FORMAT}"
            )
        return Recorded(generation, step, bytes(digest))

    def update(self, connection: Any, subtask: int, generation: int, update: StepsUpdate) -> bool:
        """Record what a transaction has; false if another generation may write, or has written."""
        key = [*self._key, subtask]
        text = self._named(
            "WITH moved AS (UPDATE {steps} SET step = %s, digest = %s, trimmed = greatest(trimmed, %s), "
            "rows = rows + %s, changed = now() WHERE job = %s AND output = %s AND subtask = %s AND generation = %s "
            "AND step = %s RETURNING job, output, subtask), "
            "stored AS (INSERT INTO {recipe} (job, output, subtask, step, checkpoint, spans) "
            "SELECT moved.*, entry.* FROM moved, unnest(%s::bigint[], %s::bigint[], %s::bytea[]) AS entry) "
            "SELECT count(*) FROM moved"
        )
        values = [update.step, update.digest, update.trim, update.rows, *key, generation, update.before]
        steps, entries = [step for step, _ in update.entries], [entry for _, entry in update.entries]
        lists = [steps, [entry.checkpoint for entry in entries], [entry.spans for entry in entries]]
        return bool(connection.execute(text, [*values, *lists]).fetchone()[0])

    def trim(self, connection: Any, subtask: int, checkpoint: int) -> None:
        """Remove the entries before a complete checkpoint."""
        text = self._named("DELETE FROM {recipe} WHERE job = %s AND output = %s AND subtask = %s AND checkpoint < %s")
        connection.execute(text, [*self._key, subtask, checkpoint])


def writer_name(job: str, output: str, subtask: int) -> str:
    """What the server calls the connection of a writer, for ``fence``."""
    return f"flinkplus writer {blake2b(f'{job}/{output}/{subtask}'.encode(), digest_size=12).hexdigest()}"
