"""The keyed state of one subtask: named states over one RocksDB, snapshots of them, and restoring.

Rules:
- threads: ``persist`` is called in any one thread at a time, ``rebase`` in one more; ``checkpoint_complete``,
  ``state_bytes``, ``state_keys`` and ``state_reads`` in any; ``close`` in any, once the subtask's thread has stopped
  using the state; everything else in the subtask's thread;
- a snapshot that could not be persisted loses nothing: the next one carries its changes;
- a handle is JSON and, with the storage, has all that a new process needs; restoring takes a local file when it exists
  and matches its checksum, otherwise the stored one.

Layout of ``work_dir``: ``<subtask>/files/`` (local copies, kept over generations), ``<subtask>/db-<generation>-<n>/``.
A standby's files are in ``<subtask>/replica/`` and ``<subtask>/standby-<n>/`` (``chain_backup.replication.replica``),
those of a dead process in ``<subtask>/left/`` (``left``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from flinkplus.errors import ConfigurationError, CorruptState
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import KeyedPart, OperatorState, SnapshotHandle
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM
from flinkplus.state.durable.state_files import StateTransfers
from flinkplus.state.entries.table import EntryState, end_of
from flinkplus.state.file_system import file_chunks, link_or_copy
from flinkplus.state.hashing import GROUP_BYTES
from flinkplus.state.left import FILES_FOLDER, LEFT_FOLDER, REPLICA_FOLDER
from flinkplus.state.memtable import (
    DEFAULT_MAX_ENTRIES,
    Dtype,
    FrozenPart,
    KeyLayout,
    NumberState,
    counted_keys,
    state_prefix,
)
from flinkplus.state.objects import ENTRIES, OBJECTS, PAGES, ObjectState
from flinkplus.state.removal import remove_file, remove_folder
from flinkplus.state.sst_format import Chunk, describe, write_sst
from flinkplus.state.store import Aside, SubtaskStore
from flinkplus.state.versions import BasePolicy, PendingSnapshot, StateVersions

MAX_FOLDER_CHARACTERS = 120
FIRST_ADOPTED = 1_000_000
"""Number in the names of files that other subtasks have written: its own begin at 1."""

State = NumberState | ObjectState


def folder_name(subtask: str) -> str:
    """A name for ``subtask`` (``count+out[1]``) that every file system takes, different for different subtasks."""
    name = quote(subtask, safe="+[],= ")
    if len(name) <= MAX_FOLDER_CHARACTERS and not name.startswith("."):
        return name
    digest = hashlib.blake2b(subtask.encode(), digest_size=8).hexdigest()
    return f"{name.lstrip('.')[: MAX_FOLDER_CHARACTERS - 17]}-{digest}"


def adopted_name(subtask: str, generation: int, checkpoint: int, number: int) -> str:
    """What ``subtask`` calls the ``number``-th file of others, from 0, of its state at ``checkpoint``."""
    return f"{folder_name(subtask)}/{generation}-{checkpoint}-{FIRST_ADOPTED + number}.sst"


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What a promoted standby begins with: an open store that holds exactly ``files``, all of them in storage.

    ``store`` is ``None`` when there are no files. It belongs to the holder of this object, in any thread: hand it to a
    ``SubtaskState``, or ``close`` it.
    """

    files: tuple[StateFile, ...] = ()
    store: SubtaskStore | None = None

    def close(self) -> None:
        """Not needed after all: stop and remove the store."""
        if self.store is not None:
            self.store.destroy()


