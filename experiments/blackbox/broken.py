"""Sinks with a deliberate fault, each of which the checker must find. They are made here, of the product's own classes,
and nothing of the product can make them.

- ``apart``: rows and progress are written in two transactions, with a moment between them;
- ``unfenced``: a writer that was replaced continues for a moment, and nothing stops it: its connection is not ended,
  and neither the generation nor the step that is recorded is compared (its recipe, whose numbers are taken, is left
  out);
- ``forgotten``: a recipe is stored and not read back, so that a rollback chooses other steps; the digest that would
  notice it is not compared;
- ``halves``: a Delta table is given the rows of a checkpoint in two versions.

``late`` is no fault: its writer continues in the same way, and is fenced as the product fences. It must not be found.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from flinkplus.api.streams.stream import Stream
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.protocol.determinants.recipe import StoredOutput
from flinkplus.protocol.determinants.recorded import Recorded
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.at_once.store import OutputStore, StepsUpdate
from flinkplus.sinks.at_once.writer import AtOnceWriter
from flinkplus.sinks.base import RecipeWriter, not_yet_committed
from flinkplus.sinks.delta.columns import delta_schema
from flinkplus.sinks.delta.committer import DeltaCommitter
from flinkplus.sinks.delta.location import TableLocation
from flinkplus.sinks.delta.sink import DeltaSink
from flinkplus.sinks.delta.table import DeltaOutput
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.postgres.at_once import AtOnceKeeper, PostgresAtOnceSink
from flinkplus.sinks.postgres.connecting import Address
from flinkplus.sinks.postgres.recipe_tables import RecipeTables
from flinkplus.sinks.postgres.subtask import PostgresSubtask
from flinkplus.sinks.postgres.table import OutputTable

FAULTS = APART, UNFENCED, FORGOTTEN, HALVES = ("apart", "unfenced", "forgotten", "halves")
LATE = "late"
APART_S = 0.02
LAG_S, LATE_S = 0.05, 2.0
"""How long each transaction of a late writer waits, and how long one that comes when its subtask is retired."""


def broken(stream: Stream, dsn: str, table: str, fault: str, name: str) -> None:
    """Write ``stream`` to ``table`` by a sink with this fault."""
    stream._sink(BrokenSink(name, address=Address.parse(dsn), table=tuple(table.split(".")), fault=fault))


def halving(stream: Stream, path: str, name: str) -> None:
    """Write ``stream`` to the Delta table at ``path`` with the fault ``HALVES``."""
    stream._sink(HalvingSink(name, path))


@dataclass(frozen=True)
class BrokenSink(PostgresAtOnceSink):
    """``fault``: one of ``FAULTS`` but ``HALVES``, or ``LATE``."""

    fault: str = ""

    @override
    def writer(self, context: OperatorContext, generation: int) -> RecipeWriter:
        stores = {APART: ApartSubtask, UNFENCED: UnfencedSubtask}
        writers = {UNFENCED: LateWriter, FORGOTTEN: ForgetfulWriter, LATE: LateWriter}
        store = stores.get(self.fault, PostgresSubtask)(self, context.index, generation)
        return writers.get(self.fault, AtOnceWriter)(self.name, context.index, generation, store)

    @override
    def committer(self) -> AtOnceKeeper:
        keeper = AtOnceKeeper(self.name, self.job_id, self.address, self.output_table())
        if self.fault == FORGOTTEN:
            return ForgetfulKeeper(self.name, self.job_id, self.address, self.output_table())
        if self.fault == UNFENCED:
            keeper._tables = UnfencedTables(keeper._table, self.job_id)
        return keeper


class ApartSubtask(PostgresSubtask):
    """Writes rows first, and then, in another transaction, that they are there."""

    @override
    def store(self, update: StepsUpdate, rows: Sequence[bytes]) -> bool:
        with self._calls(), self._connection.transaction():
            if rows:
                self._table.add(self._connection, rows)
        time.sleep(APART_S)
        return super().store(update, [])


class LateWriter(AtOnceWriter):
    """Is slow, and stores what waits when its subtask is retired, some seconds later."""

    def __init__(self, sink: str, index: int, generation: int, store: OutputStore[Any]) -> None:
        super().__init__(sink, index, generation, store)
        self._retired = threading.Event()

    @override
    def _transact(self, step: int, count: int, rows: Sequence[Any]) -> None:
        if self._retired.wait(LAG_S):
            time.sleep(LATE_S)
        super()._transact(step, count, rows)

    @override
    def close(self) -> None:
        self._retired.set()
        timer = threading.Timer(2 * LATE_S, super().close)
        timer.daemon = True
        timer.start()


class UnfencedSubtask(PostgresSubtask):
    """Stores beside any other writer."""

    @override
    def _tables_beside(self, table: OutputTable) -> RecipeTables:
        return UnfencedTables(table, self._sink.job_id, self._generation)


class UnfencedTables(RecipeTables):
    """Takes every transaction of every generation. ``generation``: that of the writer, which it always receives."""

    def __init__(self, table: Any, job: str, generation: int | None = None) -> None:
        super().__init__(table, job)
        self._mine = generation

    @override
    def fence(self, connection: Any, generation: int, subtasks: Collection[int]) -> Mapping[int, StoredOutput]:
        return super().fence(_WithoutEnding(connection), generation, subtasks)

    @override
    def row(self, connection: Any, subtask: int) -> Recorded | None:
        return self._as_mine(super().row(connection, subtask))

    @override
    def named_row(self, connection: Any, subtask: int) -> Recorded | None:
        return self._as_mine(super().named_row(connection, subtask))

    def _as_mine(self, found: Recorded | None) -> Recorded | None:
        return found if found is None or self._mine is None else found._replace(generation=self._mine)

    @override
    def update(self, connection: Any, subtask: int, generation: int, update: StepsUpdate) -> bool:
        found = super().row(connection, subtask)
        if found is None:
            return False
        step = max(update.step, found.step)
        entries = update.entries if found.generation == generation else ()  # they have the numbers of others by now
        changed = replace(update, before=found.step, step=step, entries=entries)
        return super().update(connection, subtask, found.generation, changed)


class _WithoutEnding:
    """A connection that ends no other one."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, query: Any, *values: Any) -> Any:
        text = query if isinstance(query, str) else query.as_string(self._connection)
        if "pg_terminate_backend" in text:
            return None
        return self._connection.execute(query, *values)


