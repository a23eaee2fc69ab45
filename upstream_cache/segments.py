"""Segment files: a run of consecutive messages of one channel on disk.

A segment is a header (magic, format version, first ``seq``, the channel's name, CRC-32 of all that) and records, each a
CRC-32 of the rest, the length of the body, the ``seq`` and the body. ``Segment`` knows what lies where; the file
repeats it so that a mix-up is noticed.

Rules:

- A segment lives as long as its process: nothing is synced to disk, nothing is reopened by a later process.
- What a failed ``append`` has written is overwritten by the next one.
- Every record is checked when it is read; a record that does not match is a ``CorruptSegment``.
"""

from __future__ import annotations

import errno
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upstream_cache.volume import OS_VOLUME, Volume

MAGIC = b"FPLG"
FORMAT_VERSION = 1
HEADER = struct.Struct("<4sHHQ")  # magic, format version, bytes of the channel's name, first seq
CHECKSUM = struct.Struct("<I")
LABEL = struct.Struct("<IQ")  # bytes of the body, seq
RECORD_HEADER_BYTES = CHECKSUM.size + LABEL.size
READ_AHEAD_BYTES = 1 << 20
MAX_BUFFERS = 1024  # per system call (IOV_MAX)

Buffers = Sequence[Any]
"""Contiguous bytes-like objects, to be written one behind the other."""


class CorruptSegment(Exception):
    """Messages on disk cannot be read back: fall back to a checkpoint. The same call raises it again."""

    def __init__(self, channel: object, path: Path, why: str) -> None:
        super().__init__(f"output log of {channel}: segment {path} {why}; this channel cannot be replayed from its log")
        self.channel = channel
        self.path = path
        self.why = why


def write_all(volume: Volume, handle: int, buffers: list[Any], offset: int) -> None:
    """Write ``buffers`` at ``offset``, all of them. Raises ``OSError``."""
    for group in range(0, len(buffers), MAX_BUFFERS):
        rest = buffers[group : group + MAX_BUFFERS]
        while rest:
            written = volume.write(handle, rest, offset)
            if written == 0 and any(memoryview(part).nbytes for part in rest):
                raise OSError(errno.EIO, "nothing was written")
            offset += written
            rest = _behind(rest, written)


def _behind(buffers: list[Any], done_bytes: int) -> list[Any]:
    """What is left of ``buffers`` behind the first ``done_bytes``."""
    for at, part in enumerate(buffers):
        size = memoryview(part).nbytes
        if done_bytes < size:
            return [memoryview(part).cast("B")[done_bytes:], *buffers[at + 1 :]]
        done_bytes -= size
    return []


