"""Standby copies on one slot: versions flow down each subtask's chain, and become a running state at a promotion.

Protocol of one hop, from a member to its successor::

    OFFER (handle)  ->            WANT names and offsets of the files that are neither held nor left, or STAGED
    CHUNK ...       ->            ACK each; at most a few are under way per hop
                                  file complete and matching its checksum: held; all of them: STAGED

``ReplicationAgent`` follows the chains and passes frames to ``sender`` (to successors), ``receiver`` (from
predecessors), ``upkeep`` (of the copies).

Rules:
- a torn, altered, repeated or missing frame is noticed by checksum and number, and answered by RESYNC: everything under
  way is offered again, and files continue where they stopped. The same happens when a stream is new;
- versions come from the active subtask here or from the predecessor, never from both: the active side takes no offers;
- one thread calls everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from typing_extensions import assert_never

from chain_backup.disk import OpenDisk
from chain_backup.replication.figures import ReplicationFigures
from chain_backup.replication.frames import NO_TOPIC, Frame, FrameKind, decode
from chain_backup.replication.members import Formation, Member
from chain_backup.replication.receiver import Beside, Receiver, Staged, at_once
from chain_backup.replication.replica import Replica, encode_handle
from chain_backup.replication.sender import Sender
from chain_backup.replication.transfers import MAX_RESYNCS, Hop, Hops, Send
from chain_backup.replication.upkeep import CopyUpkeep
from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.state.backend import Prepared

log = logging.getLogger("flinkplus")


class ReplicationAgent:
    """Everything about standby copies on ``slot``, except the network.

    ``open_disk``: where the copies are.
    ``send(slot, frame)``: to the agent of another slot; reliable and in order while the stream lives.
    ``staged(subtask, generation, version)``: this slot, as a standby, holds all of it.
    ``later(work)``: run ``work`` in the same thread behind all that waits there (some ms for each standby and version).
    ``beside(work, done)``: run ``work`` in another thread, then ``done`` with its error in this.
    ``clock_ns``: for numbers that rise from one process of a slot to the next.
    """

    def __init__(
        self,
        slot: int,
        open_disk: OpenDisk,
        send: Send,
        staged: Staged,
        later: Callable[[Callable[[], None]], None] = lambda work: work(),
        beside: Beside = at_once,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.slot = slot
        self.figures = ReplicationFigures()
        self._open_disk = open_disk
        self._members: dict[str, Member] = {}
        self._hops = Hops(send, clock_ns)
        self._sender = Sender(self._members, self._hops)
        self._upkeep = CopyUpkeep(self._members, self.figures, later)
        self._receiver = Receiver(self._members, self._hops, self._sender, self._upkeep, self.figures, staged, beside)

    # -- the chains -----------------------------------------------------------------------------------------------

    def form(self, chains: Mapping[str, Formation]) -> None:
        """The chains of the whole job: subtask -> (generation, members, head first)."""
        for subtask in [known for known in self._members if known not in chains]:
            self._drop(self._members[subtask])
        for subtask, (generation, members) in chains.items():
            member = self._members.get(subtask)
            if member is None:
                if self.slot not in members:
                    continue
                member = self._member(subtask)
            if generation >= member.generation:
                self._reform(member, generation, tuple(members))
        self._receiver.take_early_offers()
        for member in self._members.values():
            self._sender.offer_next(member)

    def _reform(self, member: Member, generation: int, members: tuple[int, ...]) -> None:
        successor, predecessor = member.successor, member.predecessor
        newer = generation > member.generation
        if member.active is not None and member.active < generation:
            self.retire(member.subtask)  # the whole job was stopped, or the fence is still on its way
        member.generation, member.members = generation, members
        if newer or member.successor != successor:
            self._sender.start_over(member, successor)
        if newer or member.predecessor != predecessor:
            member.inbound = None  # what is here of a file is kept for the next offer

    def _member(self, subtask: str) -> Member:
        member = self._members.get(subtask)
        if member is None:
            replica = Replica(self._open_disk(subtask), self.figures)
            member = self._members[subtask] = Member(subtask, self.slot, replica)
        return member

    def _drop(self, member: Member, keeps: bool = False) -> None:
        del self._members[member.subtask]
        for hop in self._hops.values():
            hop.end(member.subtask)
        self._receiver.stop(member)
        member.replica.close(keeps)

    def peer_connected(self, peer: int) -> None:
        """The stream to and from ``peer`` is new: what was under way may be lost, or the peer be another process."""
        self._hops.renew(peer)
        self._sender.peer_connected(peer)

    # -- the active side ------------------------------------------------------------------------------------------

    def persisted(self, subtask: str, generation: int, handle: SnapshotHandle) -> None:
        """The active subtask here has a new version, which is in storage. Raises ``CorruptState`` for a bad handle and
        ``StateError`` when its files are neither here nor there; the next version is another chance then."""
        member = self._member(subtask)
        if generation < member.generation or generation <= member.fenced:
            return  # too late: the head is another
        files, number = member.replica.files_of(handle), handle.checkpoint
        member.active = generation
        self._receiver.stop(member)
        member.replica.take_own(files, generation)
        member.replica.stage(number, generation, encode_handle(handle), files)
        self._upkeep.forget_aborted(member)
        self._sender.new_version(member)
        self._receiver.fetch_next(member)

    def prepare(self, subtask: str, version: int, handle: SnapshotHandle, generation: int) -> Prepared:
        """Promotion: the open store of exactly that version, of which this slot is the head from now on. Files that are
        not here come from durable storage: slow. Raises ``CorruptState`` or ``StateError`` without them."""
        member = self._member(subtask)
        files = member.replica.files_of(handle)
        self._receiver.stop(member)
        prepared = member.replica.promote(files, generation)
        member.active = generation
        if handle.checkpoint:
            member.replica.stage(version, generation, encode_handle(handle), files)
        self._sender.offer_next(member)
        return prepared

    def has_all(self, subtask: str, handle: SnapshotHandle) -> bool:
        """Whether ``prepare`` takes no time."""
        member = self._members.get(subtask)
        return not handle.files or (member is not None and not member.replica.missing(handle.files))

    def retire(self, subtask: str) -> None:
        """The active subtask here was fenced: a standby again, with a new RocksDB."""
        member = self._members.get(subtask)
        if member is not None and member.active is not None:
            member.fenced, member.active = member.active, None

    def trim(self, version: int) -> None:
        """``version`` is complete and stable: standbys apply it, and older versions go."""
        self._upkeep.trimmed(version)
        for member in list(self._members.values()):
            if member.active is None and self.slot not in member.members:
                self._drop(member)
            else:
                self._upkeep.tend_soon(member)

    def abort(self, version: int) -> None:
        """The checkpoint of ``version`` is aborted."""
        self._upkeep.aborted(version)

    # -- frames ---------------------------------------------------------------------------------------------------

    def receive(self, peer: int, frame: bytes | memoryview) -> None:
        """A frame came from the agent of slot ``peer``."""
        hop = self._hops[peer]
        try:
            found = decode(frame)
        except PeerProtocolError as error:
            log.warning("malformed replication frame from slot %d: %s", peer, error)
            self.figures.frames_malformed += 1
            self._lost(hop)
            return
        if found.kind is FrameKind.PROBE:
            hop.resyncs_left = MAX_RESYNCS  # there is a new version: try again
        accepted = hop.accept(found)
        if accepted:
            self._take(hop, found)
        elif accepted is None:
            self._lost(hop)
            if found.kind is FrameKind.OFFER:
                self._receiver.take_offer(peer, found)

    def _lost(self, hop: Hop) -> None:
        """A frame from this peer was lost: an answer, perhaps, or a part of an offer."""
        if hop.resync():
            self._sender.offer_again(hop)

    def _take(self, hop: Hop, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.OFFER:
                self._receiver.take_offer(hop.peer, frame)
            case FrameKind.CHUNK:
                self._receiver.take_chunk(hop, frame)
            case FrameKind.RESYNC:
                self._sender.offer_again(hop)
            case FrameKind.PROBE:
                hop.send(FrameKind.ECHO, NO_TOPIC)
            case FrameKind.ECHO:
                pass
            case FrameKind.WANT | FrameKind.ACK | FrameKind.STAGED | FrameKind.FAILED:
                self._sender.take_answer(hop, frame)
            case _:
                assert_never(frame.kind)

    def close(self, keeps: bool = False) -> None:
        """Close all copies, but not the stores that ``prepare`` returned. ``keeps``: the files stay."""
        for hop in self._hops.values():
            hop.clear()
        for member in list(self._members.values()):
            self._drop(member, keeps)
        self._upkeep.close()
