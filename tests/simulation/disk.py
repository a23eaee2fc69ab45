"""A disk in memory, for what output logs spill: it can be full, fail, and give back other bytes than were written."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from upstream_cache.volume import Volume


class SimVolume(Volume):
    """Stands for the files of the operating system."""

    def __init__(self) -> None:
        self.contents: dict[str, bytearray] = {}
        self.fails_with: int | None = None
        self._handles: dict[int, bytearray] = {}
        self._next = 3

    def _handle(self, data: bytearray) -> int:
        self._next += 1
        self._handles[self._next] = data
        return self._next

    def _check(self) -> None:
        if self.fails_with is not None:
            raise OSError(self.fails_with, os.strerror(self.fails_with))

    def create(self, path: Path) -> int:
        self._check()
        data = self.contents[str(path)] = bytearray()
        return self._handle(data)

    def open(self, path: Path) -> int:
        if str(path) not in self.contents:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._handle(self.contents[str(path)])

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def write(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
        self._check()
        data = b"".join(bytes(part) for part in buffers)
        file = self._handles[handle]
        file[offset : offset + len(data)] = data
        return len(data)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._handles[handle][offset : offset + size])

    def read_ahead(self, handle: int, offset: int, size: int) -> None:
        return None

    def remove(self, path: Path) -> None:
        self.contents.pop(str(path), None)

    def make_directory(self, path: Path) -> bool:
        return True

    def files(self, directory: Path, suffix: str) -> list[Path]:
        return [Path(name) for name in self.contents if name.endswith(suffix)]

    def remove_directory(self, path: Path) -> None:
        return None

    def corrupt(self, rng: random.Random) -> bool:
        """Flip a bit of a file, or tear its end off; false when there is none."""
        names = [name for name, data in self.contents.items() if data]
        if not names:
            return False
        data = self.contents[rng.choice(names)]
        if rng.random() < 0.5:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        else:
            del data[rng.randrange(len(data)) :]
        return True


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The same with another bit, or torn, or torn and filled up with zeros."""
    if not data or rng.random() < 0.5:
        return flipped(data, rng.randrange(len(data) * 8)) if data else data
    torn = data[: rng.randrange(len(data))]
    return torn if rng.random() < 0.5 else torn.ljust(len(data), b"\0")


def flipped(data: bytes, bit: int) -> bytes:
    """The same with another bit."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
