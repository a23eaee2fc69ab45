"""Clips: how much of a state file counts, where several subtasks share it.

A file is written by one subtask, and sorted by state and key group. At another parallelism each new subtask names the
files of those before, with the groups that it owns now. Nothing is written again for that.

Rules: pages never count in a file with a clip: they belong to the subtask that made them. A file without a clip counts
whole.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flinkplus.documents import Document
from flinkplus.protocol.vocabulary.key_groups import MAX_GROUPS
from flinkplus.protocol.vocabulary.ranges import joined

MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Clip(Document):
    """What counts of a state file.

    ``groups``: ranges of key groups, each its first and the one after its last, ascending, with gaps between them.
    ``states``: names of the states of keys, ascending; nothing of any other state counts.
    """

    groups: tuple[tuple[int, int], ...]
    states: tuple[str, ...]

    @classmethod
    def of(cls, groups: range, states: Collection[str]) -> Clip:
        """The clip of one range of groups."""
        return cls(((groups.start, groups.stop),) if groups else (), tuple(sorted(states)))

    def check_names(self) -> None:
        """Raise ``ValueError`` for ranges or names that no clip has."""
        end = -1
        for bounds in self.groups:
            if len(bounds) != 2 or not end < bounds[0] < bounds[1] <= MAX_GROUPS:
                raise ValueError(f"{self.groups!r:.100} are no ranges of key groups")
            end = bounds[1]
        named = all(0 < len(name.encode()) <= MAX_NAME_BYTES for name in self.states)
        if not named or list(self.states) != sorted(set(self.states)):
            raise ValueError(f"{self.states!r:.100} are no names of states")

    @property
    def empty(self) -> bool:
        """Whether nothing counts."""
        return not (self.groups and self.states)

    def within(self, groups: range, states: Collection[str]) -> Clip:
        """What of it is in ``groups`` and among ``states``."""
        cut = [(max(first, groups.start), min(end, groups.stop)) for first, end in self.groups]
        left = tuple(bounds for bounds in cut if bounds[0] < bounds[1])
        return Clip(left, tuple(name for name in self.states if name in states))

    def joined(self, other: Clip) -> Clip:
        """What counts in either: both are of the same file, of the same states."""
        return Clip(joined((*self.groups, *other.groups)), tuple(sorted({*self.states, *other.states})))
