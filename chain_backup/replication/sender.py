"""Versions on their way to the successors in the chains: what is offered next, and what is sent again.

Rules:
- a member that holds a version whole offers it to its successor, in the generation in which it received it, and in no
  other: a version of a fenced head is not passed on;
- one version at a time is on its way to a successor. A successor that is far behind gets the newest only;
- retries are bounded: a version that the successor cannot take, or that cannot be read here, is skipped; a hop that
  only loses frames falls silent until the next version or stream. The next version's PROBE reveals a lost frame.

Invariant: a transfer under way is of the member's present generation, to its present successor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from chain_backup.disk import base_name
from chain_backup.replication.frames import NO_TOPIC, Frame, FrameKind, Topic
from chain_backup.replication.members import Member
from chain_backup.replication.replica import StagedVersion
from chain_backup.replication.transfers import MAX_RESYNCS, Hop, Hops, Outbound
from flinkplus.printable import printable

MAX_BEHIND = 2
"""Maximum of versions that a successor is sent one by one; one that is further behind gets the newest only."""

log = logging.getLogger("flinkplus")


class Sender:
    """Sends the versions of ``members`` over ``hops``."""

    def __init__(self, members: Mapping[str, Member], hops: Hops) -> None:
        self._members = members
        self._hops = hops
        self._transfers = 0

    def start_over(self, member: Member, before: int | None = None) -> None:
        """Nothing is known of what the successor has. ``before``: the one that a transfer may be under way to."""
        if before is not None:
            self._hops[before].end(member.subtask)
        member.successor_staged = member.refused = 0

    def peer_connected(self, peer: int) -> None:
        """The stream to ``peer`` is new: offer everything that it may lack."""
        for member in self._members.values():
            if member.successor == peer:
                self.start_over(member)
                self.offer_next(member)

    def offer_next(self, member: Member) -> None:
        """Offer the successor the next version that it does not have, unless one is under way."""
        successor = member.successor
        if successor is None or member.subtask in self._hops[successor].outbound:
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
        lacks = [base_name(file.name) for file in offered if not replica.holds(file)]
        self._hops[successor].begin(transfer, member.successor_staged, lacks, version.handle)

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

    def new_version(self, member: Member) -> None:
        """A version was staged here. If one is still under way, make sure that it does not wait for lost frames."""
        successor = member.successor
        if successor is None:
            return
        hop = self._hops[successor]
        if member.subtask not in hop.outbound:
            self.offer_next(member)
        elif hop.resyncs_left == 0:
            hop.resyncs_left = MAX_RESYNCS
            self.offer_again(hop)
        else:
            hop.send(FrameKind.PROBE, NO_TOPIC)

    def offer_again(self, hop: Hop) -> None:
        """Frames to or from this peer were lost: offer everything under way again."""
        hop.clear()
        for member in self._members.values():
            if member.successor == hop.peer:
                self.offer_next(member)

    def take_answer(self, hop: Hop, frame: Frame) -> None:
        """The successor answers about the transfer to it; answers about an older one are ignored."""
        member = self._members.get(frame.topic.subtask)
        transfer = hop.current(frame.topic)
        if member is None or transfer is None:
            return
        match frame.kind:
            case FrameKind.WANT:
                wanted = [(name, offset) for name, offset in frame.fields["files"]]
                if all(name in transfer.names for name, _ in wanted):
                    transfer.want(frame.fields["asked"], wanted)
                    hop.start(member.subtask)
                else:  # it cannot be served; the next version is another chance
                    self._give_up(member, hop)
            case FrameKind.ACK:
                if frame.fields["asked"] == transfer.asked and transfer.unacknowledged:
                    transfer.unacknowledged -= 1
                    hop.resyncs_left = MAX_RESYNCS
            case FrameKind.STAGED:
                member.successor_staged = max(member.successor_staged, frame.topic.version)
                hop.resyncs_left = MAX_RESYNCS
                hop.end(member.subtask)
                self.offer_next(member)
            case _:
                reason = printable(frame.fields["reason"])
                log.warning("slot %d refused a version of %s: %s", hop.peer, member.subtask, reason)
                self._give_up(member, hop)
        self._pump(hop)

    def _pump(self, hop: Hop) -> None:
        for subtask, error in hop.pump():
            # A file is gone or unreadable: this version is not sent; the next one is another chance. A file is gone
            # when its version was trimmed meanwhile, or belongs to a history that was left.
            level = logging.INFO if isinstance(error, FileNotFoundError) else logging.WARNING
            log.log(level, "cannot read a version of %s to send to slot %d: %s", subtask, hop.peer, error)
            self._give_up(self._members[subtask], hop)

    def _give_up(self, member: Member, hop: Hop) -> None:
        member.refused = max(member.refused, hop.outbound[member.subtask].topic.version)
        hop.end(member.subtask)
        self.offer_next(member)
