"""``flinkplus.read_state``: the state in a checkpoint directory as Arrow batches, also while its job runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow import fs

from flinkplus.errors import CheckpointRemoved
from flinkplus.runtime.job.reading.found import FoundState, StateQuery, find_state

ATTEMPTS = 5
"""How often the newest checkpoint is looked for, where the job removes it before its first row is read."""


def read_state(
    directory: str | os.PathLike[str],
    operator: str | None = None,
    *,
    key: Any = None,
    checkpoint: int | None = None,
    filesystem: fs.FileSystem | None = None,
    signing_key: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> pa.RecordBatchReader:
    """The keyed state in a checkpoint: a reader of record batches. ``read_all()`` makes a table of them.

    ``directory``: a local path, or a URI that ``pyarrow.fs`` understands. The job may run; nothing is written.
    ``operator``: name of one operator; then key and value are structs with the columns that they have in the job, as
    far as these are known. Otherwise they are JSON texts.
    ``key``: only this key: a value, a tuple for several columns, or a dict by column.
    ``checkpoint``: number of a complete checkpoint; default: the newest.
    ``filesystem``: the file system that ``directory`` is a path of.
    ``signing_key``: as for a resume; ``trust``: accept state that another key has signed.

    The columns: ``operator``, ``kind`` (``value``, ``timer``, ``window``, ``row``), ``state``, ``key``, ``value``,
    ``timer``, ``window_start``, ``window_end``, ``subtask``, ``key_group``, ``checkpoint``; see ``docs/operations.md``.
    One subtask's state at a time is copied to the temporary directory; memory holds one batch, or of windows and joins
    one window or shelf. The program that made the state is not needed, and none of its code runs.

    Raises ``CheckpointDirectoryError``, ``ConfigurationError``, ``UntrustedCheckpoint``, ``CorruptCheckpoint`` and
    ``CorruptState``, these also while batches are read. ``CheckpointRemoved``: the job has removed the checkpoint
    before all of it was read.
    """
    query = StateQuery(os.fspath(directory), operator, key, checkpoint)
    key_file = None if signing_key is None else os.fspath(signing_key)
    found, batches = begun(query, filesystem, key_file, trust)
    return pa.RecordBatchReader.from_batches(found.schema, batches)


def begun(
    query: StateQuery, filesystem: fs.FileSystem | None, signing_key: str | None, trust: bool
) -> tuple[FoundState, Iterator[pa.RecordBatch]]:
    """The state and its batches, the first of which is read. If the newest checkpoint goes before, the next is taken.

    Raises as ``read_state``.
    """
    for attempt in range(ATTEMPTS):
        try:
            found = find_state(query, filesystem, signing_key, trust)
            batches = found.batches()
            first = next(batches, None)
        except CheckpointRemoved:
            if query.checkpoint is not None or attempt == ATTEMPTS - 1:
                raise
        else:
            return found, batches if first is None else chain([first], batches)
    raise AssertionError("unreachable")
