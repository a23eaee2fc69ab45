"""A Delta table as the driver uses it: ``deltalake``, with errors of our own.

Rules: a table is read again before every commit, and a commit is based on the version that was read. Two commits with
one application ID that are based on the same version exclude each other: the second one fails (``Conflict``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from flinkplus.errors import ConfigurationError, OutputTableError, OutputUnavailable, without_secrets
from flinkplus.printable import printable
from flinkplus.sinks.delta.columns import TableColumns
from flinkplus.sinks.delta.location import TableLocation

LONGEST_REASON = 600
_CAUSED_BY = re.compile(r"\s*(?:\x1b\[\d+m)?↳(?:\x1b\[\d+m)?\s*")
"""Before each cause, in a line of its own, in colour."""


class Conflict(OutputUnavailable):
    """Another writer has changed the table since it was read; the commit may be tried again."""


def deltalake_module() -> Any:
    """``deltalake``. Raises ``ConfigurationError`` if it is not installed."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise ConfigurationError(
            f"to_delta needs deltalake ({printable(error)}): pip install 'flinkplus[delta]'"
        ) from error
    return deltalake


@dataclass(frozen=True)
class AddedFile:
    """A Parquet file below the table's directory. ``values``: of the columns that it is partitioned by, as text."""

    path: str
    bytes: int
    rows: int
    modified_ms: int
    values: Mapping[str, str | None]


@dataclass
class DeltaOutput:
    """The table at ``location``. ``schema``: of the rows, as the table has it. ``merge``: add columns that it lacks."""

    location: TableLocation
    schema: pa.Schema
    partition_by: tuple[str, ...]
    merge: bool

    def __str__(self) -> str:
        return f"Delta table {self.location}"

    @cached_property
    def _fields(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = json.loads(self._lake.Schema.from_arrow(self.schema).to_json())["fields"]
        return found

    @cached_property
    def _lake(self) -> Any:
        return deltalake_module()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the library, as ours. Raises ``Conflict``, ``OutputTableError`` or ``OutputUnavailable``."""
        found = self._lake.exceptions
        try:
            yield
        except found.CommitFailedError as error:
            raise Conflict(f"{self}: {_reason(error)}") from None
        except (found.DeltaProtocolError, found.SchemaMismatchError) as error:
            raise OutputTableError(f"{self}: {_reason(error)}") from None
        except (found.DeltaError, OSError) as error:
            raise OutputUnavailable(f"{self}: {_reason(error)}") from None

    def load(self) -> Any:
        """The table as it is now; ``None``: there is none."""
        with self._errors():
            try:
                return self._lake.DeltaTable(self.location.uri, storage_options=self.location.options)
            except self._lake.exceptions.TableNotFoundError:
                return None

    def make(self, versions: Mapping[str, int]) -> None:
        """Create it, without rows."""
        with self._errors():
            self._lake.DeltaTable.create(
                self.location.uri,
                self.schema,
                mode="error",
                partition_by=list(self.partition_by),
                storage_options=self.location.options,
                commit_properties=self._properties(versions),
            )

    def fit(self, table: Any, change: bool = True) -> Any:
        """Check that rows fit; add columns to it if that is wanted, and ``change``. Returns the table as it is then.
        Raises ``OutputTableError``."""
        columns = TableColumns.of(table)
        missing = columns.missing(self._fields) if self.merge else []
        fields = [field for field in self._fields if field["name"] not in missing]
        columns.check(fields, self.partition_by, str(self))
        if missing and change:
            wanted = self._lake.Schema.from_arrow(self.schema).fields
            with self._errors():
                table.alter.add_columns([_nullable(self._lake, field) for field in wanted if field.name in missing])
            return self.fit(self.load(), change=False)
        return table

    def commit(self, table: Any, versions: Mapping[str, int], added: Sequence[AddedFile] = ()) -> None:
        """Add files, and set the versions of applications, in one commit that follows the version ``table``."""
        actions = [
            self._lake.transaction.AddAction(
                path=file.path,
                size=file.bytes,
                partition_values=dict(file.values),
                modification_time=file.modified_ms,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in added
        ]
        with self._errors():
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=list(self.partition_by),
                commit_properties=self._properties(versions),
            )

    def _properties(self, versions: Mapping[str, int]) -> Any:
        transactions = [self._lake.Transaction(name, version) for name, version in versions.items()]
        return self._lake.CommitProperties(app_transactions=transactions)


def _reason(error: BaseException) -> str:
    """The text of an error of the library, with its causes, in one line."""
    return printable(" ".join(_CAUSED_BY.sub(": ", without_secrets(str(error))).split()), LONGEST_REASON)


def version_of(table: Any, application: str) -> int | None:
    """The version of an application that the table remembers."""
    found: int | None = table.transaction_version(application)
    return found


def _nullable(lake: Any, field: Any) -> Any:
    return lake.Field(field.name, field.type, nullable=True)


def attempts(action: Callable[[], None], count: int) -> None:
    """Run ``action``, again after a ``Conflict``; ``count`` times in all."""
    for left in reversed(range(count)):
        try:
            action()
            return
        except Conflict:
            if not left:
                raise
