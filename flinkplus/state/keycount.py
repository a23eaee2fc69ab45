"""How many keys a version has, counted while a base is made of it: after another parallelism it is only estimated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from flinkplus.protocol.snapshot.handle import KeyedPart
from flinkplus.state.memtable import state_prefix
from flinkplus.state.sst_format import Chunk

BEHIND_GROUPS = b"\xff"
"""Behind a state's prefix, more than any key group."""


class KeyCount:
    """Counts the keys of the states whose numbers are ``believed`` and not counted."""

    def __init__(self, believed: Mapping[str, KeyedPart]) -> None:
        self._believed = {name: part.keys for name, part in believed.items() if not part.counted}
        self._found = {state_prefix(name): 0 for name in self._believed}

    def counted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """The same chunks."""
        for chunk in chunks:
            keys = chunk[0]
            for prefix in self._found:
                self._found[prefix] += bisect_left(keys, prefix + BEHIND_GROUPS) - bisect_left(keys, prefix)
            yield chunk

    def miscounts(self) -> dict[str, int]:
        """By how many keys each number is too high."""
        return {name: keys - self._found[state_prefix(name)] for name, keys in self._believed.items()}
