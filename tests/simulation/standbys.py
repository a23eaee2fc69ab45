"""The copies of state on one slot: the product's agents, replicas, hops and frames, on a disk and a RocksDB in memory.

A state file is the counts that it holds, as bytes; a store is what the files that it took in make up. Reads are short
now and then, and what an agent leaves for later may come behind other things.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chain_backup.disk import ArrivingFile, HeldFile, Origin, base_name
from chain_backup.replication.agent import ReplicationAgent
from chain_backup.replication.receiver import at_once
from flinkplus.errors import CorruptState, StateError
from flinkplus.protocol.snapshot.files import CHECKSUM_BYTES, FileKind, StateFile
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.slot.control.ports import StandbyReady
from flinkplus.state.backend import Prepared
from flinkplus.state.left import newest_checkpoint
from tests.simulation.disk import flipped
from tests.simulation.subtask import Count

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot

NO_CHANNEL = ChannelId(0, 0, 0)
REFUSED = "checksum"
HEAD = b"counts"
COUNT = struct.Struct("<II")


def encode(counts: Sequence[Count]) -> bytes:
    """A state file of these counts."""
    return HEAD + b"".join(COUNT.pack(*count) for count in counts)


def decode(data: bytes) -> dict[int, int]:
    """What is in a state file; of one that is damaged, anything."""
    body = data[len(HEAD) :]
    return dict(COUNT.iter_unpack(body[: len(body) // COUNT.size * COUNT.size]))


class StateFiles:
    """The state files in durable storage: what a handle says of each, and its bytes."""

    def __init__(self, counts: Mapping[str, Sequence[Count]], replaced: Mapping[str, tuple[str, ...]]) -> None:
        self._counts = counts
        self._replaced = replaced
        self._bytes: dict[str, bytes] = {}
        self._cards: dict[str, StateFile] = {}

    def data(self, name: str) -> bytes:
        data = self._bytes.get(name)
        if data is None:
            data = self._bytes[name] = encode(self._counts[name])
        return data

    def card(self, name: str) -> StateFile:
        """What a handle says of a file."""
        card = self._cards.get(name)
        if card is None:
            replaces = tuple(self._file(replaced) for replaced in self.replaced_by(name))
            card = self._cards[name] = self._file(name, replaces)
        return card

    def _file(self, name: str, replaces: tuple[StateFile, ...] = ()) -> StateFile:
        data = self.data(name)
        checksum = hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).hexdigest()
        kind: FileKind = "base" if replaces else "delta"
        return StateFile(name, kind, len(self._counts[name]), len(data), checksum, replaces)

    def replaced_by(self, name: str) -> tuple[str, ...]:
        """What a file replaces: of a base, the files that hold the same content together."""
        return self._replaced.get(name, ())


def for_copies(handle: SnapshotHandle) -> SnapshotHandle:
    """The part of a handle that the copies need: the rest is no JSON here."""
    return replace(handle, operator_state=OperatorState())


class SimStore:
    """A RocksDB. ``counts``: what it holds."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def check_format(self) -> None:
        return None

    def destroy(self) -> None:
        self.counts = {}


class SimSource:
    """A held file, whose reads are short or wrong now and then."""

    def __init__(self, slot: SimSlot, data: bytes) -> None:
        self._world = slot.world
        self._data = data

    def read(self, size: int, offset: int) -> bytes:
        world = self._world
        data = self._data[offset : offset + min(size, world.parameters.read_bytes)]
        if world.reads_wrong and data and world.rng_copies.random() < 0.5:
            world.counts["wrong_reads"] += 1
            return flipped(data, world.rng_copies.randrange(len(data) * 8))
        return data

    def close(self) -> None:
        return None


class SimSink:
    """A file that is arriving."""

    def __init__(self, disk: SimDisk, data: bytearray) -> None:
        self._disk = disk
        self._data = data

    def write(self, data: memoryview) -> None:
        self._disk.check()
        self._data += data

    def close(self) -> None:
        return None


