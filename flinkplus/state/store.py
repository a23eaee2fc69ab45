"""One subtask's RocksDB: point reads, ingestion of sorted files, ordered iteration.

Rules:
- nothing is ever put key by key: files are ingested whole, in order, and later ones win; so there is no write-ahead
  log, and the store is scratch: durable state is the files;
- ``FORMAT_KEY`` is the store's own and sorts before every other key; readers never see it;
- an iterator sees the store as it was when the iterator was made (a RocksDB iterator pins its version), also while
  files are ingested. ``rocksdict``'s ``Snapshot`` is not used: its point reads honour the snapshot, its iterators
  were seen not to.

Any thread may read while another ingests (rocksdict releases the interpreter lock for both). ``close`` waits for
nobody: its caller makes sure that no other call is running.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
)

from flinkplus.errors import CorruptState, StateError

STATE_FORMAT = 1
FORMAT_KEY = b"\x00"
FIRST_KEY = b"\x01"
FORMAT_VALUE = json.dumps({"format": STATE_FORMAT}).encode()
BLOCK_CACHE_BYTES = 8 << 20
BLOOM_BITS_PER_KEY = 10


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


def _store_options() -> Options:
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
    options.set_manifest_preallocation_size(64 << 10)
    return options


class SubtaskStore:
    """RocksDB in ``directory``, which is created and must not hold another store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(directory), _store_options())
        except Exception as error:  # rocksdict has no error type of its own for this
            raise StateError(f"state store {directory} cannot be opened: {error}") from error
        self._ingest_options = IngestExternalFileOptions()
        self._ingest_options.set_move_files(True)
        self.empty = True

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of ``keys``, in order; None where there is none. About 1 us a key."""
        if self.empty or not keys:
            return [None] * len(keys)
        try:
            found = cast("list[bytes | None]", self._db.get(cast("list[Any]", keys)))
        except DbClosedError as error:
            raise StateError(f"state store {self.directory} was closed") from error
        except KeyError:  # a key that is no bytes object: the caller's mistake, said as it is
            raise
        except Exception as error:
            raise StateError(f"state store {self.directory} cannot be read: {error}") from error
        return found

    def ingest(self, paths: Sequence[Path]) -> None:
        """Take in sorted files, later ones over earlier ones, all or none (1-2 ms). The files are moved away."""
        if not paths:
            return
        try:
            self._db.ingest_external_file([str(path) for path in paths], self._ingest_options)
        except DbClosedError as error:
            raise StateError(f"state store {self.directory} was closed") from error
        except Exception as error:
            raise StateError(f"state store {self.directory} cannot ingest {paths[0]}: {error}") from error
        self.empty = False

    def check_format(self) -> None:
        """Raise ``CorruptState`` when the ingested files are of a format this version does not know."""
        if self.empty:
            return
        value = self.get_many([FORMAT_KEY])[0]
        if value != FORMAT_VALUE:
            raise CorruptState(f"state in {self.directory} has format {value!r}, known is {FORMAT_VALUE!r}")

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries by ascending key, as of this call."""
        if self.empty:
            return iter(())
        try:
            entries = self._db.items(from_key=FIRST_KEY)
        except DbClosedError as error:
            raise StateError(f"state store {self.directory} was closed") from error
        return cast("Iterator[tuple[bytes, bytes]]", entries)

    def close(self) -> None:
        """Close, if it is open; the directory stays. Iterators must be gone before."""
        with contextlib.suppress(DbClosedError):
            self._db.close()

    def destroy(self) -> None:
        """Close and remove the directory."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)
