"""State files: one sorted SST of RocksDB per delta or base, with its identity card.

Rules:
- an SST holds one reserved entry (``FORMAT_KEY``) with the format version, then entries in strictly ascending order
  of key; a deleted key is a RocksDB tombstone, so ingesting the file also deletes;
- a file is written under a temporary name and renamed when it is whole; it never changes afterwards (ingestion was
  seen to leave its bytes alone, so hard links of it are safe);
- the writer holds the interpreter lock for at most ``WRITE_CHUNK_ENTRIES`` entries (about 0.5 ms) and then sleeps a
  moment, so that the thread of the stream can go on; it never waits for the disk meanwhile (see ``spool``).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rocksdict import SstFileWriter

from flinkplus.errors import CorruptState, StateError
from flinkplus.path_names import STATE_FILE_PARTS, checked_name
from flinkplus.printable import printable
from flinkplus.state.files import file_chunks
from flinkplus.state.spool import Spool
from flinkplus.state.store import FORMAT_KEY, FORMAT_VALUE, sst_options

CHECKSUM_BYTES = 20
WRITE_CHUNK_ENTRIES = 2048
YIELD_S = 50e-6

Bytes = bytes  # ``StateFile.bytes`` hides the builtin inside that class
FileKind = Literal["base", "delta"]
Chunk = tuple[list[bytes], list[bytes | None]]


@dataclass(frozen=True, slots=True)
class StateFile:
    """Name, size and checksum of one immutable state file, which say which one it is: two are equal when these are.

    ``entries`` counts tombstones, not the format entry. ``replaces``: of a base, the files, in their order, that hold
    the same content together; in one that was read from JSON they have no kind and no entries.
    """

    name: str
    kind: FileKind = field(compare=False)
    entries: int = field(compare=False)
    bytes: int
    checksum: str
    replaces: tuple[StateFile, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "entries": self.entries,
            "bytes": self.bytes,
            "checksum": self.checksum,
        }
        if self.replaces:
            document["replaces"] = [[file.name, file.bytes, file.checksum] for file in self.replaces]
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> StateFile:
        """The inverse of ``to_json``; ``CorruptState`` when a field is missing or of a wrong kind, or a name is none of
        a state file."""
        try:
            file = cls(
                checked_name(document["name"], STATE_FILE_PARTS),
                document["kind"],
                document["entries"],
                document["bytes"],
                document["checksum"],
                tuple(
                    cls(checked_name(name, STATE_FILE_PARTS), "delta", 0, size, checksum)
                    for name, size, checksum in document.get("replaces", ())
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptState(
                f"a state file is described by {document!r:.200}, which describes none: {printable(error)}"
            ) from error
        known = (file, *file.replaces)
        texts = [each.checksum for each in known]
        numbers = [file.entries, *(each.bytes for each in known)]
        if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
            raise CorruptState(f"a state file is described by {document!r:.200}, which describes none")
        if file.kind not in ("base", "delta"):
            raise CorruptState(f"state file {file.name} has the unknown kind {file.kind!r:.100}")
        return file

    def check(self, chunks: Iterable[Bytes], where: str) -> None:
        """Raise ``CorruptState`` unless ``chunks`` are the bytes of this file."""
        size, checksum = digest_of(chunks)
        if size != self.bytes:
            raise CorruptState(f"state file {where} has {size} bytes instead of {self.bytes}")
        if checksum != self.checksum:
            raise CorruptState(f"state file {where} does not match its checksum: it was altered or damaged")


def digest_of(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Bytes and blake2b checksum of a file given in pieces (hashlib lets other threads run meanwhile)."""
    digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    size = 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def give_way() -> None:
    """Let the stream's thread have the interpreter: a plain release could be taken back before it wakes."""
    time.sleep(YIELD_S)


def write_sst(chunks: Iterable[Chunk], path: Path) -> int:
    """Write sorted entries as an SST at ``path`` and return how many there were.

    ``chunks``: lists of keys with lists of values (None: tombstone), ascending over all chunks. Nothing is left
    behind when it fails: ``StateError`` for a disk or a key order that RocksDB refuses.
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