class SubtaskState:
    """All keyed state of one subtask in one generation.

    ``work_dir``: a scratch directory of the slot, shared by its subtasks.
    ``max_entries``: bound of each state in memory.
    ``prepared``: a promoted standby's store, owned from now on; ``restore`` of its handle then takes no time.
    ``max_parallelism``: number of key groups.
    """

    def __init__(
        self,
        work_dir: Path,
        storage: StateTransfers,
        subtask: str,
        generation: int,
        *,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        policy: BasePolicy | None = None,
        prepared: Prepared | None = None,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    ) -> None:
        self.subtask = subtask
        self._max_parallelism = max_parallelism
        self.generation = generation
        self._storage = storage
        self._max_entries = max_entries
        self._policy = policy or BasePolicy()
        self._folder = work_dir / folder_name(subtask)
        self._files_folder = self._folder / FILES_FOLDER
        self._files_folder.mkdir(parents=True, exist_ok=True)
        self._states: dict[str, State] = {}
        self._restored: dict[str, KeyedPart] = {}
        self._last_checkpoint = 0
        self._opened = 0
        files = () if prepared is None else prepared.files
        store = None if prepared is None else prepared.store
        self._held: tuple[StateFile, ...] | None = files  # what the store holds, as long as nothing was written to it
        self._store = store or self._open_store()
        self._versions = self._open_versions(files)

    def _open_store(self) -> SubtaskStore:
        while True:
            self._opened += 1
            directory = self._folder / f"db-{self.generation}-{self._opened}"
            if not directory.exists():  # a dead process may have left one
                return SubtaskStore(directory, quiet=True)
            remove_folder(directory)

    def _open_versions(self, files: Sequence[StateFile]) -> StateVersions:
        prefix = self._folder.name
        return StateVersions(
            self._store, files, self._files_folder, self._storage, prefix, self.generation, self._policy
        )

    # -- states ---------------------------------------------------------------------------------------------------

    def number_state(self, name: str, dtype: Dtype = "int64") -> NumberState:
        """The number state ``name``, made when it is not there; the same object for the same name."""
        state = self._states.get(name)
        if state is None:
            state = NumberState(self._store, state_prefix(name), dtype, self._max_entries, self._max_parallelism)
            self._adopt(name, state)
        if not isinstance(state, NumberState) or state.dtype != dtype:
            raise self._taken(f"number state {name!r} of {dtype}", state)
        return state

    def object_state(self, name: str, form: str | None = None) -> ObjectState:
        """The object state ``name``, made when it is not there; the same object for the same name."""
        return self._objects(name, OBJECTS, self._max_parallelism, form)

    def page_state(self, name: str) -> ObjectState:
        """As ``object_state``, for pages that hold rows of many keys."""
        return self._objects(name, PAGES, None)

    def entry_state(self, name: str, form: str | None = None) -> EntryState:
        """As ``object_state``, for several objects of each key."""
        state = self._states.get(name)
        if state is None:
            state = EntryState(self._store, state_prefix(name), self._max_entries, self._max_parallelism, form)
            self._adopt(name, state)
        if not isinstance(state, EntryState) or state.form != form:
            raise self._taken(f"{form or ENTRIES} state {name!r}", state)
        return state

    def _objects(self, name: str, kind: str, max_parallelism: int | None, form: str | None = None) -> ObjectState:
        state = self._states.get(name)
        if state is None:
            state = ObjectState(self._store, state_prefix(name), self._max_entries, max_parallelism, form)
            self._adopt(name, state)
        if not isinstance(state, ObjectState) or (state.kind, state.form) != (kind, form):
            raise self._taken(f"{form or kind} state {name!r}", state)
        return state

    def _taken(self, asked: str, state: State) -> ConfigurationError:
        return ConfigurationError(
            f"{self.subtask} asks for {asked}, but has a {_describe(state)} of that name; "
            "give the states of fused operators different names"
        )

    def _adopt(self, name: str, state: State) -> None:
        """Begin with what was restored under this name, if anything was."""
        restored = self._restored.get(name)
        if restored is not None:
            part = _part_of(state)
            if (restored.kind, restored.dtype) != (part.kind, part.dtype):
                raise ConfigurationError(
                    f"{self.subtask} asks for state {name!r} as {_describe(state)}, but the checkpoint holds it as "
                    f"{printable(restored.kind)} {printable(restored.dtype or '')}; give the changed state a new name"
                )
            state.rebind(self._store, restored.keys, restored.counted)
            del self._restored[name]
        self._states[name] = state

    def state_keys(self) -> int:
        """Keys of all states; after another parallelism an estimate, until they were counted for a base."""
        live = sum(state.live_keys for state in list(self._states.values()))
        return max(0, live + sum(restored.keys for restored in list(self._restored.values())))

    def state_bytes(self) -> int:
        """Bytes of the files of the newest version (changes since then are in memory only)."""
        return self._versions.total_bytes()

    def state_reads(self) -> int:
        """Keys that were looked up in RocksDB, because memory did not have them, since the store was opened."""
        return self._store.keys_read

    # -- snapshots ------------------------------------------------------------------------------------------------

    def freeze(self, checkpoint: int, operator_state: OperatorState) -> PendingSnapshot:
        """The synchronous part: everything as it is now, on its way to disk."""
        begun = time.perf_counter()
        encoded = json.dumps(operator_state.to_json())
        self._held = None
        self._thaw_failed()
        self._take_counts()
        self._last_checkpoint = max(self._last_checkpoint, checkpoint)
        full = self._worth_a_base()
        pending = PendingSnapshot(
            checkpoint,
            self._freeze_states(full),
            full=full,
            keys=self.state_keys(),
            states=self._parts(),
            operator_state=encoded,
        )
        self._versions.enqueue(pending)
        pending.sync_ms = (time.perf_counter() - begun) * 1e3
        return pending

    def _freeze_states(self, full: bool = False) -> list[FrozenPart]:
        parts = (state.freeze(full) for state in self._states.values())
        return [part for part in parts if part is not None]

    def _parts(self) -> dict[str, KeyedPart]:
        return {**self._restored, **{name: _part_of(state) for name, state in self._states.items()}}

    def _take_counts(self) -> None:
        """Correct estimated numbers of keys by what a base has counted."""
        for name, off in self._versions.take_miscounts().items():
            state, restored = self._states.get(name), self._restored.get(name)
            if state is not None and not state.counted:
                state.live_keys -= off
                state.counted = True
            elif restored is not None and not restored.counted:
                self._restored[name] = replace(restored, keys=restored.keys - off, counted=True)

    def _worth_a_base(self) -> bool:
        """All live keys are in memory and half of them are dirty: a whole base costs little more than a delta."""
        if self._restored or not all(state.covers_all for state in self._states.values()):
            return False
        dirty = sum(state.dirty_entries for state in self._states.values())
        return dirty > 0 and 2 * dirty >= self.state_keys() and self._versions.full_due()

    def _thaw_failed(self) -> None:
        failed = self._versions.take_failed()
        parts = [part for pending in failed for part in pending.parts]
        for state in self._states.values():
            mine = [part for part in parts if part.prefix == state.prefix]
            if mine:
                state.thaw(mine)

    def spill_if_needed(self) -> bool:
        """Write changed entries to RocksDB when memory holds too many of them; True when that was done.

        Synchronous: some 50 ms for 100,000 entries. Raises ``StateError`` when the local disk fails, losing nothing.
        """
        if not any(state.needs_spill for state in self._states.values()):
            return False
        self._held = None
        self._thaw_failed()
        pending = PendingSnapshot(self._last_checkpoint + 1, self._freeze_states(), spill=True, states=self._parts())
        self._versions.enqueue(pending)
        self._versions.write_through(pending)
        return True

    def persist(self, pending: PendingSnapshot) -> SnapshotHandle:
        """The asynchronous part: file, RocksDB, storage; the handle. Raises on failure, and then nothing is lost."""
        done = self._versions.persist(pending)
        return SnapshotHandle(
            subtask=self.subtask,
            generation=self.generation,
            checkpoint=pending.checkpoint,
            files=done.files,
            operator_state=OperatorState.from_json(json.loads(pending.operator_state)),
            states={name: replace(part, keys=max(0, part.keys)) for name, part in pending.states.items()},
            bytes_new=done.bytes_new,
            bytes_total=sum(file.bytes for file in done.files),
            keys=pending.keys,
            sync_ms=round(pending.sync_ms, 3),
            async_ms=round(done.async_ms, 3),
        )

    def rebase(self) -> bool:
        """Replace the files of versions to come by one, if they have become many; true when that was done.

        Takes long for a large state. Raises ``StateError`` when it fails, or the state is closed; nothing changes then.
        """
        return self._versions.rebase()

    def checkpoint_complete(self, checkpoint: int) -> None:
        """The checkpoint is complete: what only older ones need locally is removed, which may wait for the disk."""
        self._versions.complete(checkpoint)

    # -- another parallelism --------------------------------------------------------------------------------------

    def entries_of(self, name: str, groups: range) -> Iterator[tuple[bytes, bytes]]:
        """What the restored version has, as it is stored, of the keys of ``groups`` in the state ``name``."""
        if not groups:
            return iter(())
        prefix = state_prefix(name)
        first, end = (prefix + bound.to_bytes(GROUP_BYTES, "big") for bound in (groups.start, groups.stop))
        return self._store.items_between(first, end)

    def pages_of(self, name: str, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Name and content, as it is stored, of each page or entry of the state ``name`` in the restored version whose
        name begins with ``first``, ascending."""
        prefix = state_prefix(name)
        begin = prefix + first
        found = self._store.items_between(begin, end_of(begin))
        return ((key[len(prefix) :], value) for key, value in found)

    def stored_in(self, name: str, keys: Sequence[bytes], pages: bool = False) -> list[bytes | None]:
        """The values of ``keys`` in the state ``name``, as they are stored; ``None`` for an absent key."""
        layout = KeyLayout(state_prefix(name), None if pages else self._max_parallelism)
        return [] if not keys else self._store.get_many(layout.stored(keys))

    def write_base(self, checkpoint: int, chunks: Iterator[Chunk]) -> StateFile | None:
        """A base of ``chunks``, in the work directory and in storage, for ``restore``; ``None`` without entries.

        Raises ``StateError`` when disk or storage fails.
        """
        name = f"{self._folder.name}/{self.generation}-{checkpoint}-0.sst"  # versions count from 1
        path = self._versions.local(name)
        entries = write_sst(chunks, path)
        if not entries:
            remove_file(path)
            return None
        self._storage.upload(path, name)
        return describe(path, name, "base", entries)

    # -- restoring ------------------------------------------------------------------------------------------------

    def restore(self, handle: SnapshotHandle) -> None:
        """Become what ``handle`` says, forgetting everything else.

        Raises ``CorruptState`` when a file is missing or damaged in storage, ``StateError`` when storage or disk fails.
        """
        if not (handle.files and handle.files == self._held):
            self._reload(handle.files)
        self._held = None
        self._last_checkpoint = handle.checkpoint
        self._restored = dict(handle.states)
        self._versions.believe(handle.states)
        states, self._states = self._states, {}
        for name, state in states.items():
            state.rebind(self._store, 0)
            self._adopt(name, state)

    def _reload(self, files: Sequence[StateFile]) -> None:
        """A new store, or the one that has just been opened, with the content of ``files``."""
        self._keep_only(files)
        paths = [self._local_copy(file) for file in files]
        self._versions.close()
        if not self._store.is_new:
            self._store.destroy()
            self._store = self._open_store()
        self._store.ingest_copies(paths, counted=[counted_keys(file.clip) for file in files])
        self._store.check_format()
        self._versions = self._open_versions(files)
        remove_folder(self._folder / LEFT_FOLDER)  # what this version has not used, no later one will

    def _keep_only(self, files: Sequence[StateFile]) -> None:
        """Remove local files of older generations that this version does not need."""
        needed = {file.name.rpartition("/")[2] for file in files}
        for path in self._files_folder.iterdir():
            generation = path.name.partition("-")[0]
            if path.name not in needed and generation.isdigit() and int(generation) < self.generation:
                remove_file(path)

    def _local_copy(self, file: StateFile) -> Path:
        path = self._versions.local(file.name)
        for candidate in (path, *(self._folder / other / path.name for other in (REPLICA_FOLDER, LEFT_FOLDER))):
            with contextlib.suppress(FileNotFoundError, CorruptState):
                file.check(file_chunks(candidate), str(candidate))
                if candidate != path:
                    link_or_copy(candidate, path)
                return path
        self._storage.fetch(file, path)
        return path

    def close(self, beside: Aside | None = None) -> None:
        """Stop and remove the RocksDB; local files stay for the next generation. A persist under way fails soon.

        ``beside``: has the files removed somewhere else; for a caller who cannot wait for that.
        """
        self._versions.close()
        self._store.destroy(beside)


def _describe(state: State) -> str:
    return f"number state of {state.dtype}" if isinstance(state, NumberState) else f"{state.form or state.kind} state"


def _part_of(state: State) -> KeyedPart:
    return KeyedPart(
        kind=state.kind,
        keys=state.live_keys,
        dtype=state.dtype if isinstance(state, NumberState) else state.form,
        counted=state.counted,
    )
