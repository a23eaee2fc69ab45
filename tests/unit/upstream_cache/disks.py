"""What the tests of spilling share: a codec that shows when a message was on disk, and a disk that fills up."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from upstream_cache import OutputLog, Retention
from upstream_cache.segments import Segment


class InParts:
    """Messages are ``bytes``; written in two parts and an empty one."""

    def encode(self, message: bytes) -> Sequence[Any]:
        return message[:3], memoryview(message)[3:], b""

    def decode(self, data: memoryview) -> bytes:
        return bytes(data)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class LimitedDisk:
    """Takes ``left`` bytes in all, the last write in part, then no more; writes at most ``at_once`` bytes per call."""

    def __init__(self, left: int, at_once: int = 1 << 30) -> None:
        self.left = left
        self.at_once = at_once
        self.failures = 0
        self._pwritev = os.pwritev

    def pwritev(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
        data = b"".join(buffers)[: min(self.left, self.at_once)]
        if not data and any(len(part) for part in buffers):
            self.failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= len(data)
        return self._pwritev(handle, [data], offset)


@contextmanager
def limited(left: int, at_once: int = 1 << 30) -> Iterator[LimitedDisk]:
    disk = LimitedDisk(left, at_once)
    with mock.patch.object(os, "pwritev", disk.pwritev):
        yield disk


def body(seq: int, size: int) -> bytes:
    return (b"%d|" % seq * (size // 2 + 1))[:size]


def spilled_log(
    folder: Path, count: int, size: int = 1000, **options: Any
) -> tuple[Retention[bytes], OutputLog[bytes]]:
    """A log of ``count`` sent messages, and a retention with no memory at all, so that all but the last are on disk."""
    retention: Retention[bytes] = Retention(folder / "spill", InParts(), memory_bytes=0, **options)
    log: OutputLog[bytes] = OutputLog("tokenize[0]->count[1]", 4, 1 << 20, retention=retention)
    for seq in range(count):
        log.append(body(seq, size), size)
        assert log.next_to_send(count) == (seq, body(seq, size))
    return retention, log


def on_disk(retention: Retention[bytes]) -> list[Segment]:
    """All segments that hold a message that is kept."""
    logs: list[Any] = list(retention.logs)
    return [segment for log in logs for segment in log._spilled._segments]


def spilled_bytes(log: OutputLog[bytes]) -> int:
    return sum(segment.file_bytes for segment in log._spilled._segments) if log._spilled is not None else 0


def files(folder: Path) -> list[Path]:
    return sorted((folder / "spill").glob("*"))


def has_room(log: OutputLog[bytes]) -> bool:
    """Asked through a function, since a type checker takes a property to stay what it was."""
    return log.has_room


def blocked(retention: Retention[bytes]) -> str | None:
    return retention.blocked
