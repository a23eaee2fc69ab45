"""What all logs of a slot share: one memory budget, one spill directory.

Rules:

- Messages in memory, of all logs together, are kept within ``budget_bytes``; beyond it the log that has most to give
  writes its oldest sent messages to disk, one bounded piece per append. A message counts with its size and
  ``MESSAGE_OVERHEAD_BYTES``; what is read ahead for a replay (about 1 MB per log) counts too, but is not bounded.
  Messages to be sent again, and unsent ones of a log without limits, are written only when no others are left.
- When writing fails (the volume is full) nothing is lost: the messages stay in memory, ``blocked`` says why, and while
  the budget is exceeded no log has room. Writing is tried again after ``RETRY_S`` and after a trim.
- The directory belongs to one ``Retention``, which removes segments that an earlier process left in it. It is made when
  the first segment is written.
- Files are removed a few at a time, by later calls, so that no call takes long. One thread calls everything.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from upstream_cache.segments import Buffers, Segment
from upstream_cache.volume import OS_VOLUME, Volume

M = TypeVar("M")

MESSAGE_OVERHEAD_BYTES = 512
PIECE_BYTES = 256 << 10
RETRY_S = 0.1
REMOVED_PER_CALL = 3
SUFFIX = ".segment"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Codec(Protocol[M]):
    """How a message is written to disk and read back."""

    def encode(self, message: M) -> Buffers:
        """The message as contiguous bytes-like objects, to be written one behind the other."""

    def decode(self, data: memoryview) -> M:
        """The message again. It may keep ``data``, a part of a read-ahead block of about 1 MB, but not for long."""


class Spillable(Protocol):
    """What a ``Retention`` needs of a log."""

    def spillable_bytes(self, again: bool) -> int:
        """What ``spill`` could free: of what is sent, or, with ``again``, also of what is still to be sent."""

    def spill(self, target_bytes: int, again: bool) -> int:
        """Write the oldest messages, about ``target_bytes`` or none, to disk; the bytes freed. Raises ``OSError``."""

    def close(self) -> None: ...


class Retention(Generic[M]):
    """Memory budget and spill directory for the logs that are constructed with it.

    ``clock``: seconds, never going back. Raises ``ValueError`` for a negative budget or segments below 1 byte.
    """

    def __init__(
        self,
        directory: Path,
        codec: Codec[M],
        memory_bytes: int = 64 << 20,
        segment_bytes: int = 4 << 20,
        clock: Callable[[], float] = time.monotonic,
        volume: Volume = OS_VOLUME,
    ) -> None:
        if memory_bytes < 0 or segment_bytes < 1:
            raise ValueError(f"output logs: {memory_bytes} bytes of memory, segments of {segment_bytes} bytes")
        self.directory = directory
        self.codec = codec
        self.budget_bytes = memory_bytes
        self.segment_bytes = segment_bytes
        self.memory_bytes = 0
        """Bytes of all messages in memory; the logs count here."""
        self.blocked: str | None = None
        """Why nothing can be written to disk, when that is so."""
        self._clock = clock
        self.volume = volume
        self._retry_at = 0.0
        self.logs: list[Spillable] = []
        """Those that count here; logs add and remove themselves."""
        self._next_file = 0
        self._to_remove: deque[Path] = deque()
        self._made_directory = False
        self._remove_leftovers()

    def make_room(self, added_bytes: int) -> None:
        """A message was added and the budget is exceeded: write a piece, not less than was added."""
        if self.blocked is None or self._clock() >= self._retry_at:
            self._spill(max(PIECE_BYTES, added_bytes))
        self._remove_some()

    def relieve(self) -> bool:
        """Whether logs have room although writing failed last time: the budget holds again, or writing works again."""
        if self.memory_bytes > self.budget_bytes:
            if self._clock() < self._retry_at:
                return False
            self._remove_some()
            self._spill(PIECE_BYTES)
        else:
            self.blocked = None
        return self.blocked is None

    def trimmed(self, freed_bytes: int) -> None:
        """A log has forgotten messages, ``freed_bytes`` of memory among them, and perhaps segments."""
        self.memory_bytes -= freed_bytes
        self._remove_some()
        if self.blocked is not None:
            self._retry_at = self._clock()

    def _spill(self, target_bytes: int) -> None:
        """Write up to ``target_bytes`` of the log that has most to give, of further ones only while over the budget."""
        freed = 0
        try:
            while freed < target_bytes and (not freed or self.memory_bytes > self.budget_bytes):
                now = self._largest(again=False) or self._largest(again=True)
                if now is None:
                    break
                freed += now[0].spill(target_bytes - freed, now[1])
        except OSError as error:
            what = "full" if error.errno in FULL else "failed"
            self.blocked = f"spill volume {what}: {self.directory}: {error.strerror or error}"
            self._retry_at = self._clock() + RETRY_S
        else:
            self.blocked = None

    def _largest(self, again: bool) -> tuple[Spillable, bool] | None:
        log = max(self.logs, key=lambda log: log.spillable_bytes(again), default=None)
        return None if log is None or log.spillable_bytes(again) <= 0 else (log, again)

    def new_segment(self, channel: object, first: int, position: int) -> Segment:
        """An empty segment. Raises ``OSError``."""
        if not self._made_directory:
            self._made_directory = self.volume.make_directory(self.directory)
        path = self.directory / f"{self._next_file:08d}{SUFFIX}"
        segment = Segment(channel, path, first, position, self.volume)
        self._next_file += 1
        return segment

    def remove_segment(self, segment: Segment) -> None:
        """A segment is not needed any more; its file goes now or with one of the next calls."""
        segment.finish()
        self._to_remove.append(segment.path)

    def _remove_some(self) -> None:
        for _ in range(min(REMOVED_PER_CALL, len(self._to_remove))):
            path = self._to_remove.popleft()
            try:
                self.volume.remove(path)
            except OSError:
                self._to_remove.append(path)  # close() tries again and raises

    def _remove_leftovers(self) -> None:
        for path in self.volume.files(self.directory, SUFFIX):
            self.volume.remove(path)

    def close(self) -> None:
        """Close all logs, remove all files, and the directory if it was made here and nothing else is in it."""
        for log in list(self.logs):
            log.close()
        self._to_remove.clear()
        self._remove_leftovers()
        if self._made_directory:
            self.volume.remove_directory(self.directory)
