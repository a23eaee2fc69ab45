"""The table that takes the rows, and the table ``flinkplus_progress`` beside it: made, checked, read and written.

``flinkplus_progress`` is in the schema of the output, so that one transaction changes both. It has a row for each job
and table: up to which checkpoint rows are in the table, and which run of the job may add more. Rows of jobs that are
over stay, since they can be asked to resume; remove them by ``job`` when that will not happen.

Names are used as they are written, with capital letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flinkplus.errors import OutputTableError
from flinkplus.sinks.postgres.columns import MICROSECONDS, SqlType, names_in, sql_type
from flinkplus.sinks.postgres.connecting import psycopg_module

PROGRESS = "flinkplus_progress"
PROGRESS_FORMAT = 1
BEGIN_LOCK_TIMEOUT, COMMIT_LOCK_TIMEOUT = "20s", "60s"
"""How long a transaction waits for others who lock the table, until it is tried again."""

_PROGRESS_COLUMNS = (
    "job text NOT NULL, output text NOT NULL, format integer NOT NULL, sink text NOT NULL, run bigint NOT NULL, "
    "checkpoint bigint NOT NULL, rows bigint NOT NULL, changed timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (job, output)"
)
_COLUMNS = """
    SELECT a.attnum, a.attname, coalesce(b.typname, t.typname), coalesce(b.typtype, t.typtype) = 'e',
           CASE WHEN b.oid IS NULL THEN a.atttypmod ELSE t.typtypmod END,
           format_type(a.atttypid, a.atttypmod), a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
           a.attgenerated <> '' OR a.attidentity = 'a'
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE_KEYS = """
    SELECT indkey::text, indnkeyatts FROM pg_index
    WHERE indrelid = %s AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL
"""
_TABLE = """
    SELECT c.oid, n.nspname, c.relname, c.relkind IN ('r', 'p'), has_table_privilege(c.oid, 'INSERT'),
           has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE'),
           EXISTS (SELECT FROM pg_class p WHERE p.relpersistence = 'u'
                   AND (p.oid = c.oid OR p.oid IN (SELECT relid FROM pg_partition_tree(c.oid))))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""


@dataclass(frozen=True)
class Progress:
    """The row of a job and table. ``run``: the one that may commit. ``rows``: committed by all runs."""

    sink: str
    run: int
    checkpoint: int
    rows: int


@dataclass(frozen=True)
class TableColumn:
    """A column as the database describes it.

    ``base``, ``modifier``: its type and the type's limits; of a domain, those of the type below it.
    """

    number: int
    name: str
    base: str
    is_enum: bool
    modifier: int
    shown: str
    is_required: bool
    is_generated: bool

    def holds(self, wanted: SqlType) -> bool:
        """Whether values of a stream's column fit without loss. The length of texts is left to the database."""
        if self.is_enum:
            return wanted.enums
        if self.base not in wanted.fits:
            return False
        if self.base == "numeric" and self.modifier >= 0:
            digits, scale = (self.modifier - 4) >> 16 & 0xFFFF, ((self.modifier - 4) & 0x7FF ^ 0x400) - 0x400
            return scale >= wanted.scale and digits - scale >= wanted.digits
        return not self.base.startswith("timestamp") or self.modifier in (-1, MICROSECONDS)


