"""Descriptions of the files that snapshots name: state files, and the output that sinks have staged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from flinkplus.documents import Document
from flinkplus.errors import CorruptState
from flinkplus.path_names import STATE_FILE_PARTS, checked_name, checked_partition
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.clips import Clip

CHECKSUM_BYTES = 20

Bytes = bytes  # ``StateFile.bytes`` hides the builtin inside that class
FileKind = Literal["base", "delta"]


@dataclass(frozen=True, slots=True)
class StateFile(Document):
    """One immutable state file of a subtask, identified by name, size and checksum.

    ``entries``: of the whole file; counts tombstones, not the format entry.
    ``replaces``: files that together hold the content of this base, in order; read from JSON, without kind and entries.
    ``stored_as``: its name in storage, if another subtask has written it; otherwise empty, and ``name`` is that too.
    ``clip``: how much of it counts; ``None``: all.
    """

    name: str
    kind: FileKind = field(compare=False)
    entries: int = field(compare=False)
    bytes: int
    checksum: str
    replaces: tuple[StateFile, ...] = field(default=(), compare=False)
    stored_as: str = ""
    clip: Clip | None = None

    @property
    def stored(self) -> str:
        """Its name in storage. Several subtasks may have one file in storage under names of their own."""
        return self.stored_as or self.name

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "entries": self.entries,
            "bytes": self.bytes,
            "checksum": self.checksum,
        }
        if self.replaces:
            document["replaces"] = [
                [file.name, file.bytes, file.checksum, *filter(None, [file._sharing()])] for file in self.replaces
            ]
        return {**document, **self._sharing()}

    def _sharing(self) -> dict[str, Any]:
        """The fields of a file that another subtask has written."""
        shared = {"stored_as": self.stored_as} if self.stored_as else {}
        return shared if self.clip is None else {**shared, "clip": self.clip.to_json()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> StateFile:
        """The inverse of ``to_json``. Raises ``CorruptState`` for missing or wrong fields, and for unsafe names."""
        try:
            file = cls(
                checked_name(document["name"], STATE_FILE_PARTS),
                document["kind"],
                document["entries"],
                document["bytes"],
                document["checksum"],
                tuple(
                    cls(checked_name(name, STATE_FILE_PARTS), "delta", 0, size, checksum, (), *_shared(*sharing))
                    for name, size, checksum, *sharing in document.get("replaces", ())
                ),
                *_shared(document),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"malformed description of a state file: {document!r:.200}: {printable(error)}"
            raise CorruptState(why) from error
        known = (file, *file.replaces)
        numbers = [file.entries, *(each.bytes for each in known)]
        if any(type(each.checksum) is not str for each in known) or any(type(number) is not int for number in numbers):
            raise CorruptState(f"malformed description of a state file: {document!r:.200}")
        if file.kind not in ("base", "delta"):
            raise CorruptState(f"state file {file.name} has the unknown kind {file.kind!r:.100}")
        return file

    def check(self, chunks: Iterable[Bytes], where: str) -> None:
        """Raise ``CorruptState`` unless ``chunks`` are the bytes of this file."""
        for _ in self.checked(chunks, where):
            pass

    def checked(self, chunks: Iterable[Bytes], where: str) -> Iterator[Bytes]:
        """Pass ``chunks`` on; at their end raises ``CorruptState`` unless they are the bytes of this file."""
        digest, size = hashlib.blake2b(digest_size=CHECKSUM_BYTES), 0
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            yield chunk
        checksum = digest.hexdigest()
        if size != self.bytes:
            raise CorruptState(f"state file {where} has {size} bytes instead of {self.bytes}")
        if checksum != self.checksum:
            raise CorruptState(f"state file {where} does not match its checksum: it was altered or damaged")


def _shared(document: dict[str, Any] | None = None) -> tuple[str, Clip | None]:
    """Fields ``stored_as`` and ``clip``. Raises ``AttributeError``, ``TypeError`` or ``ValueError``."""
    if document is None:
        return "", None
    stored_as, clip = document.get("stored_as", ""), document.get("clip")
    return (
        stored_as and checked_name(stored_as, STATE_FILE_PARTS),
        None if clip is None else Clip.from_json(clip),
    )


def digest_of(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Size in bytes and blake2b checksum of a file given in pieces (hashlib releases the GIL meanwhile)."""
    digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    size = 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedFile(Document):
    """Output of one subtask, staged for ``checkpoint`` and invisible until that is complete.

    ``name``: unique in the job.
    ``bytes``: its size, known when the file is finished.
    ``arrow``: the rows themselves (Arrow IPC, base64), for a sink without files.
    ``folder``: where it goes below the output directory, a folder of partitions (``day=2026-11-27``); otherwise empty.
    """

    name: str
    rows: int
    checkpoint: int
    bytes: int = 0
    arrow: str = ""
    folder: str = ""

    def check_names(self) -> None:
        checked_name(self.name)
        if self.folder:
            checked_partition(self.folder)
