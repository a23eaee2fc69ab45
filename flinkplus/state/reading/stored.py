"""The keyed state of one subtask as a snapshot has it, read in order of its files without being held in memory.

Rules:
- it is restored as a slot restores it (``SubtaskState``), into a folder of its own: which entries of which file count
  is decided there, and a damaged or missing file is found there before anything is read;
- entries come by state, key group and key, at most ``BATCH_ENTRIES`` or about ``BATCH_BYTES`` at a time;
- nothing is written to the checkpoint directory, and objects are read without running their classes (``unpickled``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from flinkplus.errors import CorruptState, InvariantViolation
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.entries.table import owner_key, owner_length, owner_name
from flinkplus.state.hashing import GROUP_BYTES
from flinkplus.state.memtable import VALUE_BYTES, ZERO_VALUE, Dtype, state_prefix
from flinkplus.state.objects import PICKLE_FORMAT
from flinkplus.state.reading.plain_objects import unpickled

BATCH_ENTRIES = 8192
BATCH_BYTES = 8 << 20
Entries = list[tuple[bytes, bytes]]
"""Keys, without prefix and group, and stored values."""


class StoredSubtask:
    """The state of ``handle``, restored below ``folder``. Call ``close`` at the end.

    ``key``: the only key that ``numbers`` and ``objects`` read; ``None``: all. Raises as ``SubtaskState.restore``.
    """

    def __init__(self, handle: SnapshotHandle, files: StateFiles, folder: Path, max_parallelism: int) -> None:
        self.subtask = handle.subtask
        self.max_parallelism = max_parallelism
        self.key: bytes | None = None
        self._states = handle.states
        self._state = SubtaskState(folder, files, handle.subtask, handle.generation, max_parallelism=max_parallelism)
        try:
            self._state.restore(handle)
        except BaseException:
            self._state.close()
            raise

    def close(self) -> None:
        """Remove the restored copy; local files are the caller's to remove, with the folder."""
        self._state.close()

    def has(self, name: str, /) -> bool:
        """Whether there is a state of this name."""
        return name in self._states

    def numbers(self, name: str, dtype: Dtype, /) -> Iterator[tuple[list[bytes], npt.NDArray[Any]]]:
        """The keys and numbers of a state, in batches. Raises ``CorruptState`` for values that are no numbers."""
        for entries in self._batches(name):
            values = [value for _, value in entries]
            yield [key for key, _ in entries], self._as_numbers(name, values, dtype)

    def objects(self, name: str, /) -> Iterator[tuple[list[bytes], list[Any]]]:
        """The keys and objects of a state, in batches. Raises ``CorruptState`` for values that are no objects."""
        for entries in self._batches(name):
            yield [key for key, _ in entries], [_object_of(name, value) for _, value in entries]

    def form(self, name: str, /) -> str | None:
        """How the operator makes the objects of a state; ``None``: as they are."""
        part = self._states.get(name)
        return None if part is None else part.dtype

    def entries(self, name: str, /) -> Iterator[tuple[list[bytes], list[bytes], list[Any]]]:
        """Of a state with several objects for each key: the key of each, what follows it in its name, and the object,
        in batches. Raises ``CorruptState``."""
        if not self.has(name):
            return
        found: Iterable[tuple[bytes, bytes]] = self._state.pages_of(name)
        if self.key is not None:
            found = self._state.pages_of(name, owner_name(self.key, self.max_parallelism))
        for entries in _in_batches(found):
            try:
                ends = [owner_length(entry) for entry, _ in entries]
            except CorruptState as error:
                raise CorruptState(f"state {name!r}: {error}") from error
            suffixes = [entry[end:] for (entry, _), end in zip(entries, ends, strict=True)]
            yield (
                [owner_key(entry) for entry, _ in entries],
                suffixes,
                [_object_of(name, value) for _, value in entries],
            )

    def page_names(self, name: str, /) -> Iterator[list[bytes]]:
        """The names of the pages of a state, in batches, ascending."""
        for entries in _in_batches(self._state.pages_of(name)):
            yield [key for key, _ in entries]

    def numbers_of(self, name: str, dtype: Dtype, keys: Sequence[bytes], /) -> npt.NDArray[Any]:
        """The numbers of ``keys``; 0 for an absent one."""
        stored = self._state.stored_in(name, list(keys)) if self.has(name) else [None] * len(keys)
        return self._as_numbers(name, [ZERO_VALUE if value is None else value for value in stored], dtype)

    def page_state(self, name: str, /) -> StoredPages:
        """The pages stored under ``name``."""
        return StoredPages(self._state, name)

    def number_state(self, name: str, dtype: Dtype, /) -> NoReturn:
        """Numbers are read by ``numbers``."""
        raise InvariantViolation(f"state {name!r} of {self.subtask} is only read")

    def object_state(self, name: str, form: str | None = None, /) -> NoReturn:
        """Objects are read by ``objects``."""
        raise InvariantViolation(f"state {name!r} of {self.subtask} is only read")

    def entry_state(self, name: str, form: str | None = None, /) -> NoReturn:
        """Entries are read by ``entries``."""
        raise InvariantViolation(f"state {name!r} of {self.subtask} is only read")

    def _batches(self, name: str) -> Iterator[Entries]:
        if not self.has(name):
            return
        if self.key is not None:
            (value,) = self._state.stored_in(name, [self.key])
            if value is not None:
                yield [(self.key, value)]
            return
        before = len(state_prefix(name)) + GROUP_BYTES
        found = self._state.entries_of(name, range(self.max_parallelism))
        yield from _in_batches((key[before:], value) for key, value in found)

    def _as_numbers(self, name: str, values: Sequence[bytes], dtype: Dtype) -> npt.NDArray[Any]:
        if any(len(value) != VALUE_BYTES for value in values):
            raise CorruptState(f"state {name!r} of {self.subtask} holds values that are no {dtype} numbers")
        return np.frombuffer(b"".join(values), np.dtype(dtype).newbyteorder("<")).astype(dtype)


class StoredPages:
    """The pages of one name, which can only be read."""

    def __init__(self, state: SubtaskState, name: str) -> None:
        self._state = state
        self._name = name

    def get_many(self, keys: Sequence[bytes], /) -> list[Any]:
        """The page of each name. Raises ``CorruptState`` for one that is missing or no page."""
        stored = self._state.stored_in(self._name, list(keys), pages=True)
        return [None if value is None else _object_of(self._name, value) for value in stored]

    def put_many(self, keys: Sequence[bytes], values: Sequence[object], /) -> NoReturn:
        """Not for readers."""
        raise InvariantViolation(f"pages {self._name!r} are only read")

    def delete_many(self, keys: Sequence[bytes], /) -> NoReturn:
        """Not for readers."""
        raise InvariantViolation(f"pages {self._name!r} are only read")


def _object_of(name: str, stored: bytes) -> Any:
    if stored[:1] != PICKLE_FORMAT:
        raise CorruptState(f"an object of state {name!r} has format {stored[:1]!r}, known is {PICKLE_FORMAT!r}")
    return unpickled(stored[1:])


def _in_batches(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[Entries]:
    batch: Entries = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += len(entry[1])
        if len(batch) >= BATCH_ENTRIES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
