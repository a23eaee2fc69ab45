"""The versions of one subtask's state as files: written, ingested, uploaded, in the order they were frozen.

Rules:
- every frozen snapshot (or spill) is queued; writing one first writes all that were frozen before it, so a version is
  always the files of the versions before it and its own. What could not be written stays queued: the next thread that
  writes tries again, or the subtask's thread thaws it into the next snapshot. After ``MOST_FAILURES`` in a row it thaws
  the whole queue, which bounds it;
- a version's file list is fixed when it is written: later spills and newer bases never change an older handle;
- a file is listed once RocksDB has it, and uploaded at the latest by the first handle that names it;
- a new base is what RocksDB holds right after an ingest; it replaces the files up to that one in versions to come, and
  names them: a replica that has these needs no base to continue. No version waits for a base (``rebase``);
- file names carry generation and checkpoint, and are never used twice; a file that a later checkpoint is the first
  to name carries that number or one after it, so that garbage collection can rely on it;
- local copies (hard links; RocksDB has its own) stay while the newest complete checkpoint, or anything newer, names
  them.

Locks, taken in this order: ``_persist_lock`` (one persist at a time), ``_base_lock`` (a base is being written),
``_write_lock`` (one write and ingest at a time), ``_lock`` (the queue and the lists; never held for long: the only one
that the synchronous part of a snapshot takes).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from flinkplus.errors import StateError
from flinkplus.protocol.snapshot.files import FileKind, StateFile
from flinkplus.protocol.snapshot.handle import KeyedPart
from flinkplus.state.durable.state_files import StateTransfers
from flinkplus.state.keycount import KeyCount
from flinkplus.state.memtable import FrozenPart
from flinkplus.state.removal import remove_file
from flinkplus.state.sst_format import WRITE_CHUNK_ENTRIES, Chunk, describe, write_sst
from flinkplus.state.store import SubtaskStore

FIRST_LEAD = 16
"""Checkpoints that may pass while a base is made; twice as many after each time that it was too few."""
BASE_CHUNK_BYTES = 256 << 10
"""Maximum bytes of values read from RocksDB at a time, as ``WRITE_CHUNK_ENTRIES``: the interpreter lock is held."""
FIRST_CHUNK_ENTRIES = 256
MOST_FAILURES = 2
"""To write the oldest version that is queued; one failure alone does not decline other snapshots."""
LOCAL_HANDLES = 2
"""Maximum number of incomplete handles of which local copies are kept (storage has all)."""


@dataclass(frozen=True, slots=True)
class BasePolicy:
    """When a new base, for which every standby opens a new RocksDB, is due: deltas outweigh the base ``ratio`` times
    (and ``min_bytes``), or are too many. So it is for files that count in part: they are shared, and hold more.

    A delta that would hold most keys is written as a base once the deltas have half the size of the base and at least
    ``full_bytes``, or are ``full_deltas`` files.
    """

    ratio: float = 2.0
    min_bytes: int = 4 << 20
    max_deltas: int = 32
    full_bytes: int = 1 << 20
    full_deltas: int = 12

    def due(self, files: Sequence[StateFile]) -> bool:
        base, deltas, count = _sizes(files)
        if any(file.clip is not None for file in files):
            return True
        return count > self.max_deltas or deltas > max(self.min_bytes, self.ratio * base)

    def full_due(self, files: Sequence[StateFile]) -> bool:
        """Whether a version of most keys becomes a base."""
        base, deltas, count = _sizes(files)
        return count >= self.full_deltas or deltas >= max(self.full_bytes, base // 2)


def _sizes(files: Sequence[StateFile]) -> tuple[int, int, int]:
    """Bytes of the bases, bytes of the deltas, and number of the deltas."""
    deltas = [file.bytes for file in files if file.kind == "delta"]
    return sum(file.bytes for file in files) - sum(deltas), sum(deltas), len(deltas)


@dataclass(slots=True, eq=False)
class PendingSnapshot:
    """A frozen version on its way to disk. ``checkpoint`` is that of its file names; a spill never has a handle.

    ``full``: the parts hold every key there is. ``files`` is set when it is written.
    """

    checkpoint: int
    parts: list[FrozenPart]
    full: bool = False
    spill: bool = False
    keys: int = 0
    states: dict[str, KeyedPart] = field(default_factory=dict)
    operator_state: str = "{}"
    sync_ms: float = 0.0
    written: bool = False
    failed: bool = False
    files: tuple[StateFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Persisted:
    """What a persist did: the version's files, bytes uploaded by it, and how long it took."""

    files: tuple[StateFile, ...]
    bytes_new: int
    async_ms: float


