"""One subtask's RocksDB: point reads, ingestion of sorted files, ordered iteration.

Rules:
- nothing is ever put key by key: files are ingested whole, in order, and later ones win. So there is no write-ahead
  log, and nothing of the store must survive the process: durable state is the files;
- what RocksDB would sync to disk (its manifest, names of files) is in shared memory, where the system has it; the files
  themselves are in the directory, and the names link to them;
- ``FORMAT_KEY`` is the store's own and sorts before every other key; readers never see it;
- a store can be opened *quiet*: nothing is compacted until ``be_active``, so a standby uses no processor time;
- files of which a part counts are taken in whole, and what does not count is deleted by ranges of keys, which takes a
  millisecond whatever their size. So a store holds what counts, and a new base of it is free of everything else;
- an iterator sees the store as it was when the iterator was made (a RocksDB iterator pins its version), also while
  files are ingested. (``rocksdict``'s ``Snapshot`` is not used: its iterators were seen not to honour the snapshot.)
- rocksdict keeps the interpreter lock while a store is opened, takes in files, or is read. So no call of RocksDB here
  may wait for the disk: all threads of the process would. It syncs the files that it ingests: no work for a file in
  shared memory, and little for one that was synced before;
- any thread may read while another ingests. ``close`` does not wait: its caller makes sure that no other call runs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    DBPath,
    IngestExternalFileOptions,
    Options,
    Rdict,
)

from flinkplus.errors import CorruptState, StateError
from flinkplus.protocol.vocabulary.ranges import joined, without
from flinkplus.state import volatile
from flinkplus.state.file_system import link_or_copy, sync_path
from flinkplus.state.removal import remove_file, remove_folder

Aside: TypeAlias = Callable[[Callable[[], None]], object]
"""Takes work that no thread waits for."""
KeyRanges: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Ranges of keys, see ``protocol.vocabulary.ranges``."""

STATE_FORMAT = 2
"""2: the state of keys is sorted by key group."""
FORMAT_KEY = b"\x00"
FIRST_KEY = b"\x01"
END_KEY = b"\xff\xff"
"""Behind every key: a key begins with the length of a name and the name in UTF-8, which has no such byte."""
EVERYTHING: KeyRanges = ((FIRST_KEY, END_KEY),)
FORMAT_VALUE = json.dumps({"format": STATE_FORMAT}).encode()
BLOCK_CACHE_BYTES = 8 << 20
BLOOM_BITS_PER_KEY = 10
NO_LIMIT_BYTES = 1 << 60
TIDY_AFTER_FILES = 4
SWIFT_BYTES = 8 << 20
SHARE_OF_OTHERS = 0.5
"""Share of the shared memory for a store, and for a process, when no thread waits for it."""


@functools.cache
def _block_cache() -> Cache:
    """One cache for every store of the process: a slot's memory does not grow with its subtasks."""
    return Cache(BLOCK_CACHE_BYTES)


def _table_options(cache: Cache | None) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_format_version(5)
    if cache is None:
        table.disable_cache()
    else:
        table.set_block_cache(cache)
        # Index and filter belong to the open file, and go with it. In the cache those of every file that ever was would
        # stay until it is full: a file a second.
        table.set_cache_index_and_filter_blocks(False)
    return table


def sst_options() -> Options:
    """Options of a file writer (its tables decide bloom filter and compression of what is read later)."""
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(_table_options(None))
    options.set_compression_type(DBCompressionType.lz4())
    return options


