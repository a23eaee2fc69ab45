"""The keyed state of one vertex, divided among another number of subtasks.

The state of keys is sorted by key group in every file. So the new state of a subtask is read as ranges of the old ones,
one after the other, and written as one base; only pages are left to the operators (``OperatorInstance.inherit``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import START, KeyedPart, SnapshotHandle
from flinkplus.protocol.vocabulary.key_groups import groups_of
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.hashing import group_numbers, hash_keys
from flinkplus.state.objects import PAGES
from flinkplus.state.sst_format import WRITE_CHUNK_ENTRIES, Chunk

Entries = Iterator[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Ownership:
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
class Place:
    """Where states are made: ``folder`` for this process, ``storage`` for good."""

    folder: Path
    storage: StateFiles
    generation: int
    checkpoint: int
    max_parallelism: int

    def read(self, handle: SnapshotHandle) -> SubtaskState:
        """The state of a snapshot. Raises as ``SubtaskState.restore``."""
        state = self._state("before", handle.subtask)
        try:
            state.restore(handle)
        except BaseException:
            state.close()
            raise
        return state

    def begin(self, subtask: str, before: Sequence[tuple[SnapshotHandle, SubtaskState]], mine: range) -> SubtaskState:
        """The new state of ``subtask``, with the state of the keys of groups ``mine``."""
        kinds = kinds_of([handle for handle, _ in before])
        state = self._state("after", subtask)
        try:
            counts = dict.fromkeys(kinds, 0)

            def entries() -> Entries:
                for name in sorted(kinds, key=lambda name: (len(name.encode()), name.encode())):
                    for _, old in before:
                        for entry in old.entries_of(name, mine):
                            counts[name] += 1
                            yield entry

            base = state.write_base(self.checkpoint, chunks_of(entries()))
            files: tuple[StateFile, ...] = () if base is None else (base,)
            states = {name: KeyedPart(kind=p.kind, keys=counts[name], dtype=p.dtype) for name, p in kinds.items()}
            state.restore(_handle(files, states))
        except BaseException:
            state.close()
            raise
        return state

    def _state(self, folder: str, subtask: str) -> SubtaskState:
        return SubtaskState(
            self.folder / folder, self.storage, subtask, self.generation, max_parallelism=self.max_parallelism
        )


def _handle(files: tuple[StateFile, ...], states: dict[str, KeyedPart]) -> SnapshotHandle:
    return SnapshotHandle(
        subtask="", generation=0, checkpoint=0, files=files, operator_state=START.operator_state, states=states
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


def chunks_of(entries: Entries) -> Iterator[Chunk]:
    """Entries in chunks for ``write_sst``."""
    while batch := list(islice(entries, WRITE_CHUNK_ENTRIES)):
        yield [key for key, _ in batch], [value for _, value in batch]