class SimDisk:
    """Stands for ``chain_backup.disk.SlotDisk``. ``left``: what a dead process of the slot had here.
    ``discarded``: of that, what was removed though it was right, by this object or one before it.
    """

    def __init__(
        self,
        slot: SimSlot,
        subtask: str,
        left: dict[str, bytes] | None = None,
        discarded: dict[str, bytes] | None = None,
    ) -> None:
        self.folder = subtask
        self._slot = slot
        self._held: dict[str, bytes] = {}
        self._parts: dict[str, bytearray] = {}
        self._downloaded: dict[str, bytes] = {}
        self._left = left or {}
        self.newest_left = newest_checkpoint(self._left)
        self._discarded = {} if discarded is None else discarded
        self._kept: set[str] = set()

    @property
    def remains(self) -> dict[str, bytes]:
        """What is found here after the process has died."""
        return {**self._left, **self._held}

    def check(self) -> None:
        error = self._slot.volume.fails_with
        if error is not None:
            raise OSError(error, os.strerror(error))

    def create(self, name: str) -> ArrivingFile:
        self.check()
        data = self._parts[name] = bytearray()
        return SimSink(self, data)

    def discard(self, name: str, origin: Origin) -> None:
        if origin is Origin.ARRIVED:
            self._parts.pop(name, None)
        elif origin is Origin.DOWNLOADED:
            self._downloaded.pop(name, None)
        elif self._left.pop(name, None) is not None:
            self._slot.world.note("%s cannot keep %s/%s", self._slot, self.folder, name)
            self._slot.world.counts["refused_files"] += 1

    def adopt(self, name: str, origin: Origin) -> None:
        if origin is Origin.ARRIVED:
            self._held[name] = bytes(self._parts.pop(name))
            self._check_arrived(name)
        elif origin is Origin.DOWNLOADED:
            self._held[name] = self._downloaded.pop(name)
        else:
            self._held[name] = self._left.pop(name)
            self._kept.add(name)
            self._slot.world.note("%s keeps %s/%s", self._slot, self.folder, name)
            self._slot.world.counts["kept_files"] += 1

    def _check_arrived(self, name: str) -> None:
        world = self._slot.world
        replaced = world.state_files.replaced_by(f"{self.folder}/{name}")
        if self._was_right(name) or (replaced and all(self._was_right(base_name(other)) for other in replaced)):
            world.checks.received_again(self._slot, f"{self.folder}/{name}")

    def _was_right(self, name: str) -> bool:
        """Whether a dead process has left this file undamaged, and nothing went wrong in reading it."""
        left = self._left.get(name) or self._discarded.get(name)
        return name in self._kept or left == self._slot.world.state_files.data(f"{self.folder}/{name}")

    def _data(self, name: str) -> bytes:
        if name not in self._held:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._held[name]

    def open(self, name: str) -> HeldFile:
        return SimSource(self._slot, self._data(name))

    def remove(self, name: str) -> None:
        self._held.pop(name, None)
        self._kept.discard(name)

    def take_own(self, name: str) -> None:
        self.check()
        self._held[name] = self._slot.world.state_files.data(f"{self.folder}/{name}")

    def download(self, file: StateFile) -> None:
        self.check()
        world = self._slot.world
        world.note("%s takes %s from durable storage", self._slot, file.name)
        if file.name not in world.durable.state:
            raise CorruptState(f"state file {file.name} is missing")
        data = world.state_files.data(file.name)
        file.check([data], file.name)
        self._downloaded[base_name(file.name)] = data

    def has_left(self, file: StateFile) -> bool:
        return len(self._left.get(base_name(file.name), b"")) == file.bytes

    def check_left(self, file: StateFile, swift: bool) -> None:
        self.check()
        name = base_name(file.name)
        if name not in self._left:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        file.check([self._left[name]], file.name)

    def discard_all_left(self) -> None:
        self._discarded.update(self._left)
        self._left.clear()

    def new_store(self) -> Any:
        self.check()
        return SimStore()

    def ingest(self, store: Any, files: Sequence[StateFile], swift: bool) -> None:
        self.check()
        for file in files:
            store.counts.update(decode(self._data(base_name(file.name))))

    def give_own(self, names: Mapping[str, bool], generation: int) -> None:
        return None

    def close(self) -> None:
        self._held.clear()
        self.discard_all_left()