def _store_options(quiet: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(_table_options(_block_cache()))
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(2)
    options.set_write_buffer_size(1 << 20)
    options.set_max_file_opening_threads(1)
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(64 << 10)
    options.set_max_manifest_file_size(256 << 10)
    options.set_manifest_preallocation_size(64 << 10)
    options.set_disable_auto_compactions(quiet)
    return options


class SubtaskStore:
    """RocksDB in ``directory``, which is created and must not hold another store.

    ``quiet``: nothing is compacted until ``be_active``. ``lazy``: nothing is created before the first file is taken in,
    for a state that most likely gets none; one thread only. ``keys_read``: keys that were looked up so far.
    """

    def __init__(self, directory: Path, quiet: bool = False, lazy: bool = False) -> None:
        self.directory = directory
        self._quiet = quiet
        self._names: Path | None = None
        self._rocks: Rdict | None = None
        self._taken = 0
        self._in_memory = 0
        self._covered: KeyRanges = ()  # the keys for which a file counts
        self._ingest_options = IngestExternalFileOptions()
        self._ingest_options.set_move_files(True)
        self.empty = True
        self.keys_read = 0
        if not lazy:
            self._rocks = self._open()

    @property
    def is_new(self) -> bool:
        """Whether no file was ever given to it."""
        return self.empty and not self._taken and not self._covered

    @property
    def _db(self) -> Rdict:
        if self._rocks is None:
            self._rocks = self._open()
        return self._rocks

    def _open(self) -> Rdict:
        self._names = volatile.make_folder()
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            return self._opened()
        except Exception as error:  # rocksdict has no error type of its own for this
            if self._names is not None:
                shutil.rmtree(self._names, ignore_errors=True)
            raise StateError(f"state store {self.directory} cannot be opened: {error}") from error

    def _opened(self) -> Rdict:
        options = _store_options(self._quiet)
        if self._names is None:
            return Rdict(str(self.directory), options)
        self.directory.mkdir(exist_ok=True)
        # Ingested files get their name in the first path; what compaction writes goes to the first one with room.
        options.set_db_paths([DBPath(str(self._names), 0), DBPath(str(self.directory), NO_LIMIT_BYTES)])
        return Rdict(str(self._names), options)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of ``keys``, in order; ``None`` for an absent key. About 1 us a key."""
        if self.empty or not keys:
            return [None] * len(keys)
        self.keys_read += len(keys)
        try:
            found = cast("list[bytes | None]", self._db.get(cast("list[Any]", keys)))
        except KeyError:  # a key that is no bytes object: the caller's mistake
            raise
        except Exception as error:
            raise self._failed("be read", error) from error
        return found

    def _failed(self, what: str, error: Exception) -> StateError:
        if isinstance(error, DbClosedError):
            return StateError(f"state store {self.directory} was closed")
        return StateError(f"state store {self.directory} cannot {what}: {error}")

    def ingest(self, paths: Sequence[Path], swift: bool = False, counted: Sequence[KeyRanges] = ()) -> None:
        """Take in sorted files, later ones over earlier ones (1-2 ms). The files are moved away.

        ``counted``: the keys of each file that count; by default all. What a file has of other keys may neither be in
        earlier files that count for them (``protocol.snapshot.division``) nor stay here. All files are taken in, or
        none, or, where not all of them counts, some: the store is of no use after such an error.

        Small files go to shared memory, if there is room, and stay there until they are compacted, so that no thread
        waits for a busy disk: at most ``SWIFT_BYTES`` of a store, and ``volatile.MAX_BYTES`` of a process; half of that
        if not ``swift``.
        """
        first = 0
        stray = False
        for at, ranges in enumerate(counted):
            fresh = without(ranges, self._covered)
            if stray and fresh:
                self._ingest(paths[first:at], swift)
                self._delete(fresh)
                first = at
            stray = stray or ranges != EVERYTHING
            self._covered = joined((*self._covered, *ranges))
        self._ingest(paths[first:], swift)
        if stray:
            self._delete(without(EVERYTHING, self._covered))
        if not counted:
            self._covered = EVERYTHING

    def _delete(self, ranges: KeyRanges) -> None:
        """Delete all keys in ``ranges``, now and not in the middle of a later ingest."""
        try:
            for first, end in ranges:
                self._db.delete_range(cast(Any, first), cast(Any, end))
            if ranges:
                self._db.flush()
        except Exception as error:
            raise self._failed("delete what does not count", error) from error

    def _ingest(self, paths: Sequence[Path], swift: bool) -> None:
        if not paths:
            return
        rocks = self._db  # opened before the files are taken
        sources = self._take(paths, self._names, swift)
        try:
            rocks.ingest_external_file([str(path) for path in sources], self._ingest_options)
        except Exception as error:
            raise self._failed(f"ingest {paths[0]}", error) from error
        finally:
            if self._names is not None:
                self._tidy(self._names, sources)
        self.empty = False

    def ingest_copies(self, paths: Sequence[Path], swift: bool = False, counted: Sequence[KeyRanges] = ()) -> None:
        """As ``ingest``; the files stay."""
        links = [path.with_suffix(".ingest") for path in paths]
        try:
            for path, link in zip(paths, links, strict=True):
                link_or_copy(path, link)
            self.ingest(links, swift, counted)
        finally:
            for link in links:
                link.unlink(missing_ok=True)

    def _take(self, paths: Sequence[Path], names: Path | None, swift: bool) -> list[Path]:
        """Where RocksDB finds the files, and finds them synced, or in memory."""
        try:
            size, share = sum(path.stat().st_size for path in paths), 1.0 if swift else SHARE_OF_OTHERS
            fits = self._in_memory + size <= share * SWIFT_BYTES
            if names is not None and fits and volatile.reserve(size, share):
                self._in_memory += size
                return [self._copy(path, names) for path in paths]
            for path in paths:
                sync_path(path)
            return list(paths) if names is None else [self._move(path, names) for path in paths]
        except OSError as error:
            raise self._failed(f"take {paths[0]}", error) from error

    def _copy(self, path: Path, names: Path) -> Path:
        """A copy of a file in memory, in its place."""
        self._taken += 1
        copy = names / f"taken-{self._taken}"
        shutil.copyfile(path, copy)
        path.unlink()
        return copy

    def _move(self, path: Path, names: Path) -> Path:
        """A name for RocksDB to move on, of a file that is moved into the directory."""
        self._taken += 1
        link = names / f"taken-{self._taken}"
        target = self.directory.absolute() / f"taken-{self._taken}.sst"
        path.replace(target)
        link.symlink_to(target)
        return link

    def _tidy(self, names: Path, sources: Sequence[Path]) -> None:
        """Remove names that RocksDB did not take; every few files, also files whose names it has removed."""
        for link in sources:
            link.unlink(missing_ok=True)
        if self._taken % TIDY_AFTER_FILES >= len(sources):
            return
        live, in_memory = set(), 0
        for name in names.glob("*.sst"):
            with contextlib.suppress(OSError):  # RocksDB removes names at any time
                if name.is_symlink():
                    live.add(os.readlink(name))
                else:
                    in_memory += name.stat().st_size
        for path in self.directory.absolute().glob("taken-*.sst"):
            if str(path) not in live:
                remove_file(path)
        volatile.release(self._in_memory - in_memory)
        self._in_memory = in_memory

    def be_active(self) -> None:
        """A quiet store begins to compact what it has taken in."""
        if not self._quiet:
            return
        try:
            self._db.set_options({"disable_auto_compactions": "false"})
        except Exception as error:
            raise self._failed("be made active", error) from error
        self._quiet = False

    def check_format(self) -> None:
        """Raise ``CorruptState`` when the ingested files are of a format this version does not know."""
        if self.empty:
            return
        value = self.get_many([FORMAT_KEY])[0]
        if value != FORMAT_VALUE:
            raise CorruptState(f"state in {self.directory} has format {value!r:.100}, known is {FORMAT_VALUE!r}")

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries by ascending key, as of this call."""
        if self.empty:
            return iter(())
        try:
            return cast("Iterator[tuple[bytes, bytes]]", self._db.items(from_key=FIRST_KEY))
        except DbClosedError as error:
            raise self._failed("be read", error) from error

    def items_between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries with ``first <= key < end``, ascending, as of this call."""
        if self.empty:
            return iter(())
        try:
            found = cast("Iterator[tuple[bytes, bytes]]", self._db.items(from_key=cast(Any, first)))
        except DbClosedError as error:
            raise self._failed("be read", error) from error
        return takewhile(lambda entry: entry[0] < end, found)

    def close(self) -> None:
        """Close, if it is open; the directory stays. Iterators must be gone before."""
        if self._rocks is not None:
            with contextlib.suppress(DbClosedError):
                self._rocks.close()

    def destroy(self, beside: Aside | None = None) -> None:
        """Close and remove the directory, which takes long for a large state (250 MB: 0.1 s); ``beside`` runs that."""
        self.close()
        if beside is None:
            remove_folder(self.directory)
        else:
            beside(lambda: remove_folder(self.directory))
        if self._names is not None:
            shutil.rmtree(self._names, ignore_errors=True)
            volatile.release(self._in_memory)
            self._in_memory = 0