class StateVersions:
    """Queue, files and uploads of one subtask in one generation.

    ``store`` holds exactly ``files``, all of them in storage already. ``folder``: local files, kept over generations.
    ``prefix``: what file names begin with in storage.
    """

    def __init__(
        self,
        store: SubtaskStore,
        files: Sequence[StateFile],
        folder: Path,
        storage: StateTransfers,
        prefix: str,
        generation: int,
        policy: BasePolicy,
    ) -> None:
        self._store = store
        self._folder = folder
        self._storage = storage
        self._prefix = prefix
        self._generation = generation
        self._policy = policy
        self._persist_lock = threading.Lock()
        self._base_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._counter = 0
        self._queue: deque[PendingSnapshot] = deque()
        self._failures = 0  # in a row, to write the first of the queue
        self._writers = 0  # threads that write what is queued, or are about to
        self._unfinished: list[PendingSnapshot] = []
        self._files = tuple(files)
        self._uploaded = {file.name for file in files}
        self._local_names = {file.name for file in files}
        self._handles: dict[int, tuple[StateFile, ...]] = {}
        self._complete = 0
        self._newest = 0
        self._handed_out = 0
        self._lead = FIRST_LEAD
        self._believed: Mapping[str, KeyedPart] = {}
        self._miscounts: dict[str, int] = {}

    def close(self) -> None:
        """Stop: a persist under way fails soon with ``StateError``, and from now on nothing here uses the store."""
        self._closed.set()
        with self._base_lock, self._write_lock, self._lock:
            self._queue.clear()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StateError(f"state of {self._prefix}, generation {self._generation}, was closed: snapshot abandoned")

    # -- the subtask's thread -------------------------------------------------------------------------------------

    def enqueue(self, pending: PendingSnapshot) -> None:
        """A version was frozen."""
        with self._lock:
            self._newest = max(self._newest, pending.checkpoint)
            self._queue.append(pending)
            if not pending.spill:
                self._unfinished.append(pending)

    def believe(self, states: Mapping[str, KeyedPart]) -> None:
        """The numbers of keys of what the store holds, counted or not."""
        with self._lock:
            self._believed = states

    def take_miscounts(self) -> dict[str, int]:
        """By how many keys the numbers that were not counted are too high, by state, once it is known."""
        with self._lock:
            found, self._miscounts = self._miscounts, {}
        return found

    def take_failed(self) -> list[PendingSnapshot]:
        """Versions to thaw: the whole queue, when all in it failed or writing it fails repeatedly; otherwise none."""
        with self._lock:
            hopeless = self._failures >= MOST_FAILURES or all(pending.failed for pending in self._queue)
            if self._writers or not hopeless:
                return []
            failed = list(self._queue)
            self._queue.clear()
            self._failures = 0
            return failed

    def write_through(self, pending: PendingSnapshot) -> None:
        """Write and ingest everything frozen up to and including ``pending``."""
        with self._lock:
            if not pending.written and pending not in self._queue:
                raise StateError(
                    f"snapshot {pending.checkpoint} of {self._prefix} failed before; a newer one has its changes"
                )
            self._writers += 1
        try:
            with self._write_lock:
                while not pending.written:
                    self._check_open()
                    self._write_first(pending)
        finally:
            with self._lock:
                self._writers -= 1

    def _write_first(self, wanted: PendingSnapshot) -> None:
        """Write the oldest version that is queued, on the way to ``wanted``."""
        head = self._queue[0]
        try:
            self._write(head)
        except BaseException:
            with self._lock:
                head.failed = wanted.failed = True
                self._failures += 1
            raise
        with self._lock:
            self._queue.popleft()
            self._failures = 0

    def complete(self, checkpoint: int) -> None:
        """``checkpoint`` is complete: removes local copies that only older ones name. No effect on a closed state."""
        if self._closed.is_set():
            return
        with self._lock:
            self._handles = {number: files for number, files in self._handles.items() if number >= checkpoint}
            self._complete = max(self._complete, checkpoint)
            self._unfinished = [pending for pending in self._unfinished if pending.checkpoint >= checkpoint]
        self._prune()

    def _prune(self) -> None:
        """Remove local copies that nothing to come needs, and of handles not yet complete all but the newest few."""
        with self._lock:
            for number in sorted(self._handles.keys() - {self._complete})[:-LOCAL_HANDLES]:
                del self._handles[number]
            lists = [self._files, *self._handles.values(), *(pending.files for pending in self._unfinished)]
            needed = {file.name for files in lists for file in files}
            gone = self._local_names - needed
            self._local_names &= needed
            self._uploaded &= needed
        for name in sorted(gone):
            remove_file(self.local(name))

    def full_due(self) -> bool:
        """Whether the next version, if it holds most keys, becomes a base."""
        with self._lock:
            return self._policy.full_due(self._files)

    def total_bytes(self) -> int:
        """Bytes of the files that make up the newest written version."""
        return sum(file.bytes for file in self._files)

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self, pending: PendingSnapshot) -> None:
        file = None
        self._store.be_active()  # not before: right after a restore there is better use for the processors
        if pending.parts:
            kind: FileKind = "base" if pending.full or not self._files else "delta"
            file = self._describe(*self._write_file(self._part_chunks(pending.parts), pending.checkpoint), kind)
            try:
                self._store.ingest_copies([self.local(file.name)])
            except BaseException:
                self.local(file.name).unlink(missing_ok=True)
                raise
            for part in pending.parts:
                part.release()
        with self._lock:
            if file is not None:
                # Upon what is listed now: a new base may have replaced what was when the writing began.
                self._files = (file,) if file.kind == "base" else (*self._files, file)
                self._local_names.add(file.name)
            pending.files = self._files
            self._believed = pending.states
            pending.parts = []
            pending.written = True

    def _describe(self, name: str, entries: int, kind: FileKind, replaces: tuple[StateFile, ...] = ()) -> StateFile:
        path = self.local(name)
        try:
            return describe(path, name, kind, entries, replaces)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StateError(f"state file {path} cannot be read: {error}") from error

    def _write_file(self, chunks: Iterator[Chunk], checkpoint: int) -> tuple[str, int]:
        """A new file; its name, and how many entries it has."""
        with self._lock:
            self._counter += 1
            name = f"{self._prefix}/{self._generation}-{checkpoint}-{self._counter}.sst"
        return name, write_sst(chunks, self.local(name))

    def local(self, name: str) -> Path:
        """Where the local copy of a state file is."""
        return self._folder / name.rpartition("/")[2]

    def _part_chunks(self, parts: Iterable[FrozenPart]) -> Iterator[Chunk]:
        for part in sorted(parts, key=lambda part: part.prefix):
            for chunk in part.sorted_chunks():
                self._check_open()
                yield chunk

    # -- persisting -----------------------------------------------------------------------------------------------

    def persist(self, pending: PendingSnapshot) -> Persisted:
        """Write, ingest, upload. On failure the changes stay queued, or listed, for the next snapshot."""
        begun = time.perf_counter()
        try:
            with self._persist_lock:
                self._check_open()
                self.write_through(pending)
                sent = self._upload(pending.files)
                with self._lock:
                    self._handles[pending.checkpoint] = pending.files
                    self._handed_out = max(self._handed_out, pending.checkpoint)
        finally:
            with self._lock:
                if pending in self._unfinished:
                    self._unfinished.remove(pending)
            self._prune()
        self._check_open()
        return Persisted(pending.files, sent, (time.perf_counter() - begun) * 1e3)

    # -- bases ----------------------------------------------------------------------------------------------------

    def rebase(self) -> bool:
        """Write what RocksDB holds as a base, if one is due, and name it in versions to come; true when that was done.

        Raises ``StateError`` when it fails; the versions are as before then.
        """
        with self._lock:
            due, number = self._policy.due(self._files), self._newest + self._lead
        if not due:
            return False
        with self._base_lock:
            with self._write_lock:
                self._check_open()
                replaced, believed = self._files, self._believed
                entries = self._store.items()
            count = KeyCount(believed)
            try:
                name, written = self._write_file(count.counted(self._base_chunks(entries)), number)
            finally:
                del entries
            with self._lock:
                self._miscounts = count.miscounts()
        try:  # from here on, ``close`` need not wait
            file = self._describe(name, written, "base", replaced)
            self._check_open()
            self._storage.upload(self.local(file.name), file.name)
        except BaseException:
            remove_file(self.local(name))
            raise
        return self._adopt_base(file, replaced, number)

    def _adopt_base(self, file: StateFile, replaced: tuple[StateFile, ...], number: int) -> bool:
        """Let ``file`` stand for what it replaces, unless the files are others by now, or storage may have lost it."""
        with self._persist_lock, self._lock:
            in_time = self._handed_out < number
            if in_time and self._files[: len(replaced)] == replaced:
                self._files = (file, *self._files[len(replaced) :])
                self._local_names.add(file.name)
                self._uploaded.add(file.name)
                return True
        if not in_time:  # after so many checkpoints it may have been collected as garbage
            self._lead *= 2
        remove_file(self.local(file.name))
        return False

    def _base_chunks(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[Chunk]:
        count = FIRST_CHUNK_ENTRIES
        try:
            while batch := list(islice(entries, count)):
                self._check_open()
                yield [key for key, _ in batch], [value for _, value in batch]
                fitting = len(batch) * BASE_CHUNK_BYTES // max(1, sum(len(value) for _, value in batch))
                count = max(1, min(fitting, WRITE_CHUNK_ENTRIES))
        finally:
            del entries  # also when an error keeps this frame

    def _upload(self, files: Sequence[StateFile]) -> int:
        sent = 0
        for file in files:
            if file.name not in self._uploaded:
                self._check_open()
                self._storage.upload(self.local(file.name), file.name)
                with self._lock:
                    self._uploaded.add(file.name)
                sent += file.bytes
        return sent
