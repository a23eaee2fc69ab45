"""The position of one reader of a directory.

What was read is remembered by twelve bytes for each file: eight of its path, four of its size and time. The horizon is
a time: files that were last changed before it are neither remembered nor begun any more.

Another parallelism: a file belongs to the reader with the number ``key % parallelism``. So what is remembered, and open
files, go to the readers that own the files then. Each reader before had a horizon of its own, which still holds for its
files: these are kept as ``past``, until the own horizon is later than all of them.

Rules: pure.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from flinkplus.errors import InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.files.choices import MAX_RECORDS
from flinkplus.sources.files.seen import SeenFile

POSITION_FORMAT = 1
METRICS = ("rows", "invalid_rows", "invalid_lines")
F = TypeVar("F")
_REMEMBERED = np.dtype([("key", ">u8"), ("version", ">u4")])


@dataclass(frozen=True)
class OpenFile(Generic[F]):
    """A file that is read. ``cursor``: the byte or row at which reading continues; ``record``: the number of the next
    record."""

    file: F
    cursor: int = 0
    record: int = 0


@dataclass(frozen=True)
class FilesPosition:
    """``read``: version of each file that was read, by its key. ``opened``: files that were begun, the first one is
    being read. ``half``: upper half of the fingerprint of a file that is being begun. ``past``: for each parallelism
    before, the horizons of its readers."""

    read: Mapping[int, int] = field(default_factory=dict)
    opened: tuple[OpenFile[SeenFile], ...] = ()
    half: int | None = None
    horizon_ns: int = 0
    past: tuple[tuple[int, ...], ...] = ()
    metrics: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(METRICS, 0))

    def to_json(self, packed: str | None = None) -> dict[str, JsonValue]:
        """``packed``: ``pack(read)``, where it is known."""
        return {
            "format": POSITION_FORMAT,
            "read": pack(self.read) if packed is None else packed,
            "open": [[o.file.path, o.file.size, o.file.mtime_ns, o.cursor, o.record] for o in self.opened],
            "half": self.half,
            "horizon_ns": self.horizon_ns,
            "past": [list(horizons) for horizons in self.past],
            **self.metrics,
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> FilesPosition:
        """Raises ``ValueError`` for what is no position."""
        try:
            return _position_of(value)
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a position of this version: {value!r:.200}") from error

    def may_begin(self, file: SeenFile) -> bool:
        """Whether a file that is not remembered was not read either."""
        if file.mtime_ns < self.horizon_ns:
            return False
        return all(file.mtime_ns >= horizons[file.key % len(horizons)] for horizons in self.past)


def position_of(source: str, position: JsonValue) -> FilesPosition:
    """A position of a reader of ``source``. Raises ``InputError`` for what is none."""
    try:
        return FilesPosition.from_json(position)
    except ValueError as error:
        raise InputError(f"source {source!r}: {error}") from error


def _position_of(value: Any) -> FilesPosition:
    assert value["format"] == POSITION_FORMAT
    opened = []
    for path, size, mtime_ns, cursor, record in value["open"]:
        assert isinstance(path, str) and all(_is_count(n) for n in (size, cursor, record)) and type(mtime_ns) is int
        opened.append(OpenFile(SeenFile.of(path, size, mtime_ns), cursor, record))
    half, past = value["half"], tuple(tuple(horizons) for horizons in value["past"])
    assert half is None or (_is_count(half) and half <= MAX_RECORDS)
    assert all(horizons and all(map(_is_count, horizons)) for horizons in past) and _is_count(value["horizon_ns"])
    metrics = {name: value[name] for name in METRICS}
    assert all(map(_is_count, metrics.values()))
    return FilesPosition(unpack(value["read"]), tuple(opened), half, value["horizon_ns"], past, metrics)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def pack(read: Mapping[int, int]) -> str:
    """Keys and versions, sorted by key, as text."""
    table = np.empty(len(read), _REMEMBERED)
    table["key"] = np.fromiter(read.keys(), np.uint64, len(read))
    table["version"] = np.fromiter(read.values(), np.uint32, len(read))
    return base64.b64encode(table[np.argsort(table["key"])].tobytes()).decode()


def unpack(packed: str) -> dict[int, int]:
    """The inverse of ``pack``. Raises ``ValueError``."""
    table = np.frombuffer(base64.b64decode(packed, validate=True), _REMEMBERED)
    return dict(zip(table["key"].tolist(), table["version"].tolist(), strict=True))


def redealt(positions: Sequence[FilesPosition], parallelism: int) -> list[FilesPosition]:
    """The positions of ``parallelism`` readers, from those of all readers so far, by index."""
    horizons = tuple(position.horizon_ns for position in positions)
    past = dict.fromkeys(kept for position in positions for kept in position.past)
    if any(horizons):
        past[horizons] = None
    dealt = []
    for index in range(parallelism):
        read = {k: v for position in positions for k, v in position.read.items() if k % parallelism == index}
        opened = [o for position in positions for o in position.opened if o.file.key % parallelism == index]
        totals = [position.metrics for position in positions[index::parallelism]]
        metrics = {name: sum(total[name] for total in totals) for name in METRICS}
        dealt.append(FilesPosition(read, tuple(opened), None, min(horizons), tuple(past), metrics))
    return dealt


def pruned(position: FilesPosition) -> FilesPosition:
    """The position without horizons of readers before that say no more than its own."""
    past = tuple(horizons for horizons in position.past if max(horizons) > position.horizon_ns)
    return position if past == position.past else replace(position, past=past)
