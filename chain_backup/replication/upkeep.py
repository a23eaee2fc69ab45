"""Upkeep of the copies on one slot: a trim brings standbys up to the trimmed version and frees what is older.

Rules:
- a standby's RocksDB takes a version in when it is trimmed to, see ``replica``;
- one copy is tended at a time, behind all that waits in the thread: a promotion waits for one of them at most;
- a version whose checkpoint was aborted is kept only while it is the newest: handles may be large;
- a copy that cannot be brought up to date stays behind; the next version is another chance.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chain_backup.replication.figures import ReplicationFigures
from chain_backup.replication.members import Member
from flinkplus.errors import CorruptState, StateError

MAX_ABORTED = 64
"""Maximum of aborted checkpoints that are remembered after a trim; the oldest are forgotten first."""

log = logging.getLogger("flinkplus")


@dataclass(eq=False, repr=False)
class CopyUpkeep:
    """Tends the copies of ``members``; ``later`` runs work in the same thread, behind all that waits there."""

    _members: Mapping[str, Member]
    _figures: ReplicationFigures
    _later: Callable[[Callable[[], None]], None]
    _due: dict[str, None] = field(default_factory=dict, init=False)
    """An ordered set."""

    def __post_init__(self) -> None:
        self._trimmed = 0
        self._aborted: deque[int] = deque(maxlen=MAX_ABORTED)

    def trimmed(self, version: int) -> None:
        """``version`` is complete and stable; the copies are tended when ``tend_soon`` asks for it."""
        self._trimmed = max(self._trimmed, version)
        self._aborted = deque((aborted for aborted in self._aborted if aborted > version), MAX_ABORTED)

    def aborted(self, version: int) -> None:
        self._aborted.append(version)
        for member in self._members.values():
            self.forget_aborted(member)

    def forget_aborted(self, member: Member) -> None:
        newest = max(member.replica.staged, default=0)
        aborted = [number for number in member.replica.staged if number in self._aborted and number < newest]
        if aborted:
            member.replica.forget(aborted, member.arriving)

    def tend_soon(self, member: Member) -> None:
        self._due[member.subtask] = None
        if len(self._due) == 1:
            self._later(self._tend_next)

    def _tend_next(self) -> None:
        subtask = next(iter(self._due), None)
        if subtask is None:
            return
        del self._due[subtask]
        try:
            if subtask in self._members:
                self._tend(self._members[subtask])
        finally:
            if self._due:
                self._later(self._tend_next)

    def _tend(self, member: Member) -> None:
        """A standby's RocksDB takes in what is trimmed to, and is ready for the newest version; what is older goes."""
        replica = member.replica
        trimmed = replica.newest(self._trimmed)
        if trimmed is not None:
            replica.forget([number for number in replica.staged if number < trimmed.number], member.arriving)
        if member.active is None:
            try:
                if trimmed is not None:
                    replica.apply(trimmed.files)
                    self._figures.versions_applied += 1
                newest = replica.latest
                if newest is not None:
                    replica.look_ahead(newest.files)
            except (StateError, CorruptState, OSError):
                log.warning(
                    "standby of %s could not apply the latest version; retrying with the next one",
                    member.subtask,
                    exc_info=True,
                )
        replica.tidy()

    def close(self) -> None:
        self._due.clear()
