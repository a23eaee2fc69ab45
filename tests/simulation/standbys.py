"""The copies of state on one slot: what ``chain_backup.replication`` and ``replica`` do, without RocksDB.

Versions flow down each subtask's chain as they do there: whoever holds one whole offers it to its successor, in the
chain's present generation only. A version is a list of files; a copy has taken in the files of the version that was
trimmed to, and takes in more of them only when it is promoted, so that it can begin from any version that it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flinkplus.protocol.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.messages import Kind, Message
from flinkplus.runtime import control
from flinkplus.runtime.names import parse_subtask
from flinkplus.runtime.standbys import StandbyReady

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot

NO_CHANNEL = ChannelId(0, 0, 0)
REFUSED = "checksum"


@dataclass
class Version:
    generation: int
    handle: dict[str, Any]


@dataclass
class Copy:
    """One subtask's copy. ``taken``: the files that its store has taken in; ``counts``: what they make up."""

    generation: int = 0
    members: tuple[int, ...] = ()
    versions: dict[int, Version] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)
    taken: tuple[str, ...] = ()
    counts: dict[int, int] = field(default_factory=dict)
    active: int | None = None
    fenced: int = 0


@dataclass
class SimPrepared:
    """What a promotion is given."""

    counts: dict[int, int]

    def close(self) -> None:
        return None


class SimStandbys:
    """Stands for ``flinkplus.runtime.standbys.Standbys``."""

    def __init__(self, slot: SimSlot) -> None:
        self._slot = slot
        self.copies: dict[str, Copy] = {}
        self.refuse_next = False
        self._early: dict[str, tuple[int, bytes]] = {}

    # --- who is who

    def form(self, chains: dict[str, tuple[int, tuple[int, ...]]]) -> None:
        for subtask, (generation, members) in chains.items():
            copy = self.copies.get(subtask)
            if copy is None:
                if self._slot.index not in members:
                    continue
                copy = self.copies[subtask] = Copy()
            if generation < copy.generation:
                continue
            if copy.active is not None and copy.active < generation:
                self.retire(subtask)
            if (generation, members) != (copy.generation, copy.members):
                copy.offered.clear()
            copy.generation, copy.members = generation, members
        early, self._early = self._early, {}
        for peer, frame in early.values():
            self.receive(peer, frame)
        for subtask, copy in self.copies.items():
            self._offer(subtask, copy)

    def _neighbour(self, copy: Copy, distance: int) -> int | None:
        if self._slot.index not in copy.members:
            return None
        at = copy.members.index(self._slot.index) + distance
        return copy.members[at] if 0 <= at < len(copy.members) else None

    def _offer(self, subtask: str, copy: Copy) -> None:
        successor = self._neighbour(copy, 1)
        if successor is None:
            return
        ready = [number for number, version in copy.versions.items() if version.generation == copy.generation]
        for number in sorted(ready):
            if number > copy.offered.get(successor, 0):
                copy.offered[successor] = number
                content = (subtask, copy.generation, number, copy.versions[number].handle)
                key = self._slot.world.frame(content)
                message = Message(
                    Kind.REPLICA, NO_CHANNEL, Generation(0), Seq(0), CheckpointId(0), key.to_bytes(8, "big")
                )
                self._slot.data.send(successor, message)

    def peer_connected(self, peer: int) -> None:
        for subtask, copy in self.copies.items():
            if self._neighbour(copy, 1) == peer:
                copy.offered.pop(peer, None)
                self._offer(subtask, copy)

    # --- versions

    def persisted(self, subtask: str, generation: int, handle: dict[str, Any]) -> None:
        copy = self.copies.setdefault(subtask, Copy())
        if generation < copy.generation or generation <= copy.fenced:
            return
        copy.active = generation
        self.stage(subtask, copy, int(handle["checkpoint"]), generation, handle)

    def stage(self, subtask: str, copy: Copy, number: int, generation: int, handle: dict[str, Any]) -> None:
        """All of a version is held; what older generations made of this number and later ones is void by that."""
        versions = copy.versions.items()
        copy.versions = {n: v for n, v in versions if not (n >= number and v.generation < generation)}
        copy.versions[number] = Version(generation, handle)
        self._offer(subtask, copy)

    def receive(self, peer: int, frame: bytes) -> None:
        subtask, generation, number, handle = self._slot.world.frames[int.from_bytes(frame, "big")]
        copy = self.copies.get(subtask)
        if copy is None or generation > copy.generation or self._neighbour(copy, -1) != peer:
            if copy is None or generation >= copy.generation:
                self._early[subtask] = peer, frame  # its chain is not known here yet
            return
        if generation < copy.generation or copy.active is not None:
            return
        self.stage(subtask, copy, number, generation, handle)
        self._slot.report(control.VersionStaged(generation, subtask, number))
        world, name = self._slot.world, parse_subtask(subtask)
        world.reach("staged", self._slot, name)
        for process in world.on_slot(peer):
            world.reach("replicated", process, name)

    def retire(self, subtask: str) -> None:
        copy = self.copies.get(subtask)
        if copy is not None and copy.active is not None:
            copy.fenced, copy.active = copy.active, None
            copy.taken, copy.counts = (), {}

    def trim(self, version: int) -> None:
        for subtask, copy in list(self.copies.items()):
            if copy.active is None and self._slot.index not in copy.members:
                del self.copies[subtask]
                continue
            usable = [number for number in copy.versions if number <= version]
            if usable:
                newest = max(usable)
                copy.versions = {n: v for n, v in copy.versions.items() if n >= newest}
                if copy.active is None:
                    self._take_in(copy, copy.versions[newest].handle["files"])

    def _take_in(self, copy: Copy, files: tuple[str, ...]) -> None:
        if copy.taken != files[: len(copy.taken)]:
            copy.taken, copy.counts = (), {}
        for name in files[len(copy.taken) :]:
            copy.counts.update(self._slot.world.files[name])
        copy.taken = tuple(files)

    # --- promotion

    def prepare(self, attempt: int, subtask: str, version: int, handle: dict[str, Any], generation: int) -> None:
        delay_ms = self._slot.world.rng_work.randint(0, 3)
        self._slot.later(delay_ms, self._prepare, attempt, subtask, version, handle, generation)

    def _prepare(self, attempt: int, subtask: str, version: int, handle: dict[str, Any], generation: int) -> None:
        failover = self._slot._failover
        assert failover is not None
        if self.refuse_next:
            self.refuse_next = False
            failover.ready(StandbyReady(attempt, subtask, None, REFUSED))
            return
        copy = self.copies.setdefault(subtask, Copy())
        self._take_in(copy, tuple(handle.get("files", ())))
        prepared = SimPrepared(copy.counts)
        copy.taken, copy.counts = (), {}
        copy.active = generation
        if handle:
            self.stage(subtask, copy, version, generation, handle)
        failover.ready(StandbyReady(attempt, subtask, prepared, ""))  # type: ignore[arg-type]

    def close(self) -> None:
        self.copies.clear()