class SimStandbys:
    """Stands for ``flinkplus.runtime.slot.process.standbys.Standbys``."""

    def __init__(self, slot: SimSlot) -> None:
        self._slot = slot
        self._world = slot.world
        self.refuse_next = False
        self._left = self._world.take_left(slot)
        self._discarded: dict[str, dict[str, bytes]] = {}
        self._disks: dict[str, SimDisk] = {}
        self.agent = ReplicationAgent(
            slot.index, self._open_disk, self._send, self._staged, self._later, self._besides, self._clock_ns
        )

    def _open_disk(self, subtask: str) -> SimDisk:
        discarded = self._discarded.setdefault(subtask, {})
        disk = self._disks[subtask] = SimDisk(self._slot, subtask, self._left.pop(subtask, None), discarded)
        return disk

    def remains(self) -> dict[str, dict[str, bytes]]:
        """What is found on the host after the process has died: subtask -> file -> bytes."""
        return {**self._left, **{subtask: disk.remains for subtask, disk in self._disks.items()}}

    def _clock_ns(self) -> int:
        return self._world.now_ms * 1_000_000 + self._slot.process

    def _send(self, peer: int, frame: bytes) -> None:
        message = Message(MessageKind.REPLICA, NO_CHANNEL, Generation(0), Seq(0), CheckpointId(0), frame)
        self._slot.data.send(peer, message)

    def _staged(self, subtask: str, generation: int, version: int) -> None:
        slot, name = self._slot, parse_subtask(subtask)
        self._world.checks.copied(slot, subtask, generation, version)
        slot.report(control.Staged(generation, subtask, version))
        self._world.reach("staged", slot, name)
        predecessor = self.agent._members[subtask].predecessor
        for process in [] if predecessor is None else self._world.on_slot(predecessor):
            self._world.reach("replicated", process, name)

    def _later(self, work: Callable[[], None]) -> None:
        rng = self._world.rng_copies
        if rng.random() < 0.7:
            work()
        else:
            self._world.at(self._world.now_ms + rng.randint(0, 4), self._slot.quietly, work)

    def _besides(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        rng, world = self._world.rng_copies, self._world
        world.at(
            world.now_ms + rng.randint(0, 8), self._slot.quietly, at_once, work, lambda error: self._do(done, error)
        )

    def _do(self, action: Callable[..., None], *arguments: Any) -> None:
        """A copy stays behind when its disk does not work; nothing else may go wrong."""
        try:
            action(*arguments)
        except OSError:
            if self._slot.volume.fails_with is None:
                raise

    # --- what happens

    def form(self, chains: dict[str, tuple[int, tuple[int, ...]]]) -> None:
        self._world.checks.formed(self._slot, chains)
        self._do(self.agent.form, chains)

    def persisted(self, subtask: str, generation: int, handle: SnapshotHandle) -> None:
        self._world.checks.made(subtask, generation, handle)
        self._do(self.agent.persisted, subtask, generation, for_copies(handle))

    def receive(self, peer: int, frame: bytes) -> None:
        self._do(self.agent.receive, peer, frame)

    def peer_connected(self, peer: int) -> None:
        self._do(self.agent.peer_connected, peer)

    def trim(self, version: int) -> None:
        self._do(self.agent.trim, version)

    def abort(self, version: int) -> None:
        self._do(self.agent.abort, version)

    def retire(self, subtask: str) -> None:
        self._do(self.agent.retire, subtask)

    def prepare(self, attempt: int, subtask: str, version: int, handle: SnapshotHandle, generation: int) -> None:
        delay_ms = self._world.rng_work.randint(0, 3)
        self._slot.later(delay_ms, self._prepare, attempt, subtask, version, handle, generation)

    def _prepare(self, attempt: int, subtask: str, version: int, handle: SnapshotHandle, generation: int) -> None:
        failover = self._slot._failover
        assert failover is not None
        prepared: Prepared | None = None
        reason = REFUSED
        if self.refuse_next:
            self.refuse_next = False
        else:
            try:
                if handle.checkpoint:
                    self._world.checks.made(subtask, generation, handle)
                prepared, reason = self.agent.prepare(subtask, version, for_copies(handle), generation), ""
            except (OSError, CorruptState, StateError) as error:
                if self._slot.volume.fails_with is None:
                    reason = str(error)
        failover.ready(StandbyReady(attempt, subtask, prepared, reason))

    def close(self) -> None:
        self.agent.close()
