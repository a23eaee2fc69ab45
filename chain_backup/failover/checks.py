"""Rejects impossible events before they change anything."""

from __future__ import annotations

from chain_backup.failover import events
from chain_backup.failover.recovery_line import VersionCursors
from chain_backup.failover.topology import Topology
from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId, invariant


class EventCheck:
    """Knows the subtasks, channels and slots of a job; spare slots are added when they join.

    ``before``, ``until``: the check of the subtasks before these, and the newest generation that they had: a rescale
    has replaced them. Late reports about them, and of slots of theirs that have ended, are no errors.
    """

    def __init__(
        self,
        topology: Topology,
        slots: tuple[int, ...],
        before: EventCheck | None = None,
        until: Generation | None = None,
    ) -> None:
        self._own = slots
        self._slots = set(slots)  # never iterated
        self._channels = {
            subtask: (frozenset(topology.inputs(subtask)), frozenset(topology.outputs(subtask)))
            for subtask in topology.subtasks
        }
        self._former: frozenset[SubtaskId] = frozenset()
        self._until = until or Generation(0)
        if before is not None:
            self._slots |= before._slots
            self._former = before._former.union(before._channels)

    def is_stale(self, event: events.FailoverEvent) -> bool:
        """Whether a slot reports about a subtask that a rescale has replaced, when that is over."""
        match event:
            case (
                events.SubtaskFailed(subtask, generation)
                | events.HeadPersisted(subtask, generation)
                | events.VersionStaged(subtask, _, generation)
            ):
                return generation <= self._until and subtask in self._former
            case events.StandbyPromotionFailed(_, _, subtask):
                return subtask in self._former and subtask not in self._channels
            case _:
                return False

    def __call__(self, event: events.FailoverEvent, newest: Generation, running: bool) -> None:
        """Raise ``PeerProtocolError``, or ``InvariantViolation`` where only the coordinator can be wrong.

        ``newest``: the newest generation ever used.
        """
        match event:
            case events.JobStarted():
                self._check_start(event, newest, running)
            case events.SlotJoined(slot):
                if slot >= 0:
                    self._slots.add(slot)  # a spare one; late messages about one that has ended do no harm
                self._check_slot(slot)
            case (
                events.SlotLost(slot)
                | events.SlotFenced(_, slot)
                | events.SlotFencedPart(_, slot)
                | events.StandbysPromoted(_, slot)
            ):
                self._check_slot(slot)
            case events.SubtaskFailed(subtask, generation):
                self._check_subtask(subtask, generation, newest)
            case events.MoveRequested(_, subtask):
                if subtask not in self._former:  # otherwise the user named it before the rescale: refused
                    self._check_subtask(subtask, Generation(0), newest)
            case events.HeadPersisted(subtask, generation, _, cursors):
                self._check_subtask(subtask, generation, newest)
                if not self._fits(subtask, cursors):
                    raise PeerProtocolError(f"the cursors of {subtask} name a channel of another subtask")
            case events.VersionStaged(subtask, slot, generation):
                self._check_slot(slot)
                self._check_subtask(subtask, generation, newest)
            case events.StandbyPromotionFailed(_, slot, subtask):
                self._check_slot(slot)
                self._check_subtask(subtask, Generation(0), newest)
            case _:
                pass

    def _check_start(self, event: events.JobStarted, newest: Generation, running: bool) -> None:
        invariant(not running, "the job was started while it runs", generation=event.generation)
        invariant(event.generation > newest, "a generation was used again", newest=newest, started=event.generation)
        invariant(event.version >= 0, "versions begin with 0", version=event.version)
        hosts = tuple(sorted(slot for slot, _ in event.hosts))
        invariant(hosts == self._own, "every slot has one host", given=event.hosts)
        for subtask, slot in event.heads:
            self._check_subtask(subtask, Generation(0), newest)
            invariant(slot in self._own, "a subtask was deployed on a slot that the job does not have", slot=slot)
        for subtask, cursors in event.cursors:
            self._check_subtask(subtask, Generation(0), newest)
            invariant(self._fits(subtask, cursors), "cursors name a channel of another subtask", subtask=subtask)

    def _fits(self, subtask: SubtaskId, cursors: VersionCursors) -> bool:
        inputs, outputs = self._channels[subtask]
        return inputs.issuperset(cursors.inputs) and outputs.issuperset(cursors.outputs)

    def _check_slot(self, slot: int) -> None:
        if slot not in self._slots:
            raise PeerProtocolError(f"slot {slot} does not exist and never did")

    def _check_subtask(self, subtask: SubtaskId, generation: Generation, newest: Generation) -> None:
        if subtask not in self._channels:
            raise PeerProtocolError(f"received a message about {subtask}, which is not a subtask of the job")
        if generation > newest:
            raise PeerProtocolError(
                f"received a message of generation {generation} of {subtask}, but {newest} is the newest"
            )