class OutputTable:
    """The table ``name`` (schema, table; or table alone) for rows of ``schema``; with ``keys`` for rows that replace
    each other. ``where``: the database and table, for users. ``connection``: that of a transaction, in which ``found``
    comes first.
    """

    def __init__(self, name: Sequence[str], schema: pa.Schema, keys: tuple[str, ...], where: str) -> None:
        self._sql = psycopg_module().sql
        self._given = tuple(name)
        self._columns = schema
        self._keys = keys
        self._where = where
        self._name = self._given

    def __str__(self) -> str:
        return f"table {self._where}"

    def error(self, text: str) -> OutputTableError:
        return OutputTableError(f"{self}: {text}")

    @property
    def schema(self) -> str:
        """The schema that it is in, once it was found or made."""
        return self._name[0]

    @property
    def output(self) -> str:
        """Schema and name, as in the row of progress."""
        return ".".join(self._name)

    def _identifiers(self, names: Sequence[str]) -> Any:
        return self._sql.SQL(", ").join(map(self._sql.Identifier, names))

    @property
    def _table(self) -> Any:
        return self._sql.Identifier(*self._name)

    @property
    def _progress(self) -> Any:
        return self._sql.Identifier(self._name[0], PROGRESS)

    @property
    def _progress_beside_values(self) -> Any:
        """As ``_progress``, in a statement with values, where a percent sign begins the place of one."""
        return self._sql.Identifier(self._name[0].replace("%", "%%"), PROGRESS)

    # --- at the begin of a run ----------------------------------------------------------------------------------------

    def found(self, connection: Any) -> bool:
        """Whether the table exists; checks that it takes the rows, notes its schema. Raises ``OutputTableError``."""
        text = self._sql.Identifier(*self._given).as_string(connection)
        row = connection.execute(_TABLE, [text]).fetchone()
        if row is None:
            return False
        oid, schema, name, is_table, may_insert, may_update, is_unlogged = row
        self._name = (schema, name)
        if not is_table:
            raise self.error("this is a view or a foreign table; give an ordinary one")
        if is_unlogged:
            raise self.error("this is an unlogged table, which a crash of the server empties: ALTER TABLE SET LOGGED")
        if not may_insert or (self._keys and not may_update):
            raise self.error(f"the user may not {'select, insert and update' if self._keys else 'insert'} there")
        found = [TableColumn(*row) for row in connection.execute(_COLUMNS, [oid])]
        self._check_columns(found)
        if self._keys:
            self._check_key(found, connection.execute(_UNIQUE_KEYS, [oid]).fetchall())
        return True

    def make(self, connection: Any) -> None:
        """Create the table, and its schema's progress. Raises ``OutputTableError``."""
        if len(self._given) == 1:
            (schema,) = connection.execute("SELECT current_schema()").fetchone()
            if schema is None:
                raise self.error(
                    "the search_path has no schema that exists and that the user may use; give the table as schema.name"
                )
            self._name = (schema, self._given[0])
        sql, parts = self._sql, []
        for field in self._columns:
            wanted = sql_type(field.type)
            assert wanted is not None
            parts.append(sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(wanted.name)))
        if self._keys:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(self._identifiers(self._keys)))
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self._table, sql.SQL(", ").join(parts)))

    @staticmethod
    def lock_names(connection: Any) -> None:
        """Others who make tables for jobs wait until this transaction ends."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [PROGRESS])

    def make_progress(self, connection: Any) -> None:
        """Create ``flinkplus_progress`` unless it is there."""
        if not self._has_progress(connection):
            text = self._sql.SQL("CREATE TABLE {} (" + _PROGRESS_COLUMNS + ")")
            connection.execute(text.format(self._progress))

    def _has_progress(self, connection: Any) -> bool:
        text = self._progress.as_string(connection)
        return bool(connection.execute("SELECT to_regclass(%s) IS NOT NULL", [text]).fetchone()[0])

    def _check_columns(self, found: list[TableColumn]) -> None:
        by_name = {column.name: column for column in found}
        for field in self._columns:
            column, wanted = by_name.pop(field.name, None), sql_type(field.type)
            assert wanted is not None
            if column is None:
                raise self.error(
                    f"it has no column {field.name!r} of type {wanted.name}; it has "
                    f"{', '.join(other.name for other in found)} (capital letters count)"
                )
            if column.is_generated:
                raise self.error(f"the database makes the values of column {field.name!r}; leave it out of the stream")
            if not column.holds(wanted):
                raise self.error(
                    f"column {field.name!r} is {column.shown}, which does not hold {field.type} without loss: make it "
                    f"{wanted.name}, or cast the stream's"
                )
        for column in by_name.values():
            if column.is_required and not column.is_generated:
                raise self.error(
                    f"column {column.name!r} is not in the stream, must not be null, and has no default value"
                )

    def _check_key(self, found: list[TableColumn], unique: list[tuple[str, int]]) -> None:
        numbers = {column.number for column in found if column.name in self._keys}
        if not any({int(text) for text in key.split()[:count]} == numbers for key, count in unique):
            raise self.error(
                f"mode='upsert' needs a primary key or a unique index of exactly ({', '.join(self._keys)}): CREATE "
                "UNIQUE INDEX"
            )

    # --- progress -----------------------------------------------------------------------------------------------------

    def progress(self, connection: Any, job: str, made: bool = False) -> Progress | None:
        """The row of a job, locked until the end of the transaction; ``None``: there is none. ``made``: the table of
        progress was there before."""
        if not made and not self._has_progress(connection):
            return None
        text = self._sql.SQL(
            "SELECT format, sink, run, checkpoint, rows FROM {} WHERE job = %s AND output = %s FOR UPDATE"
        )
        row = connection.execute(text.format(self._progress_beside_values), [job, self.output]).fetchone()
        if row is None:
            return None
        if row[0] != PROGRESS_FORMAT:
            raise self.error(f"the format of its row in {PROGRESS} is {row[0]}; this version reads {PROGRESS_FORMAT}")
        return Progress(*row[1:])

    def write_progress(self, connection: Any, job: str, progress: Progress) -> None:
        """Write the row of a job."""
        text = self._sql.SQL(
            "INSERT INTO {} (job, output, format, sink, run, checkpoint, rows) VALUES (%s, %s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (job, output) DO UPDATE SET sink = EXCLUDED.sink, run = EXCLUDED.run, "
            "checkpoint = EXCLUDED.checkpoint, rows = EXCLUDED.rows, changed = now()"
        )
        values = [job, self.output, PROGRESS_FORMAT, progress.sink, progress.run, progress.checkpoint, progress.rows]
        connection.execute(text.format(self._progress_beside_values), values)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def load(self, connection: Any, files: Iterable[Iterator[bytes]]) -> None:
        """Add the rows of CSV texts, each in pieces; with a key, the last row of each key counts."""
        if not self._keys:
            self._copy(connection, self._table, files)
            return
        self._make_staged(connection, "DROP")
        self._copy(connection, self._staged, files)
        self._merge(connection)

    def ready(self, connection: Any) -> None:
        """Make a connection ready for ``add``; in a transaction of its own."""
        if self._keys:
            self._make_staged(connection, "DELETE ROWS")

    def add(self, connection: Any, rows: Sequence[bytes]) -> None:
        """Add rows, CSV of all columns without a header; with a key, the last row of each key counts."""
        target = self._staged if self._keys else self._table
        text = self._sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)")
        names = self._identifiers(self._columns.names)
        with connection.cursor() as cursor, cursor.copy(text.format(target, names)) as copy:
            for piece in rows:
                copy.write(piece)
        if self._keys:
            self._merge(connection)

    @property
    def _staged(self) -> Any:
        return self._sql.Identifier("pg_temp", "flinkplus_staged")

    def _make_staged(self, connection: Any, on_commit: str) -> None:
        sql = self._sql
        connection.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE flinkplus_staged ON COMMIT " + on_commit + " AS SELECT {} FROM {} LIMIT 0"
            ).format(self._identifiers(self._columns.names), self._table)
        )
        number = sql.Identifier(self._number_column())
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD COLUMN {} bigint GENERATED ALWAYS AS IDENTITY").format(self._staged, number)
        )

    def _merge(self, connection: Any) -> None:
        """The staged rows, into the table."""
        sql, columns, keys = self._sql, self._identifiers(self._columns.names), self._identifiers(self._keys)
        others = [name for name in self._columns.names if name not in self._keys]
        sets = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others]
        then = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(sets)) if sets else sql.SQL("NOTHING")
        connection.execute(
            sql.SQL(
                "INSERT INTO {table} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM {staged} "
                "ORDER BY {keys}, {number} DESC ON CONFLICT ({keys}) DO {then}"
            ).format(
                table=self._table,
                columns=columns,
                keys=keys,
                staged=self._staged,
                number=sql.Identifier(self._number_column()),
                then=then,
            )
        )

    def _number_column(self) -> str:
        """A name that no column of the stream has."""
        name = "flinkplus_row"
        while name in self._columns.names:
            name += "_"
        return name

    def _copy(self, connection: Any, table: Any, files: Iterable[Iterator[bytes]]) -> None:
        """Columns that the table has got since a text was written are null or have their default value."""
        text = self._sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv, HEADER true)")
        for pieces in files:
            first = next(pieces, b"")
            names = names_in(first)
            if not set(names) <= set(self._columns.names):
                raise self.error(f"staged rows have columns {names}, and the stream has {self._columns.names}")
            with connection.cursor() as cursor, cursor.copy(text.format(table, self._identifiers(names))) as copy:
                copy.write(first)
                for piece in pieces:
                    copy.write(piece)
