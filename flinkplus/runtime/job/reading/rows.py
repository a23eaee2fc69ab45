"""The state of one subtask as record batches: columns for people and for SQL.

Rules:
- a row is an entry of the state, of one key: a value, a timer, a key in a window, or a row that is held;
- key and value are JSON texts, or, of a single operator, structs of the columns that they have in the job;
- a subtask's state is restored below the temporary directory, read in order, and removed. The folder is marked, so that
  the next job on the host removes what a killed reader has left.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from flinkplus.errors import CheckpointRemoved, CorruptState, StateError, UserFunctionError
from flinkplus.operators.base.key_values import key_columns
from flinkplus.operators.base.stored_state import ShownRows, StateView, struct_of
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.runtime.host.scratch import JOB_PREFIX, mark_running
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.hashing import group_numbers, hash_keys
from flinkplus.state.reading.plain_objects import to_json
from flinkplus.state.reading.stored import StoredSubtask
from flinkplus.state.removal import remove_folder

TIME = pa.timestamp("us", "UTC")
MAX_ROWS = 8192
CONTENT_ERRORS = (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, IndexError)
"""What reading raises when content is not what the operator stores."""


@dataclass(frozen=True)
class ReadOperator:
    """One operator, as it is read. ``fields``: its key columns. ``key``: the bytes of the only key to be read."""

    name: str
    fields: tuple[pa.Field, ...]
    views: tuple[StateView, ...]
    key: bytes | None = None

    @property
    def key_type(self) -> pa.DataType:
        """The type of keys; text for an operator whose rows all have one key."""
        return pa.struct([field.with_nullable(True) for field in self.fields]) if self.fields else pa.string()

    @property
    def value_type(self) -> pa.DataType:
        """The type of values; text for objects, for an operator without values, and where types differ."""
        types = {view.value_type for view in self.views}
        only = types.pop() if len(types) == 1 else None
        return pa.string() if only is None else _all_nullable(only)


def _all_nullable(dtype: pa.DataType) -> pa.DataType:
    """A type whose fields may be null, at any depth that a view makes."""
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(_all_nullable(field.type)).with_nullable(True) for field in dtype])
    if pa.types.is_list(dtype):
        return pa.list_(_all_nullable(dtype.value_type))
    return dtype


def row_schema(key: pa.DataType, value: pa.DataType) -> pa.Schema:
    """The columns of all rows."""
    return pa.schema(
        [
            ("operator", pa.string()),
            ("kind", pa.string()),
            ("state", pa.string()),
            ("key", key),
            ("value", value),
            ("timer", TIME),
            ("window_start", TIME),
            ("window_end", TIME),
            ("subtask", pa.string()),
            ("key_group", pa.int32()),
            ("checkpoint", pa.int64()),
        ]
    )


@dataclass(frozen=True)
class SubtaskReading:
    """The state of one subtask, to be read anywhere: it holds no functions and no key to signatures.

    ``directory``: the checkpoint directory. ``handle``: what the manifest says, which has the checksum of each file.
    ``saved``: what each operator's ``snapshot`` gave.
    ``owned``: for each operator the first of the key groups that the subtask owns, and the end.
    ``schema``: see ``row_schema``; a key or value of another type than text is typed.
    """

    directory: str
    handle: SnapshotHandle
    operators: tuple[ReadOperator, ...]
    saved: dict[str, Any]
    owned: dict[str, tuple[int, int]]
    schema: pa.Schema
    max_parallelism: int

    def batches(self, filesystem: fs.FileSystem | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of at most ``MAX_ROWS``.

        Raises ``CorruptState`` for a damaged file, ``CheckpointRemoved`` when the job has removed the checkpoint.
        """
        storage = CheckpointStorage(self.directory, filesystem)
        folder = Path(tempfile.mkdtemp(prefix=f"{JOB_PREFIX}state-"))
        mark = mark_running(folder)
        try:
            stored = self._restored(storage, folder)
            try:
                for operator in self.operators:
                    stored.key = operator.key
                    for view in operator.views:
                        yield from self._rows(operator, view, stored)
            finally:
                stored.close()
        finally:
            remove_folder(folder)
            os.close(mark)

    def _restored(self, storage: CheckpointStorage, folder: Path) -> StoredSubtask:
        try:
            return StoredSubtask(self.handle, storage.state_files, folder, self.max_parallelism)
        except (CorruptState, StateError) as error:
            with suppress(OSError):
                if self.handle.checkpoint not in storage.manifests.listed():
                    raise removed(self.handle.checkpoint) from error
            raise

    def _rows(self, operator: ReadOperator, view: StateView, stored: StoredSubtask) -> Iterator[pa.RecordBatch]:
        try:
            for rows in view.rows(stored, self.saved.get(operator.name)):
                if rows.keys:
                    yield from self._made(operator, view, rows)
        except (*CONTENT_ERRORS, struct.error, UserFunctionError) as error:
            raise CorruptState(
                f"the state of operator {operator.name!r}, {self.handle.subtask}, checkpoint {self.handle.checkpoint}, "
                f"is not what that operator stores: {printable(error)}"
            ) from error

    def _made(self, operator: ReadOperator, view: StateView, rows: ShownRows) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows.keys), MAX_ROWS):
            keys = rows.keys[start : start + MAX_ROWS]
            groups = group_numbers(hash_keys(pa.array(keys, pa.large_binary())), self.max_parallelism)
            wanted = np.flatnonzero(self._count(operator, keys, groups))
            if len(wanted):
                yield self._batch(operator, view, rows, start + wanted, groups[wanted])

    def _count(
        self, operator: ReadOperator, keys: Sequence[bytes], groups: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Which entries count: those of key groups that the subtask owns, and of the key that is asked for."""
        first, end = self.owned[operator.name]
        counts: npt.NDArray[np.bool_] = (groups >= first) & (groups < end)
        return counts if operator.key is None else counts & np.array([key == operator.key for key in keys], np.bool_)

    def _batch(
        self,
        operator: ReadOperator,
        view: StateView,
        rows: ShownRows,
        wanted: npt.NDArray[np.int64],
        groups: npt.NDArray[np.int64],
    ) -> pa.RecordBatch:
        keys = [rows.keys[at] for at in wanted.tolist()]
        start, end = (None, None) if rows.window_ms is None else rows.window_ms
        count = len(keys)
        columns = [
            _repeated(operator.name, count, pa.string()),
            _repeated(view.kind, count, pa.string()),
            _repeated(view.state, count, pa.string()),
            self._keys(operator, keys),
            self._values(rows, wanted),
            pa.nulls(count, TIME) if rows.timers_ms is None else _times(rows.timers_ms.take(pa.array(wanted))),
            _times(_repeated(start, count, pa.int64())),
            _times(_repeated(end, count, pa.int64())),
            _repeated(self.handle.subtask, count, pa.string()),
            pa.array(groups, pa.int32()),
            _repeated(self.handle.checkpoint, count, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _keys(self, operator: ReadOperator, keys: Sequence[bytes]) -> pa.Array:
        columns = key_columns(keys, [field.type for field in operator.fields]) if operator.fields else []
        dtype = self.schema.field("key").type
        if not pa.types.is_string(dtype):
            return struct_of(columns, dtype)
        names = [field.name for field in operator.fields]
        rows = zip(*(column.to_pylist() for column in columns), strict=True) if columns else [()] * len(keys)
        return pa.array([to_json(dict(zip(names, row, strict=True))) for row in rows], dtype)

    def _values(self, rows: ShownRows, wanted: npt.NDArray[np.int64]) -> pa.Array:
        values, dtype = rows.values, self.schema.field("value").type
        if values is None:
            return pa.nulls(len(wanted), dtype)
        if isinstance(values, list):
            return pa.array([to_json(values[at]) for at in wanted.tolist()], dtype)
        found = values.take(pa.array(wanted))
        if not pa.types.is_string(dtype):
            return found.cast(dtype)
        return pa.array(list(map(to_json, found.to_pylist())), dtype)


def removed(checkpoint: int) -> CheckpointRemoved:
    """The error for a checkpoint that went while it was read."""
    return CheckpointRemoved(
        f"checkpoint {checkpoint} was removed while it was read, since the job has newer ones: read again, or have the "
        "job keep more of them (retained_checkpoints)"
    )


def _repeated(value: Any, count: int, dtype: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, dtype), count)


def _times(ms: pa.Array) -> pa.Array:
    """Milliseconds as instants."""
    return ms.cast(pa.timestamp("ms", "UTC")).cast(TIME)
