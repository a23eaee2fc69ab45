"""The keyed state of one vertex, divided among another number of subtasks.

The state of keys is sorted by key group in every file. So a new subtask names the files of those before, each with the
groups that count for it (``protocol.snapshot.division``): nothing is read or written, whatever the size. Only pages are
read, and left to the operators (``OperatorInstance.inherit``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.protocol.snapshot.division import Estate, divided_files, divided_states
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import KeyedPart, SnapshotHandle
from flinkplus.protocol.vocabulary.key_groups import groups_of
from flinkplus.state.backend import Prepared, SubtaskState, adopted_name, folder_name
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.hashing import group_numbers, hash_keys
from flinkplus.state.objects import PAGES
from flinkplus.state.sst_format import Chunk
from flinkplus.state.store import SubtaskStore

WRITE_CHUNK_ENTRIES = 16_384
Entries = Iterator[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class GroupOwner:
    """Which key groups one subtask owns. ``gathered``: subtask 0 owns all keys, since all rows go to it."""

    index: int
    parallelism: int
    max_parallelism: int
    gathered: bool

    @property
    def groups(self) -> range:
        """The groups that it owns."""
        if self.gathered:
            return range(self.max_parallelism) if self.index == 0 else range(0)
        return groups_of(self.index, self.parallelism, self.max_parallelism)

    def owned(self, keys: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Which of ``keys`` are its own."""
        groups, mine = group_numbers(hash_keys(pa.array(keys, pa.large_binary())), self.max_parallelism), self.groups
        owned: npt.NDArray[np.bool_] = (groups >= mine.start) & (groups < mine.stop)
        return owned


@dataclass(frozen=True)
class StatePlace:
    """Where states are made: ``folder`` for this process, ``storage`` for good."""

    folder: Path
    storage: StateFiles
    generation: int
    checkpoint: int
    max_parallelism: int

    def state(self, folder: str, subtask: str) -> SubtaskState:
        """An empty state, whose RocksDB is opened when it is needed."""
        work = self.folder / folder
        store = SubtaskStore(work / folder_name(subtask) / "db", lazy=True)
        return SubtaskState(
            work,
            self.storage,
            subtask,
            self.generation,
            prepared=Prepared(store=store),
            max_parallelism=self.max_parallelism,
        )


class OldStates:
    """The keyed states of all subtasks of a vertex before; only those whose pages are being read are open.

    ``handles``: their snapshots, by index. Call ``close`` at the end.
    """

    def __init__(self, handles: Sequence[SnapshotHandle], place: StatePlace, gathered: bool) -> None:
        self._handles = handles
        self._place = place
        self._open: dict[int, SubtaskState] = {}
        self.kinds = kinds_of(handles)
        self._has_pages = any(part.kind == PAGES for handle in handles for part in handle.states.values())
        self._estates = [
            Estate(handle.files, handle.states, GroupOwner(at, len(handles), place.max_parallelism, gathered).groups)
            for at, handle in enumerate(handles)
        ]

    def of(self, mine: range, keys: bool = False) -> dict[int, SubtaskState]:
        """The states with pages of keys of groups ``mine``, by index, restored; with ``keys`` also those without pages.
        Those that are open and not among them are closed: call it for one new subtask after the other. Raises as
        ``SubtaskState.restore``."""
        near = self._has_pages or keys
        wanted = [at for at, estate in enumerate(self._estates) if near and estate.overlaps(mine)]
        for at in [at for at in self._open if at not in wanted]:
            self._open.pop(at).close()
        for at in wanted:
            if at not in self._open:
                state = self._open[at] = self._place.state("before", self._handles[at].subtask)
                state.restore(self._handles[at])
        return {at: self._open[at] for at in wanted}

    def carried(self, own: SnapshotHandle, index: int) -> SnapshotHandle:
        """The snapshot ``own`` with all that subtask ``index`` had: its files stay as they are, under other names."""
        before, place = self._handles[index], self._place
        name = partial(adopted_name, own.subtask, place.generation, place.checkpoint)
        files = tuple(
            replace(
                file,
                name=name(number),
                stored_as=file.stored,
                replaces=tuple(replace(other, stored_as=other.stored) for other in file.replaces),
            )
            for number, file in enumerate(before.files)
        )
        total = before.bytes_total
        return replace(own, files=files, states=before.states, bytes_total=total, keys=before.keys)

    def share(self, subtask: str, mine: range) -> Share:
        """What the new ``subtask`` gets, which owns groups ``mine``."""
        name = partial(adopted_name, subtask, self._place.generation, self._place.checkpoint)
        return Share(
            divided_files(self._estates, mine, self.kinds, self._has_pages, name),
            divided_states(self._estates, mine, self.kinds),
        )

    def close(self) -> None:
        """Close all states."""
        while self._open:
            self._open.popitem()[1].close()


def chunks_of(entries: Entries) -> Iterator[Chunk]:
    """Entries in chunks for ``write_sst``."""
    while batch := list(islice(entries, WRITE_CHUNK_ENTRIES)):
        yield [key for key, _ in batch], [value for _, value in batch]


@dataclass(frozen=True)
class Share:
    """The state of keys of a new subtask: files of those before, and the names and sizes of the states."""

    files: tuple[StateFile, ...]
    states: dict[str, KeyedPart]

    def with_own(self, own: SnapshotHandle) -> SnapshotHandle:
        """The snapshot of the new subtask. ``own``: of its pages, without any state of keys."""
        files = (*self.files, *(replace(file, kind="delta") if self.files else file for file in own.files))
        states = {**own.states, **self.states}
        return replace(
            own,
            files=files,
            states=states,
            bytes_total=sum(file.bytes for file in files),
            keys=sum(part.keys for part in states.values()),
        )


def kinds_of(handles: Sequence[SnapshotHandle]) -> dict[str, KeyedPart]:
    """The states of keys of all subtasks, by name. Raises ``ConfigurationError`` where their kinds differ."""
    kinds: dict[str, KeyedPart] = {}
    for handle in handles:
        for name, part in handle.states.items():
            if part.kind == PAGES:
                continue
            known = kinds.setdefault(name, part)
            if (known.kind, known.dtype) != (part.kind, part.dtype):
                raise ConfigurationError(
                    f"{handle.subtask} holds state {name!r} as {part.kind}, another subtask as {known.kind}: the job "
                    "cannot be resumed at another parallelism"
                )
    return kinds
