"""Standby copies on one slot: versions flow down each subtask's chain, and become a running state at a promotion.

Protocol of one hop, from a member to its successor::

    OFFER (handle)  ->            WANT names and offsets of the files that are neither held nor left, or STAGED
    CHUNK ...       ->            ACK each; at most a few are under way per hop
                                  file complete and matching its checksum: held; all of them: STAGED

Rules:
- whoever holds a version whole offers it to its successor, under the generation it got it in, and no other: a version
  of a fenced head goes nowhere;
- offers are taken from the predecessor of the chain's present generation only; one that comes before its ``form`` waits
  for it;
- a torn, altered, repeated or missing frame is noticed by checksum and number, and answered by RESYNC: everything under
  way is offered again, and files go on where they stopped; so is everything when a stream is new. Should a frame get
  lost with no other behind it, the next version's PROBE brings that to light;
- retries are bounded: a file that keeps failing is taken from durable storage, a version that cannot be taken is left
  out, a hop that only loses frames falls silent until the next version or stream;
- a standby's RocksDB gets a version when it is trimmed to, see ``replica``. Between versions nothing runs here;
- a version whose checkpoint is given up is kept only while it is the newest: handles may be large;
- a file that a dead process of this slot has left here is checked ``beside`` everything else, and then held; when it is
  torn or altered, the predecessor is asked for it. The same holds for what a base replaces, when the base is not here;
- a version on a new base is held as soon as its changes are, where what the base replaces is held too; such a base, and
  what the predecessor does not have either, is fetched from durable storage ``beside`` everything else.

Not locked: one thread calls everything. No network, no clock but for numbering streams.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import assert_never

from chain_backup.disk import OpenDisk, base_name
from chain_backup.replication import frames
from chain_backup.replication.figures import ReplicationFigures
from chain_backup.replication.frames import NO_TOPIC, Frame, Kind, Topic, decode
from chain_backup.replication.members import Chain, Member
from chain_backup.replication.replica import Replica, StagedVersion, encode_handle
from chain_backup.replication.transfers import MAX_RESYNCS, MAX_TRIES, Hop, Inbound, Outbound, Partial, Send
from flinkplus.documents import parse_document
from flinkplus.errors import CorruptState, PeerProtocolError, StateError
from flinkplus.printable import printable
from flinkplus.state.backend import Prepared
from flinkplus.state.delta import StateFile

MAX_EARLY_OFFERS = 1024
MAX_ABORTED = 64
"""Checkpoints that were given up since the last trim and are remembered; the oldest are forgotten first."""
MAX_BEHIND = 2
"""Of how many versions a successor is sent each; one that is further behind gets the newest only."""

Staged = Callable[[str, int, int], None]
Beside = Callable[[Callable[[], None], Callable[[Exception | None], None]], None]


def at_once(work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
    """Work that is done where it is asked for."""
    try:
        work()
    except (CorruptState, StateError, OSError) as error:
        done(error)
    else:
        done(None)


log = logging.getLogger("flinkplus")


class ReplicationAgent:
    """Everything about standby copies on ``slot``, except the network.

    ``send(slot, frame)``: to the agent of another slot, reliable and in order while the stream lives, perhaps lost when
    it breaks. ``staged(subtask, generation, version)``: this slot, as a standby, holds all of it. ``later(work)``: run
    ``work`` in the same thread behind all that waits there (some ms of RocksDB for each standby and version); at once,
    if nothing is given. ``beside(work, done)``: run ``work`` in another thread, then ``done`` with its error in this.
    ``open_disk``: where the copies are. ``clock_ns``: for numbers that rise from one process of a slot to the next.
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
        self._clock_ns = clock_ns
        self._send = send
        self._report = staged
        self._later = later
        self._beside = beside
        self._due: dict[str, None] = {}
        self._members: dict[str, Member] = {}
        self._hops: dict[int, Hop] = {}
        self._early: dict[str, tuple[int, Frame]] = {}
        self._transfers = 0
        self._streams = 0
        self._trimmed = 0
        self._aborted: deque[int] = deque(maxlen=MAX_ABORTED)

    # -- who is who -----------------------------------------------------------------------------------------------

    def form(self, chains: Mapping[str, Chain]) -> None:
        """Who follows whom, for the whole job: subtask -> (generation, members, head first)."""
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
        early, self._early = self._early, {}
        for peer, offer in early.values():
            self._take_offer(peer, offer)
        for member in self._members.values():
            self._offer_next(member)

    def _reform(self, member: Member, generation: int, members: tuple[int, ...]) -> None:
        before, predecessor = member.neighbour(self.slot, 1), member.neighbour(self.slot, -1)
        newer = generation > member.generation
        if member.active is not None and member.active < generation:
            self.retire(member.subtask)  # the whole job was stopped, or nobody said so
        member.generation, member.members = generation, members
        successor = member.neighbour(self.slot, 1)
        if newer or successor != before:
            if before is not None:
                self._hop(before).end(member.subtask)
            member.successor_staged = member.refused = 0
        if newer or member.neighbour(self.slot, -1) != predecessor:
            member.inbound = None

    def _member(self, subtask: str) -> Member:
        member = self._members.get(subtask)
        if member is None:
            member = self._members[subtask] = Member(subtask, Replica(self._open_disk(subtask), self.figures))
        return member

    def _drop(self, member: Member, keeps: bool = False) -> None:
        del self._members[member.subtask]
        for hop in self._hops.values():
            hop.end(member.subtask)
        self._discard_partial(member)
        member.replica.close(keeps)

    def _hop(self, peer: int) -> Hop:
        hop = self._hops.get(peer)
        if hop is None:
            hop = self._hops[peer] = Hop(peer, self._new_stream(), self._send)
        return hop

    def _new_stream(self) -> int:
        """Numbers that rise, also from one process of a slot to the next."""
        self._streams = max(self._streams + 1, self._clock_ns())
        return self._streams

    def peer_connected(self, peer: int) -> None:
        """The stream to and from ``peer`` is new: what was under way may be lost, or the peer be another process."""
        self._hop(peer).renew(self._new_stream())
        for member in self._members.values():
            if member.neighbour(self.slot, 1) == peer:
                member.successor_staged = member.refused = 0
                self._offer_next(member)

    # -- the active side ------------------------------------------------------------------------------------------

    def persisted(self, subtask: str, generation: int, handle: dict[str, Any]) -> None:
        """The active subtask here has a new version, which is in storage. Raises ``CorruptState`` for a bad handle and
        ``StateError`` when its files are neither here nor there; the next version is another chance then.
        """
        member = self._member(subtask)
        if generation < member.generation or generation <= member.fenced:
            return  # too late: its successor is another
        files = member.replica.files_of(handle)
        number = int(handle["checkpoint"])
        member.active = generation
        member.inbound = None
        self._discard_partial(member)
        member.replica.take_own(files, generation)
        member.replica.stage(number, generation, encode_handle(handle), files)
        self._forget_aborted(member)
        self._new_version(member)
        self._fetch_next(member)

    def prepare(self, subtask: str, version: int, handle: dict[str, Any], generation: int) -> Prepared:
        """Promotion: the open store of exactly that version, of which this slot is the head from now on.

        An empty ``handle`` is the empty state. Files that are not here come from durable storage, which is slow. Raises
        ``CorruptState`` or ``StateError`` when there is no way to them; nothing is promoted then.
        """
        member = self._member(subtask)
        files = member.replica.files_of(handle)
        member.inbound = None
        self._discard_partial(member)
        prepared = member.replica.promote(files, generation)
        member.active = generation
        if handle:
            member.replica.stage(version, generation, encode_handle(handle), files)
        self._offer_next(member)
        return prepared

    def has_all(self, subtask: str, handle: dict[str, Any]) -> bool:
        """Whether ``prepare`` takes no time."""
        member = self._members.get(subtask)
        try:
            return not handle or (member is not None and not member.replica.missing(member.replica.files_of(handle)))
        except CorruptState:
            return True  # ``prepare`` tells

    def retire(self, subtask: str) -> None:
        """The active subtask here was fenced: a standby again, whose RocksDB is to be made anew."""
        member = self._members.get(subtask)
        if member is not None and member.active is not None:
            member.fenced, member.active = member.active, None

    def trim(self, version: int) -> None:
        """``version`` is complete and stable: standbys apply it, and what is older goes."""
        self._trimmed = max(self._trimmed, version)
        self._aborted = deque((aborted for aborted in self._aborted if aborted > version), MAX_ABORTED)
        for member in list(self._members.values()):
            if member.active is None and self.slot not in member.members:
                self._drop(member)
            else:
                self._tend_soon(member)

    def abort(self, version: int) -> None:
        """The checkpoint of ``version`` is given up."""
        self._aborted.append(version)
        for member in self._members.values():
            self._forget_aborted(member)

    def _forget_aborted(self, member: Member) -> None:
        newest = max(member.replica.staged, default=0)
        aborted = [number for number in member.replica.staged if number in self._aborted and number < newest]
        if aborted:
            member.replica.forget(aborted, () if member.inbound is None else member.inbound.needed)

    # -- the copies -----------------------------------------------------------------------------------------------

    def _tend_soon(self, member: Member) -> None:
        self._due[member.subtask] = None
        if len(self._due) == 1:
            self._later(self._tend_next)

    def _tend_next(self) -> None:
        """Tend one of those that are due. A promotion may come between two: it waits for one of them at most."""
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
        """A standby's RocksDB gets what is trimmed to, and is ready for what is newest; what is older goes."""
        replica = member.replica
        trimmed = replica.newest(self._trimmed)
        if trimmed is not None:
            replica.forget_before(trimmed.number, () if member.inbound is None else member.inbound.needed)
        if member.active is None:
            try:
                if trimmed is not None:
                    replica.apply(trimmed.files)
                    self.figures.versions_applied += 1
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

    # -- sending --------------------------------------------------------------------------------------------------

    def _offer_next(self, member: Member) -> None:
        """Offer the successor the next version that it does not have, unless one is under way."""
        successor = member.neighbour(self.slot, 1)
        if successor is None or member.subtask in self._hop(successor).outbound:
            return
        version = self._next_version(member)
        if version is None:
            return
        self._transfers += 1
        topic = Topic(member.subtask, version.generation, version.number, self._transfers)
        replica = member.replica
        replaced = version.named[0].replaces if version.named else ()
        offered = (*version.named, *replaced)
        names = frozenset(base_name(file.name) for file in offered if replica.holds(file))
        transfer = Outbound(topic, names, replica.disk.open)
        lacks = replica.lacks(offered)
        self._hop(successor).begin(transfer, member.successor_staged, lacks, version.handle)

    def _new_version(self, member: Member) -> None:
        """A version was staged here. If one is still under way, see to it that it does not wait for what was lost."""
        successor = member.neighbour(self.slot, 1)
        if successor is None:
            return
        hop = self._hop(successor)
        if member.subtask not in hop.outbound:
            self._offer_next(member)
        elif hop.resyncs_left == 0:
            hop.resyncs_left = MAX_RESYNCS
            self._offer_again(hop)
        else:
            hop.say(Kind.PROBE, NO_TOPIC)

    def _next_version(self, member: Member) -> StagedVersion | None:
        known = max(member.successor_staged, member.refused)
        waiting = sorted(
            version.number
            for version in member.replica.staged.values()
            if version.number > known and version.generation == member.generation
        )
        if not waiting:
            return None
        behind = member.successor_staged == 0 or len(waiting) > MAX_BEHIND
        return member.replica.staged[waiting[-1 if behind else 0]]

    def _pump(self, hop: Hop) -> None:
        for subtask, error in hop.pump():
            # A name of ours is gone or unreadable: this version stays here; the next one is another chance. Gone it is
            # when the version was trimmed, or is a history that was left, meanwhile.
            level = logging.INFO if isinstance(error, FileNotFoundError) else logging.WARNING
            log.log(level, "cannot read a version of %s to send to slot %d: %s", subtask, hop.peer, error)
            self._give_up(self._members[subtask], hop)

    def _give_up(self, member: Member, hop: Hop) -> None:
        member.refused = max(member.refused, hop.outbound[member.subtask].topic.version)
        hop.end(member.subtask)
        self._offer_next(member)

    def _offer_again(self, hop: Hop) -> None:
        hop.clear()
        for member in self._members.values():
            if member.neighbour(self.slot, 1) == hop.peer:
                self._offer_next(member)

    # -- receiving ------------------------------------------------------------------------------------------------

    def receive(self, peer: int, frame: bytes | memoryview) -> None:
        """A frame came from the agent of slot ``peer``."""
        hop = self._hop(peer)
        try:
            found = decode(frame)
        except PeerProtocolError as error:
            log.warning("malformed replication frame from slot %d: %s", peer, error)
            self.figures.frames_malformed += 1
            self._lost(hop)
            return
        if found.kind is Kind.PROBE:
            hop.resyncs_left = MAX_RESYNCS  # there is a new version: try again
        match hop.accept(found):
            case None:
                self._lost(hop)
                if found.kind is Kind.OFFER:
                    self._take_offer(peer, found)
            case True:
                self._take(hop, found)

    def _lost(self, hop: Hop) -> None:
        """Something from this peer was lost: an answer, perhaps, or a part of an offer."""
        if hop.resyncs_left == 0:
            return
        hop.resync()
        self._offer_again(hop)

    def _take(self, hop: Hop, frame: Frame) -> None:
        match frame.kind:
            case Kind.OFFER:
                self._take_offer(hop.peer, frame)
            case Kind.CHUNK:
                self._take_chunk(hop, frame)
            case Kind.RESYNC:
                self._offer_again(hop)
            case Kind.PROBE:
                hop.say(Kind.ECHO, NO_TOPIC)
            case Kind.ECHO:
                pass
            case Kind.WANT | Kind.ACK | Kind.STAGED | Kind.FAILED:
                self._take_answer(hop, frame)
            case _:
                assert_never(frame.kind)

    def _take_answer(self, hop: Hop, frame: Frame) -> None:
        """The successor says something about the transfer to it; about an older one it has no effect."""
        member = self._members.get(frame.topic.subtask)
        transfer = hop.current(frame.topic)
        if member is None or transfer is None:
            return
        match frame.kind:
            case Kind.WANT:
                wanted = [(name, offset) for name, offset in frame.fields["files"]]
                if all(name in transfer.names for name, _ in wanted):
                    transfer.want(frame.fields["round"], wanted)
                    hop.start(member.subtask)
                else:  # it cannot be served; the next version is another chance
                    self._give_up(member, hop)
            case Kind.ACK:
                if frame.fields["round"] == transfer.round and transfer.unacknowledged:
                    transfer.unacknowledged -= 1
                    hop.resyncs_left = MAX_RESYNCS
            case Kind.STAGED:
                member.successor_staged = max(member.successor_staged, frame.topic.version)
                hop.resyncs_left = MAX_RESYNCS
                hop.end(member.subtask)
                self._offer_next(member)
            case _:
                log.warning(
                    "slot %d refused a version of %s: %s", hop.peer, member.subtask, printable(frame.fields["reason"])
                )
                self._give_up(member, hop)
        self._pump(hop)

    def _take_offer(self, peer: int, frame: Frame) -> None:
        topic = frame.topic
        member = self._members.get(topic.subtask)
        if member is None or topic.generation > member.generation or member.neighbour(self.slot, -1) != peer:
            self._wait_for_chain(peer, frame)
            return
        if topic.generation < member.generation or member.active is not None:
            self.figures.offers_fenced += 1
            return
        self._early.pop(topic.subtask, None)
        handle = bytes(frame.payload)
        known = member.replica.staged.get(topic.version)
        try:
            files = member.replica.files_of(parse_document(handle))
        except (ValueError, TypeError, AttributeError, CorruptState) as error:
            self._hop(peer).say(Kind.FAILED, topic, {"reason": str(error)})
            return
        lacks = frozenset(frame.fields["lacks"])
        inbound = member.inbound = Inbound(peer, topic, handle, files, lacks, deque(), deque())
        again = known is not None and known.handle == handle and known.generation == topic.generation
        self._get(member, inbound, again)

    def _get(self, member: Member, inbound: Inbound, again: bool = False) -> None:
        """Have everything that a version still needs."""
        replica = member.replica
        inbound.serving = replica.serving(inbound.files, inbound.lacks)
        for file in replica.missing(inbound.needed):
            elsewhere = base_name(file.name) in inbound.lacks or replica.disk.has_left(file)
            (inbound.stored if elsewhere else inbound.missing).append(file)
        if inbound.missing:
            self._ask(member, inbound)
        if inbound.stored:
            self._fetch_next(member)
        elif not inbound.missing:
            self._finish(member, inbound, again)

    def _get_otherwise(self, member: Member, inbound: Inbound) -> None:
        """A file cannot be had from where it was to come from."""
        inbound.stored.clear()
        inbound.missing.clear()
        self._get(member, inbound)

    def _go_on(self, member: Member, inbound: Inbound) -> None:
        """A file is held. Was it the last? What was to serve for a base may be gone: then there is more to get."""
        if not (inbound.missing or inbound.stored):
            self._get(member, inbound)

    def _wait_for_chain(self, peer: int, frame: Frame) -> None:
        """An offer whose chain is not known here: perhaps ``form`` is on its way. One is kept for each subtask."""
        subtask = frame.topic.subtask
        member = self._members.get(subtask)
        if member is not None and frame.topic.generation < member.generation:
            self.figures.offers_fenced += 1
            return
        if subtask in self._early or len(self._early) < MAX_EARLY_OFFERS:
            self._early[subtask] = (peer, frame._replace(payload=memoryview(bytes(frame.payload))))

    def _ask(self, member: Member, inbound: Inbound) -> None:
        """Ask for what is missing, from where it stops."""
        partial = member.partial
        if partial is not None and (partial.complete or partial.file not in inbound.missing):
            self._discard_partial(member)
            partial = None
        if partial is not None:  # first, since files arrive one after the other
            inbound.missing.remove(partial.file)
            inbound.missing.appendleft(partial.file)
        inbound.round += 1
        offsets = [partial.offset if partial is not None and partial.file == file else 0 for file in inbound.missing]
        files = [[base_name(file.name), offset] for file, offset in zip(inbound.missing, offsets, strict=True)]
        self._hop(inbound.peer).say(Kind.WANT, inbound.topic, {"files": files, "round": inbound.round})

    def _take_chunk(self, hop: Hop, frame: Frame) -> None:
        member = self._members.get(frame.topic.subtask)
        inbound = None if member is None else member.inbound
        if member is None or inbound is None or inbound.topic != frame.topic or inbound.peer != hop.peer:
            return
        if frame.fields["round"] != inbound.round or not inbound.missing:
            return
        file = inbound.missing[0]
        partial = member.partial
        offset = 0 if partial is None else partial.offset
        fits = 0 < len(frame.payload) <= min(frames.CHUNK_BYTES, file.bytes - offset)
        if (frame.fields["name"], frame.fields["offset"]) != (base_name(file.name), offset) or not fits:
            self._file_failed(member, inbound, file)
            return
        try:
            if partial is None:
                partial = member.partial = Partial.begin(file, member.replica.disk)
            partial.append(frame.payload)
        except OSError as error:
            self._refuse(member, inbound, f"{file.name} cannot be written: {error}")
            return
        self.figures.bytes_received += len(frame.payload)
        hop.resyncs_left = MAX_RESYNCS
        hop.say(Kind.ACK, frame.topic, {"round": inbound.round})
        if partial.complete:
            self._file_complete(member, inbound, partial)

    def _file_complete(self, member: Member, inbound: Inbound, partial: Partial) -> None:
        if not partial.matches:
            self._file_failed(member, inbound, partial.file)
            return
        partial.close()
        member.partial = None
        member.replica.adopt(partial.file)
        inbound.missing.popleft()
        self._go_on(member, inbound)

    def _file_failed(self, member: Member, inbound: Inbound, file: StateFile) -> None:
        """What arrived is not the file: once more, and after a few times from durable storage."""
        self.figures.files_refused += 1
        self._discard_partial(member)
        tries = inbound.tries[file.name] = inbound.tries.get(file.name, 0) + 1
        if tries >= MAX_TRIES and file in inbound.serving:  # durable storage need not have it any more
            inbound.lacks |= {base_name(file.name)}
            self._get_otherwise(member, inbound)
            return
        if tries >= MAX_TRIES:
            inbound.stored.append(inbound.missing.popleft())
        if inbound.missing:
            self._ask(member, inbound)
        self._fetch_next(member)

    def _fetch_next(self, member: Member) -> None:
        """Check what was left here, or fetch from durable storage what is needed from there, one file at a time; last
        the base that is made do without."""
        if member.fetching is not None:
            return
        needed = member.inbound is not None and member.inbound.stored
        file = needed[0] if needed else member.replica.wanted_base
        if file is None:
            return
        member.fetching = file
        disk = member.replica.disk
        if needed and disk.has_left(file):
            self._beside(lambda: disk.check_left(file, swift=False), lambda error: self._checked(member, file, error))
        else:
            self._beside(lambda: disk.download(file), lambda error: self._fetched(member, file, error))

    def _checked(self, member: Member, file: StateFile, error: Exception | None) -> None:
        """What a dead process has left under the name of ``file`` was compared with its checksum."""
        member.fetching = None
        if self._members.get(member.subtask) is not member:
            return
        replica, inbound = member.replica, member.inbound
        needed = inbound is not None and file in inbound.stored
        if error is None and needed:
            try:
                replica.adopt_left(file)
            except OSError as failed:
                error = failed
        if error is not None and not replica.holds(file):  # a promotion may have taken it meanwhile
            replica.refuse_left(file, error)
        if inbound is not None and needed:
            self._after_check(member, inbound, file)
        self._fetch_next(member)

    def _after_check(self, member: Member, inbound: Inbound, file: StateFile) -> None:
        """A needed file that was left here is held now, or its content comes from elsewhere."""
        if member.replica.holds(file):
            inbound.stored.remove(file)
            self._go_on(member, inbound)
        else:
            self._get_otherwise(member, inbound)

    def _fetched(self, member: Member, file: StateFile, error: Exception | None) -> None:
        member.fetching = None
        if self._members.get(member.subtask) is not member:
            return
        replica, inbound = member.replica, member.inbound
        if inbound is not None and file in inbound.stored:
            inbound.stored.remove(file)
            if error is None:
                replica.adopt_downloaded(file)
                self.figures.files_from_storage += 1
                self._go_on(member, inbound)
            else:
                self._refuse(member, inbound, str(error))
        elif error is not None:
            log.info("standby of %s could not fetch its new base: %s", member.subtask, error)
            if inbound is None or not inbound.stored:
                return  # the next version is another chance
        elif replica.serves(file):
            replica.adopt_base(file)
            self.figures.bases_fetched += 1
        else:
            replica.disk.discard_downloaded(base_name(file.name))
        self._fetch_next(member)

    def _refuse(self, member: Member, inbound: Inbound, reason: str) -> None:
        log.warning("standby of %s cannot take version %d: %s", member.subtask, inbound.topic.version, reason)
        self._discard_partial(member)
        member.inbound = None
        self._hop(inbound.peer).say(Kind.FAILED, inbound.topic, {"reason": reason})

    def _finish(self, member: Member, inbound: Inbound, again: bool = False) -> None:
        """All of the version is held."""
        topic = inbound.topic
        member.inbound = None
        if not again:
            member.replica.stage(topic.version, topic.generation, inbound.handle, inbound.files)
        self._hop(inbound.peer).say(Kind.STAGED, topic)
        if not again or member.reported != (topic.generation, topic.version):
            member.reported = (topic.generation, topic.version)
            self._report(member.subtask, topic.generation, topic.version)
        if again:
            self._offer_next(member)  # and no PROBE, which would begin the successor's tries anew for nothing
        else:
            self._new_version(member)
        self._forget_aborted(member)
        self._tend_soon(member)
        self._fetch_next(member)

    def _discard_partial(self, member: Member) -> None:
        partial, member.partial = member.partial, None
        if partial is not None:
            partial.discard()

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self, keeps: bool = False) -> None:
        """Give everything back; what was handed out by ``prepare`` stays with its owner. ``keeps``: the files of the
        copies stay, for the slot's next process.
        """
        for hop in self._hops.values():
            hop.clear()
        for member in list(self._members.values()):
            self._drop(member, keeps)
        self._due.clear()
