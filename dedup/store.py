"""The digests of messages that a filter does not hold in memory: RocksDB, one for a process.

Rules: they are lost with the process; a successor starts with those of its version. So there is no write-ahead log, and
no call waits for the disk. One thread for each filter; filters may share a store.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from rocksdict import DbClosedError, Options, Rdict, WriteOptions


class DedupStoreError(Exception):
    """The store cannot be read or written."""


class DigestStore(Protocol):
    """Bytes by key. Raises ``DedupStoreError``."""

    def put(self, key: bytes, value: bytes, /) -> None: ...

    def get(self, key: bytes, /) -> bytes | None: ...

    def delete(self, keys: Collection[bytes], /) -> None:
        """Forget these keys."""


class RocksStore:
    """RocksDB in ``directory``, which is made, and goes with ``close``."""

    def __init__(self, directory: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(4 << 20)
        options.set_max_background_jobs(1)
        options.set_keep_log_file_num(1)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        self._directory = directory
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(directory), options)
        except Exception as error:  # rocksdict has no error type of its own for this
            raise DedupStoreError(f"the store of message IDs {directory} cannot be opened: {error}") from error
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[assignment,method-assign]  # a property, unlike in its stub
        self._db.set_write_options(unlogged)
        self._write = unlogged

    def put(self, key: bytes, value: bytes) -> None:
        try:
            self._db.put(key, value)
        except Exception as error:
            raise self._failed("written", error) from error

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._failed("read", error) from error
        return found

    def delete(self, keys: Collection[bytes]) -> None:
        # One by one: each ``delete_range`` stays in the memtable and makes every later read of it slower.
        try:
            for key in keys:
                self._db.delete(key, write_opt=self._write)
        except Exception as error:
            raise self._failed("written", error) from error

    def _failed(self, what: str, error: Exception) -> DedupStoreError:
        if isinstance(error, DbClosedError):
            return DedupStoreError(f"the store of message IDs {self._directory} was closed")
        return DedupStoreError(f"the store of message IDs {self._directory} cannot be {what}: {error}")

    def close(self) -> None:
        """Close, and remove the directory."""
        self._db.close()
        shutil.rmtree(self._directory, ignore_errors=True)