class Segment:
    """One segment file, of ``first <= seq < end``; positions count the bytes given to the log. Raises ``OSError``."""

    __slots__ = ("_handle", "_header", "_offsets", "_positions", "_volume", "channel", "first", "path")

    def __init__(self, channel: object, path: Path, first: int, position: int, volume: Volume = OS_VOLUME) -> None:
        self.channel = channel
        self.path = path
        self.first = first
        name = str(channel).encode()[:0xFFFF]
        header = HEADER.pack(MAGIC, FORMAT_VERSION, len(name), first) + name
        self._header = header + CHECKSUM.pack(zlib.crc32(header))
        self._offsets = array("Q", [len(self._header)])
        self._positions = array("Q", [position])
        self._volume = volume
        self._handle: int | None = volume.create(path)

    @property
    def end(self) -> int:
        """The ``seq`` behind the last one in it."""
        return self.first + len(self._offsets) - 1

    @property
    def file_bytes(self) -> int:
        """Bytes on disk."""
        return self._offsets[-1] if len(self._offsets) > 1 else 0

    def position(self, seq: int) -> int:
        """Bytes of all messages of the log before ``seq``; ``first <= seq <= end``."""
        return self._positions[seq - self.first]

    def append(self, records: Sequence[tuple[int, Buffers]]) -> None:
        """Add the next messages, each as its size in the log and its encoded form; all or none. Raises ``OSError``."""
        if self._handle is None:
            raise ValueError(f"segment {self.path} takes no more messages")
        buffers: list[Any] = [] if self.file_bytes else [self._header]
        offsets, positions = array("Q"), array("Q")
        offset, position, seq = self._offsets[-1], self._positions[-1], self.end
        for size_bytes, body in records:
            length = sum(memoryview(part).nbytes for part in body)
            label = LABEL.pack(length, seq)
            checksum = zlib.crc32(label)
            for part in body:
                checksum = zlib.crc32(part, checksum)
            buffers.append(CHECKSUM.pack(checksum) + label)
            buffers.extend(body)
            offset += RECORD_HEADER_BYTES + length
            position += size_bytes
            seq += 1
            offsets.append(offset)
            positions.append(position)
        write_all(self._volume, self._handle, buffers, self.file_bytes)
        self._offsets.extend(offsets)
        self._positions.extend(positions)

    def finish(self) -> None:
        """Take no more messages; the file stays."""
        if self._handle is not None:
            self._volume.close(self._handle)
            self._handle = None

    def open_to_read(self) -> int:
        """A file handle for ``read``, which the caller closes. Raises ``CorruptSegment``, also for another header."""
        try:
            handle = self._volume.open(self.path)
        except OSError as error:
            raise CorruptSegment(self.channel, self.path, f"cannot be opened ({error.strerror})") from error
        try:
            header = self._bytes_at(handle, 0, len(self._header))
            if header != self._header:
                raise CorruptSegment(self.channel, self.path, "has another header than was written")
        except BaseException:
            self._volume.close(handle)
            raise
        return handle

    def read(self, handle: int, seq: int) -> SegmentBlock:
        """``seq`` and the messages behind it, about ``READ_AHEAD_BYTES`` in all, whole ones only, at least one."""
        at = seq - self.first
        start = self._offsets[at]
        stop_at = max(at + 1, bisect_right(self._offsets, start + READ_AHEAD_BYTES) - 1)
        data = self._bytes_at(handle, start, self._offsets[stop_at] - start)
        there = bisect_right(self._offsets, start + len(data)) - 1
        if there <= at:
            why = f"ends at byte {start + len(data)}, inside message {seq}"
            raise CorruptSegment(self.channel, self.path, why)
        self._volume.read_ahead(handle, start + len(data), READ_AHEAD_BYTES)
        offsets = [offset - start for offset in self._offsets[at : there + 1]]
        return SegmentBlock(self, seq, self.first + there, offsets, memoryview(data))

    def _bytes_at(self, handle: int, offset: int, size: int) -> bytes:
        """``size`` bytes at ``offset``, or as many as there are."""
        data = b""
        try:
            while len(data) < size and (more := self._volume.read(handle, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise CorruptSegment(self.channel, self.path, f"cannot be read ({error.strerror})") from error
        return data


@dataclass(frozen=True, slots=True, eq=False)
class SegmentBlock:
    """Messages ``[first, end)`` of a segment, read but not yet checked. ``offsets``: where each is in ``data``."""

    segment: Segment
    first: int
    end: int
    offsets: list[int]
    data: memoryview

    def body(self, seq: int) -> memoryview:
        """The encoded message ``seq``. Raises ``CorruptSegment`` when it is not what was written."""
        start, stop = self.offsets[seq - self.first], self.offsets[seq - self.first + 1]
        (checksum,) = CHECKSUM.unpack_from(self.data, start)
        length, labelled = LABEL.unpack_from(self.data, start + CHECKSUM.size)
        segment = self.segment
        if zlib.crc32(self.data[start + CHECKSUM.size : stop]) != checksum:
            raise CorruptSegment(segment.channel, segment.path, f"has a wrong checksum at message {seq}")
        if (length, labelled) != (stop - start - RECORD_HEADER_BYTES, seq):
            why = f"has message {labelled} of {length} bytes where message {seq} was written"
            raise CorruptSegment(segment.channel, segment.path, why)
        return self.data[start + RECORD_HEADER_BYTES : stop]
