"""The keyed state of one vertex, divided among another number of subtasks.

The state of keys is sorted by key group in every file. So the new state of a subtask is ranges of the old ones, one
after the other, written as one base; or the files of old states that it owns whole, as they are. Only pages are left
to the operators (``OperatorInstance.inherit``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from flinkplus.state.memtable import state_prefix
from flinkplus.state.objects import PAGES
from flinkplus.state.sst_format import WRITE_CHUNK_ENTRIES, Chunk

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
        """An empty state."""
        return SubtaskState(
            self.folder / folder, self.storage, subtask, self.generation, max_parallelism=self.max_parallelism
        )


class OldStates:
    """The keyed states of all subtasks of a vertex before; only those that are being read are open.

    ``handles``: their snapshots, by index. Call ``close`` at the end.
    """

    def __init__(self, handles: Sequence[SnapshotHandle], place: StatePlace, gathered: bool) -> None:
        self._handles = handles
        self._place = place
        self._open: dict[int, SubtaskState] = {}
        self.kinds = kinds_of(handles)
        self.has_pages = any(part.kind == PAGES for handle in handles for part in handle.states.values())
        owners = [GroupOwner(at, len(handles), place.max_parallelism, gathered) for at in range(len(handles))]
        self._groups = [owner.groups for owner in owners]

    def of(self, mine: range) -> dict[int, SubtaskState]:
        """The states, by index, with keys of groups ``mine``, restored. Those that are open and not among them are
        closed: call it for one new subtask after the other. Raises as ``SubtaskState.restore``."""
        wanted = [at for at, groups in enumerate(self._groups) if _overlap(mine, groups)]
        for at in [at for at in self._open if at not in wanted]:
            self._open.pop(at).close()
        for at in wanted:
            if at not in self._open:
                state = self._open[at] = self._place.state("before", self._handles[at].subtask)
                state.restore(self._handles[at])
        return {at: self._open[at] for at in wanted}

    def handle(self, index: int) -> SnapshotHandle:
        """The snapshot of one subtask before."""
        return self._handles[index]

    def owned_whole(self, mine: range) -> bool:
        """Whether whole states belong to groups ``mine``, so that their files can stay as they are."""
        near = [groups for groups in self._groups if _overlap(mine, groups)]
        return not self.has_pages and all(mine.start <= groups.start and groups.stop <= mine.stop for groups in near)

    def close(self) -> None:
        """Close all states."""
        while self._open:
            self._open.popitem()[1].close()


def _overlap(some: range, others: range) -> bool:
    return max(some.start, others.start) < min(some.stop, others.stop)


def begun(subtask: str, old: OldStates, mine: range, place: StatePlace) -> SubtaskState:
    """The new state of ``subtask``, with the state of the keys of groups ``mine``. The caller closes it.

    Files of states that are owned whole stay as they are, under new names; otherwise the ranges that are owned are
    written as one base.
    """
    states = old.of(mine)
    new = place.state("after", subtask)
    try:
        counts = dict.fromkeys(old.kinds, 0)
        if old.owned_whole(mine):
            files = _adopted(new, old, states, counts, place.checkpoint)
        else:
            base = new.write_base(place.checkpoint, chunks_of(_entries(states.values(), mine, counts)))
            files = () if base is None else (base,)
        parts = {name: KeyedPart(kind=p.kind, keys=counts[name], dtype=p.dtype) for name, p in old.kinds.items()}
        new.restore(_handle(files, parts))
    except BaseException:
        new.close()
        raise
    return new


def _adopted(
    new: SubtaskState, old: OldStates, states: Mapping[int, SubtaskState], counts: dict[str, int], checkpoint: int
) -> tuple[StateFile, ...]:
    """The files of whole states: none of them has a key that another has."""
    files: list[StateFile] = []
    for at, state in states.items():
        handle = old.handle(at)
        for name, part in handle.states.items():
            counts[name] += part.keys
        for file in handle.files:
            files.append(new.adopt_file(checkpoint, len(files), state.local_copy(file), file))
    return tuple(files)


def _entries(states: Iterable[SubtaskState], mine: range, counts: dict[str, int]) -> Entries:
    """All entries of groups ``mine``, ascending: ``states`` own ranges of groups that follow each other."""
    for name in sorted(counts, key=state_prefix):
        for state in states:
            for entry in state.entries_of(name, mine):
                counts[name] += 1
                yield entry


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
