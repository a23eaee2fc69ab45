"""A file of a directory as a listing shows it, and the numbers by which it is known again.

Rules: pure. A file is known by its name below the directory, its size and the time of its last change.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from flinkplus.sources.files.choices import FINGERPRINT_BITS

_HIDDEN_ENDINGS = (".tmp", "._COPYING_")


@dataclass(frozen=True, slots=True, order=True)
class SeenFile:
    """A file as a listing shows it. Its order is that in which files are read: the oldest first.

    ``mtime_ns``: time of the last change. ``path``: below the directory. ``key``: a number of the path, below 2**64.
    """

    mtime_ns: int
    path: str
    size: int
    key: int

    @classmethod
    def of(cls, path: str, size: int, mtime_ns: int) -> SeenFile:
        return cls(max(0, mtime_ns), path, size, int.from_bytes(blake2b(_bytes(path), digest_size=8).digest(), "big"))

    @property
    def version(self) -> int:
        """A number of size and time, below 2**32."""
        return int.from_bytes(blake2b(f"{self.size} {self.mtime_ns}".encode(), digest_size=4).digest(), "big")

    @property
    def fingerprint(self) -> int:
        """A number of path, size and time, of ``FINGERPRINT_BITS``."""
        digest = blake2b(f"{self.key} {self.size} {self.mtime_ns}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> (64 - FINGERPRINT_BITS)


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def is_hidden(path: str) -> bool:
    """Whether a name below a directory is not input, as in Spark: a part of it begins with ``.`` or ``_``, except for
    folders of partitions (``_day=1``), or it ends as names of files do that are being written."""
    parts = path.split("/")
    hidden = (part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)
    return any(hidden) or path.endswith(_HIDDEN_ENDINGS)
