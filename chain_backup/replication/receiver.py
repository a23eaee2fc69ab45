"""Versions on their way to this slot: offers, files from the predecessor, from this slot's last process, from storage.

Rules:
- only the predecessor in the chain's present generation may offer; an early offer waits for its ``form``;
- retries are bounded: a file that keeps failing is taken from durable storage, a bad version is skipped;
- a file that a dead process of this slot has left here is checked ``beside`` everything else, and then held; when it is
  torn or altered, the predecessor is asked for it. The same holds for what a base replaces, when the base is not here;
- a file that is shared after another parallelism is fetched from durable storage too: the head need not send it. The
  retention of checkpoints knows nothing of standbys, so storage may not have it any more. The predecessor keeps the
  files of a version until every standby that counts has one as new, and is asked then;
- a version on a new base is held as soon as its changes are, where what the base replaces is held too; such a base, and
  what the predecessor does not have either, is fetched from durable storage ``beside`` everything else.

Invariant: a version is staged and reported only when every file that it needs is held.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chain_backup.disk import Origin, base_name
from chain_backup.replication import frames
from chain_backup.replication.figures import ReplicationFigures
from chain_backup.replication.frames import Frame, FrameKind
from chain_backup.replication.members import Member
from chain_backup.replication.sender import Sender
from chain_backup.replication.transfers import MAX_RESYNCS, MAX_TRIES, Hop, Hops, Inbound, Partial
from chain_backup.replication.upkeep import CopyUpkeep
from flinkplus.documents import parse_document
from flinkplus.errors import CorruptState, StateError
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle

MAX_EARLY_OFFERS = 1024

Staged = Callable[[str, int, int], None]
Beside = Callable[[Callable[[], None], Callable[[Exception | None], None]], None]

log = logging.getLogger("flinkplus")


def at_once(work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
    """A ``Beside`` that does the work in the same thread."""
    try:
        work()
    except (CorruptState, StateError, OSError) as error:
        done(error)
    else:
        done(None)


@dataclass(eq=False, repr=False)
class Receiver:
    """Receives versions for ``members``, and passes each to ``sender``, ``upkeep`` and ``staged`` when it is held
    whole. ``early``: offers whose chain is not known yet, by subtask and peer."""

    _members: Mapping[str, Member]
    _hops: Hops
    _sender: Sender
    _upkeep: CopyUpkeep
    _figures: ReplicationFigures
    _report: Staged
    _beside: Beside
    _early: dict[tuple[str, int], Frame] = field(default_factory=dict, init=False)

    def stop(self, member: Member) -> None:
        """The version under way does not arrive, and no other is expected soon."""
        member.inbound = None
        self._discard_partial(member)

    def _discard_partial(self, member: Member) -> None:
        partial, member.partial = member.partial, None
        if partial is not None:
            partial.discard()

    # -- offers ---------------------------------------------------------------------------------------------------

    def take_early_offers(self) -> None:
        """The chains are others now: perhaps those of offers that came early."""
        early, self._early = self._early, {}
        for (_, peer), offer in early.items():
            self.take_offer(peer, offer)

    def take_offer(self, peer: int, frame: Frame) -> None:
        topic = frame.topic
        member = self._members.get(topic.subtask)
        if member is None or topic.generation > member.generation or member.predecessor != peer:
            self._wait_for_chain(peer, frame)
            return
        if topic.generation < member.generation or member.active is not None:
            self._figures.offers_fenced += 1
            return
        self._early.pop((topic.subtask, peer), None)
        handle = bytes(frame.payload)
        known = member.replica.staged.get(topic.version)
        try:
            files = member.replica.files_of(SnapshotHandle.from_json(parse_document(handle)))
        except (ValueError, CorruptState) as error:
            self._hops[peer].send(FrameKind.FAILED, topic, {"reason": str(error)})
            return
        lacks = frozenset(frame.fields["lacks"])
        inbound = member.inbound = Inbound(peer, topic, handle, files, lacks, deque(), deque())
        again = known is not None and known.handle == handle and known.generation == topic.generation
        self._get(member, inbound, again)

    def _wait_for_chain(self, peer: int, frame: Frame) -> None:
        """Keep an offer whose chain is not known here; ``form`` may be on its way. One for each peer and subtask: the
        old predecessor may still offer versions after the offer of the next one."""
        key = frame.topic.subtask, peer
        member = self._members.get(frame.topic.subtask)
        if member is not None and frame.topic.generation < member.generation:
            self._figures.offers_fenced += 1
            return
        if key in self._early or len(self._early) < MAX_EARLY_OFFERS:
            self._early[key] = frame._replace(payload=memoryview(bytes(frame.payload)))

    def _get(self, member: Member, inbound: Inbound, again: bool = False) -> None:
        """Ask for, or fetch, every file that a version still needs. ``again``: it was staged before."""
        replica = member.replica
        inbound.serving = replica.serving(inbound.files, inbound.lacks)
        for file in replica.missing(inbound.needed):
            shared = file.clip is not None and file not in inbound.serving and file.name not in inbound.not_stored
            elsewhere = shared or base_name(file.name) in inbound.lacks or replica.disk.has_left(file)
            (inbound.stored if elsewhere else inbound.missing).append(file)
        if inbound.missing:
            self._ask(member, inbound)
        if inbound.stored:
            self.fetch_next(member)
        elif not inbound.missing:
            self._finish(member, inbound, again)

    def _get_otherwise(self, member: Member, inbound: Inbound) -> None:
        """A file cannot be had from where it was to come from."""
        inbound.stored.clear()
        inbound.missing.clear()
        self._get(member, inbound)

    def _after_file(self, member: Member, inbound: Inbound) -> None:
        """A file is held. If it was the last, what was to serve for a base may be gone: then there is more to get."""
        if not (inbound.missing or inbound.stored):
            self._get(member, inbound)

    def _refuse(self, member: Member, inbound: Inbound, reason: str) -> None:
        log.warning("standby of %s cannot take version %d: %s", member.subtask, inbound.topic.version, reason)
        self.stop(member)
        self._hops[inbound.peer].send(FrameKind.FAILED, inbound.topic, {"reason": reason})

    def _finish(self, member: Member, inbound: Inbound, again: bool = False) -> None:
        """All of the version is held."""
        topic = inbound.topic
        member.inbound = None
        if not again:
            member.replica.stage(topic.version, topic.generation, inbound.handle, inbound.files)
        self._hops[inbound.peer].send(FrameKind.STAGED, topic)
        if not again or member.reported != (topic.generation, topic.version):
            member.reported = (topic.generation, topic.version)
            self._report(member.subtask, topic.generation, topic.version)
        if again:
            self._sender.offer_next(member)  # and no PROBE, which would restart the successor's tries for nothing
        else:
            self._sender.new_version(member)
        self._upkeep.forget_aborted(member)
        self._upkeep.tend_soon(member)
        self.fetch_next(member)

    # -- files from the predecessor -------------------------------------------------------------------------------

    def _ask(self, member: Member, inbound: Inbound) -> None:
        """Ask for what is missing, from where it stops."""
        partial = member.partial
        if partial is not None and (partial.complete or partial.file not in inbound.missing):
            self._discard_partial(member)
            partial = None
        if partial is not None:  # first, since files arrive one after the other
            inbound.missing.remove(partial.file)
            inbound.missing.appendleft(partial.file)
        inbound.asked += 1
        offsets = [partial.offset if partial is not None and partial.file == file else 0 for file in inbound.missing]
        files = [[base_name(file.name), offset] for file, offset in zip(inbound.missing, offsets, strict=True)]
        self._hops[inbound.peer].send(FrameKind.WANT, inbound.topic, {"files": files, "asked": inbound.asked})

    def take_chunk(self, hop: Hop, frame: Frame) -> None:
        member = self._members.get(frame.topic.subtask)
        inbound = None if member is None else member.inbound
        if member is None or inbound is None or inbound.topic != frame.topic or inbound.peer != hop.peer:
            return
        if frame.fields["asked"] != inbound.asked or not inbound.missing:
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
        self._figures.bytes_received += len(frame.payload)
        hop.resyncs_left = MAX_RESYNCS
        hop.send(FrameKind.ACK, frame.topic, {"asked": inbound.asked})
        if partial.complete:
            self._file_complete(member, inbound, partial)

    def _file_complete(self, member: Member, inbound: Inbound, partial: Partial) -> None:
        if not partial.matches:
            self._file_failed(member, inbound, partial.file)
            return
        partial.close()
        member.partial = None
        member.replica.adopt(partial.file, Origin.ARRIVED)
        inbound.missing.popleft()
        self._after_file(member, inbound)

    def _file_failed(self, member: Member, inbound: Inbound, file: StateFile) -> None:
        """What arrived is not the file: ask once more, and after a few times fetch it from durable storage."""
        self._figures.files_refused += 1
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
        self.fetch_next(member)

    # -- files from elsewhere -------------------------------------------------------------------------------------

    def fetch_next(self, member: Member) -> None:
        """Check or fetch the next file that is needed from here or from durable storage; last, the base that older
        files substitute."""
        if member.fetching is not None:
            return
        needed = member.inbound is not None and member.inbound.stored
        file = needed[0] if needed else member.replica.wanted_base
        if file is None:
            return
        member.fetching = file
        disk = member.replica.disk
        left = needed and disk.has_left(file)

        def done(error: Exception | None) -> None:
            member.fetching = None
            if self._members.get(member.subtask) is member:
                (self._checked if left else self._fetched)(member, file, error)

        self._beside(lambda: disk.check_left(file, swift=False) if left else disk.download(file), done)

    def _checked(self, member: Member, file: StateFile, error: Exception | None) -> None:
        """What a dead process has left under the name of ``file`` was compared with its checksum."""
        replica, inbound = member.replica, member.inbound
        needed = inbound is not None and file in inbound.stored
        if error is None and needed:
            try:
                replica.adopt(file, Origin.LEFT)
            except OSError as failed:
                error = failed
        if error is not None and not replica.holds(file):  # a promotion may have taken it meanwhile
            replica.refuse_left(file, error)
        if inbound is not None and needed:
            self._after_check(member, inbound, file)
        self.fetch_next(member)

    def _after_check(self, member: Member, inbound: Inbound, file: StateFile) -> None:
        """A needed file that was left here is held now, or its content comes from elsewhere."""
        if member.replica.holds(file):
            inbound.stored.remove(file)
            self._after_file(member, inbound)
        else:
            self._get_otherwise(member, inbound)

    def _fetched(self, member: Member, file: StateFile, error: Exception | None) -> None:
        """The download of ``file`` has ended."""
        replica, inbound = member.replica, member.inbound
        if inbound is not None and file in inbound.stored:
            inbound.stored.remove(file)
            if error is None:
                replica.adopt(file, Origin.DOWNLOADED)
                self._figures.files_from_storage += 1
                self._after_file(member, inbound)
            else:
                self._not_stored(member, inbound, file, error)
        elif error is not None:
            log.info("standby of %s could not fetch its new base: %s", member.subtask, error)
            if inbound is None or not inbound.stored:
                return  # the next version is another chance
        elif replica.serves(file):
            replica.adopt_base(file)
            self._figures.bases_fetched += 1
        else:
            replica.disk.discard(base_name(file.name), Origin.DOWNLOADED)
        self.fetch_next(member)

    def _not_stored(self, member: Member, inbound: Inbound, file: StateFile, error: Exception) -> None:
        """Durable storage did not give a needed file: the predecessor is asked, unless it cannot give it either."""
        if base_name(file.name) in inbound.lacks or inbound.tries.get(file.name, 0) >= MAX_TRIES:
            self._refuse(member, inbound, str(error))
            return
        log.info("standby of %s asks slot %d for a shared file: %s", member.subtask, inbound.peer, error)
        inbound.not_stored.add(file.name)
        self._get_otherwise(member, inbound)
