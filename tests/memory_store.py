"""A store of digests in a dict, in the place of RocksDB."""

from __future__ import annotations

from collections.abc import Collection


class MemoryStore:
    """As ``dedup.store.RocksStore``."""

    def __init__(self) -> None:
        self._content: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self._content[key] = value

    def get(self, key: bytes) -> bytes | None:
        return self._content.get(key)

    def delete(self, keys: Collection[bytes]) -> None:
        for key in keys:
            self._content.pop(key, None)

    def __len__(self) -> int:
        return len(self._content)