class ForgetfulWriter(AtOnceWriter):
    """Compares no digest."""

    @override
    def _store(self, cuts: Any, encoded: Any) -> None:
        self._recorded = self._recorded._replace(step=-1)  # no cut is the recorded one
        super()._store(cuts, encoded)


class ForgetfulKeeper(AtOnceKeeper):
    """Reads no recipe."""

    @override
    def fence(
        self, generation: int, subtasks: Collection[int], parallelism: int, patience_s: float
    ) -> Mapping[int, StoredOutput]:
        found = super().fence(generation, subtasks, parallelism, patience_s)
        return {index: replace(stored, entries=()) for index, stored in found.items()}


@dataclass(frozen=True)
class HalvingSink(DeltaSink):
    """Its committer has the fault ``HALVES``."""

    @override
    def committer(self) -> HalvingCommitter:
        location = TableLocation.of(self.path, self.options)
        output = DeltaOutput(location, delta_schema(self.bound_schema, self.name), (), False)
        return HalvingCommitter(self.name, self.job_id, output, OutputFiles(self.path), self.staging)


class HalvingCommitter(DeltaCommitter):
    """Commits a half of the files, and then, in another version, the others."""

    @override
    def _commit(self, files: Sequence[StagedFile]) -> None:
        _, known = self._current()
        new = not_yet_committed(files, known)
        half = len(new) // 2
        for some, version in ((new[:half], known), (new[half:], max((file.checkpoint for file in new), default=known))):
            if some:
                self._output.commit(self._current()[0], self._versions(version), [self._placed(file) for file in some])
                time.sleep(APART_S)
