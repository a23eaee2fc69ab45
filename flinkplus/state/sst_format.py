"""State files: one sorted SST of RocksDB per delta or base, and its description.

Rules:
- an SST holds one reserved entry (``FORMAT_KEY``) with the format version, then entries in strictly ascending order
  of key; a deleted key is a RocksDB tombstone, so ingesting the file also deletes;
- a file is written under a temporary name and renamed when it is whole; it never changes afterwards (ingestion was
  seen to leave its bytes alone, so hard links of it are safe);
- the writer holds the interpreter lock for at most ``WRITE_CHUNK_ENTRIES`` entries (about 0.5 ms), and never while it
  waits for the disk (``spool``).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from rocksdict import SstFileWriter

from flinkplus.errors import StateError
from flinkplus.protocol.snapshot.files import FileKind, StateFile, digest_of
from flinkplus.state.file_system import file_chunks
from flinkplus.state.spool import Spool
from flinkplus.state.store import FORMAT_KEY, FORMAT_VALUE, sst_options

WRITE_CHUNK_ENTRIES = 2048
YIELD_S = 50e-6

Chunk = tuple[list[bytes], list[bytes | None]]


def give_way() -> None:
    """Let the stream's thread have the interpreter: a plain release could be taken back before it wakes."""
    time.sleep(YIELD_S)


def write_sst(chunks: Iterable[Chunk], path: Path) -> int:
    """Write sorted entries as an SST at ``path`` and return how many there were.

    ``chunks``: lists of keys with lists of values (None: tombstone), ascending over all chunks. Raises ``StateError``
    for a disk or a key order that RocksDB refuses; nothing is left behind then.
    """
    temporary = path.with_name(path.name + ".tmp")
    writer = SstFileWriter(sst_options())
    entries = 0
    try:
        with Spool(temporary) as spool:
            writer.open(spool.name)
            writer[FORMAT_KEY] = FORMAT_VALUE
            for keys, values in chunks:
                _write_chunk(writer, keys, values)
                entries += len(keys)
                spool.move_on()
                give_way()
            writer.finish()
            spool.move_on()
        os.replace(temporary, path)
    except Exception as error:
        temporary.unlink(missing_ok=True)
        if type(error) is not Exception and not isinstance(error, OSError):
            raise  # rocksdict reports what RocksDB refuses as a bare Exception
        raise StateError(f"state file {path} cannot be written: {error}") from error
    return entries


def _write_chunk(writer: SstFileWriter, keys: list[bytes], values: list[bytes | None]) -> None:
    if None not in values:
        deque(map(writer.__setitem__, keys, values), maxlen=0)
        return
    for key, value in zip(keys, values, strict=True):
        if value is None:
            del writer[key]
        else:
            writer[key] = value


def describe(path: Path, name: str, kind: FileKind, entries: int, replaces: tuple[StateFile, ...] = ()) -> StateFile:
    """The identity card of the file at ``path``."""
    size, checksum = digest_of(file_chunks(path))
    return StateFile(name, kind, entries, size, checksum, replaces)
