"""What one log has on disk: a run of consecutive messages in segment files, read back in order.

Rules:

- The messages on disk are the oldest that the log keeps. A segment goes when its last message is trimmed.
- Reading is sequential with read-ahead: one block is in memory at a time, and is dropped with its last message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from upstream_cache.segments import Buffers, Segment, SegmentBlock

if TYPE_CHECKING:
    from upstream_cache.retention import Retention

M = TypeVar("M")


class SpilledMessages(Generic[M]):
    """The messages of ``channel`` on disk. Files are made, counted and removed by ``retention``."""

    __slots__ = ("_block", "_channel", "_handle", "_reading", "_retention", "_segments")

    def __init__(self, channel: object, retention: Retention[M]) -> None:
        self._channel = channel
        self._retention = retention
        self._segments: list[Segment] = []
        self._block: SegmentBlock | None = None
        self._reading: Segment | None = None
        self._handle = -1

    def write(self, first: int, position: int, records: Sequence[tuple[int, Buffers]]) -> None:
        """Add messages from ``first`` on, which follows the newest on disk; ``position``: bytes of the log before it.

        Each record is the message's size in the log and its encoded form. All or none; raises ``OSError``.
        """
        newest = self._segments[-1] if self._segments else None
        if newest is not None and newest.file_bytes >= self._retention.segment_bytes:
            newest.finish()
            newest = None
        segment = newest or self._retention.new_segment(self._channel, first, position)
        try:
            segment.append(records)
        except BaseException:
            if newest is None:
                self._retention.remove_segment(segment)
            raise
        if newest is None:
            self._segments.append(segment)

    def position(self, seq: int) -> int:
        """Bytes of the log before ``seq``, which is on disk."""
        return self._segment_of(seq).position(seq)

    def size_bytes(self, seq: int) -> int:
        """Size of message ``seq``, which is on disk, as passed to the log."""
        segment = self._segment_of(seq)
        return segment.position(seq + 1) - segment.position(seq)

    def read(self, seq: int) -> M:
        """Message ``seq``, which is on disk. Raises ``CorruptSegment``."""
        block = self._block
        if block is None or not block.first <= seq < block.end:
            block = self._load(seq)
        message = self._retention.codec.decode(block.body(seq))
        if seq + 1 == block.end:
            self._drop_block()
        return message

    def stop_reading(self) -> None:
        """Drop what was read ahead: reading continues elsewhere, or stops."""
        self._drop_block()
        if self._reading is not None:
            self._retention.volume.close(self._handle)
            self._reading, self._handle = None, -1

    def trim(self, seq: int) -> None:
        """Remove the segments whose messages are all before ``seq``."""
        gone = 0
        while gone < len(self._segments) and self._segments[gone].end <= seq:
            if self._segments[gone] is self._reading:
                self.stop_reading()
            self._retention.remove_segment(self._segments[gone])
            gone += 1
        if gone:
            del self._segments[:gone]

    def close(self) -> None:
        """Remove everything."""
        self.stop_reading()
        for segment in self._segments:
            self._retention.remove_segment(segment)
        self._segments.clear()

    def _segment_of(self, seq: int) -> Segment:
        if self._reading is not None and self._reading.first <= seq < self._reading.end:
            return self._reading
        return self._segments[bisect_right(self._segments, seq, key=lambda segment: segment.first) - 1]

    def _load(self, seq: int) -> SegmentBlock:
        segment = self._segment_of(seq)
        if segment is not self._reading:
            self.stop_reading()
            self._handle = segment.open_to_read()
            self._reading = segment
        self._drop_block()
        self._block = block = segment.read(self._handle, seq)
        self._retention.memory_bytes += len(block.data)
        return block

    def _drop_block(self) -> None:
        if self._block is not None:
            self._retention.memory_bytes -= len(self._block.data)
            self._block = None
