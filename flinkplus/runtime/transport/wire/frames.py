"""Frames on a stream of bytes: whole messages are put in, frames come out, and frames are found again at the other end.

Both transports make their frames here. TCP puts the length before each (``LENGTH``); gRPC delimits them itself.

Rules:

- a frame holds whole messages, in the order they were put in. Nothing else ends one: a receiver that loses a frame, or
  refuses one, has lost or refused whole messages;
- messages are joined up to a soft limit. A message that is larger has a frame of its own, up to ``MAX_FRAME_BYTES``;
- the memory for a frame is taken only after its length was compared with the receiver's limit.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from flinkplus.errors import PeerProtocolError

LENGTH = struct.Struct("<I")
JOINED_BYTES = 4 << 20
"""The soft limit: messages are joined while they fit into a frame of so many bytes."""
MAX_FRAME_BYTES = 2**31 - 1
"""The hard limit, of one message as of one frame; gRPC takes no longer one."""

Frame = bytes | bytearray | memoryview


class FrameQueue:
    """Messages that wait to be sent. Any thread may ``put``; one at a time may take frames.

    ``joined_bytes``: the soft limit; 0: each message is a frame.
    """

    __slots__ = ("_messages", "joined_bytes")

    def __init__(self, joined_bytes: int = JOINED_BYTES) -> None:
        self.joined_bytes = joined_bytes
        self._messages: deque[Sequence[Any]] = deque()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._messages)

    def put(self, message: Sequence[Any]) -> None:
        """Queue one whole message, given as buffers of bytes."""
        self._messages.append(message)

    def next_frame(self, with_length: bool = False) -> bytes:
        """The next frame, if asked for with its length before it. Raises ``IndexError`` when nothing waits."""
        messages, limit = self._messages, self.joined_bytes
        parts: list[Any] = [b"", *messages.popleft()]
        size = 0
        for part in parts:
            size += len(part)
        while messages:
            message = messages[0]
            joined = size
            for part in message:
                joined += len(part)
            if joined > limit:
                break
            messages.popleft()
            parts += message
            size = joined
        if with_length:
            parts[0] = LENGTH.pack(size)
        return b"".join(parts)

    def clear(self) -> None:
        """Forget all that waits."""
        self._messages.clear()


def framed(data: bytes) -> bytes:
    """``data`` as one frame with its length before it."""
    return LENGTH.pack(len(data)) + data


class FrameReader:
    """Finds the frames, each with its length before it, in a stream that comes in pieces of any size.

    ``limit``: the longest frame that is taken, in bytes.
    """

    __slots__ = ("_body", "_filled", "_head", "limit")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._head = b""
        self._body: bytearray | None = None
        self._filled = 0

    @property
    def long_frame(self) -> memoryview | None:
        """Where the rest of a frame is to be received that is longer than one piece; ``None``: anywhere."""
        return None if self._body is None else memoryview(self._body)[self._filled :]

    def received(self, count: int) -> bytearray | None:
        """``count`` bytes were received into ``long_frame``; returns the frame once it is whole."""
        frame = self._body
        assert frame is not None
        self._filled += count
        if self._filled < len(frame):
            return None
        self._body = None
        return frame

    def frames(self, piece: Frame) -> Iterator[Frame]:
        """The frames that are whole with this piece, as views of it. Raises ``PeerProtocolError`` for one over the
        limit. Not while there is a ``long_frame``.
        """
        chunk = self._head + piece
        view, at, have = memoryview(chunk), 0, len(chunk)
        while have - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(chunk, at)
            if size > self.limit:
                raise PeerProtocolError(f"a frame of {size} bytes is over the limit of {self.limit}")
            start = at + LENGTH.size
            if have - start < size:
                self._head = b""
                self._body, self._filled = bytearray(size), have - start
                self._body[: self._filled] = view[start:]
                return
            at = start + size
            yield view[start:at]
        self._head = chunk[at:]
