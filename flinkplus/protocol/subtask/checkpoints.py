"""Checkpoints of one subtask: carries out what its barrier machine decides, and gives the machine its events.

The machine is the algorithm (``protocol.barriers``). This module has what is common to all algorithms: the channels'
cursors at each snapshot, what the outputs may trim, how a snapshot becomes a handle.

Rules: one thread, that of the steps. Barriers and snapshots fall between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import assert_never

from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.barriers.cyclic import CyclicAlignment
from flinkplus.protocol.barriers.unaligned import UnalignedBarriers
from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.subtask.channel_state import ChannelState
from flinkplus.protocol.subtask.identity import SubtaskIdentity
from flinkplus.protocol.subtask.parts import SubtaskParts
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, invariant
from flinkplus.protocol.vocabulary.in_flight import MAX_OVERTAKEN_BYTES, AbortCause, Logs
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

NO_TIME_MS = 0
"""Barrier machines have no deadlines: the coordinator times every checkpoint."""


class SubtaskCheckpoints:
    """The checkpoint side of one subtask.

    ``saved``: the protocol's part of the snapshot that the subtask starts from.
    ``parts``: with all input and output channels.
    ``gather``: returns the protocol's part of a new snapshot.

    ``unaligned``: the barrier machine, where barriers may overtake; otherwise ``None``.
    ``paused_by``: the synchronous checkpoint whose end the subtask waits for.
    """

    def __init__(
        self,
        identity: SubtaskIdentity,
        saved: OperatorState,
        parts: SubtaskParts,
        gather: Callable[[CheckpointId], OperatorState],
    ) -> None:
        self._identity = identity
        self._inputs = parts.inputs
        self._outputs = parts.outputs
        self._replay = parts.replay
        self._port = parts.snapshots
        self._reached = parts.reports.reached
        self._gather = gather
        self._keeps_outputs = parts.local
        self.channel_state = ChannelState(identity.in_flight)
        self.paused_by: CheckpointId | None = None
        version = self._complete = identity.checkpoint
        self._cursors_at: dict[CheckpointId, dict[str, int]] = {version: dict(saved.outputs)}  # of the outputs
        self._inputs_at: dict[CheckpointId, dict[str, int]] = {}
        self._outputs.epoch = version
        self._machine = _machine(identity, tuple(sorted(self._inputs.channels)), saved)
        self.unaligned = self._machine if isinstance(self._machine, UnalignedBarriers) else None

    def saved(self, checkpoint: CheckpointId) -> OperatorState:
        """This part of the snapshot of ``checkpoint``: cursors of every channel, later checkpoints that are aborted."""
        return OperatorState(
            inputs={**self._inputs.cursors(), **self._inputs_at.get(checkpoint, {})},
            outputs=self._cursors_behind_barrier(),
            aborted=tuple(self._machine.aborted),
        )

    def _cursors_behind_barrier(self) -> dict[str, int]:
        """Cursors of the outputs behind the barrier, which is appended next."""
        return {channel: seq + 1 for channel, seq in self._outputs.cursors().items()}

    def trim(self, version: CheckpointId) -> None:
        """No subtask restarts from before ``version``: drop what was sent before it."""
        cursors = self._cursors_at.get(version)
        if cursors is not None:
            self._outputs.trim(cursors)
        self._cursors_at = {number: found for number, found in self._cursors_at.items() if number >= version}

    def resume_after(self, checkpoint: CheckpointId) -> None:
        """``checkpoint`` and all before it have ended: stop waiting for them."""
        self._complete = max(self._complete, checkpoint)
        if self.paused_by is not None and self.paused_by <= checkpoint:
            self.paused_by = None

    def complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete."""
        self.resume_after(checkpoint)
        self._port.complete(checkpoint)

    def persisted(self, checkpoint: CheckpointId, handle: SnapshotHandle | None, reason: str) -> None:
        """The asynchronous part of a snapshot ended, with a handle or a reason why not."""
        excess = self.channel_state.persisted(checkpoint, handle)
        if excess:
            self.handle(events.SnapshotFailed(checkpoint, excess, AbortCause.OVER_BUDGET))
        elif handle is not None and not reason:
            self.handle(events.SnapshotPersisted(checkpoint, handle))
        else:
            self.handle(events.SnapshotFailed(checkpoint, reason))

    def barrier_taken(self, end: InputChannel, checkpoint: CheckpointId) -> None:
        """A step took the barrier of ``checkpoint`` from a channel."""
        if not self._identity.guarantee.aligns:  # after a restart from this snapshot, what follows is sent again
            self._inputs_at.setdefault(checkpoint, {}).setdefault(str(end.channel), end.cursor.consumed)
        self.handle(events.BarrierTaken(end.channel, checkpoint))

    def completes(self, channel: ChannelId, checkpoint: CheckpointId) -> bool:
        """Whether the subtask sends its own barrier of ``checkpoint`` once that of this channel is taken."""
        return self._machine.completes(channel, checkpoint)

    def overtake(self, checkpoint: CheckpointId) -> None:
        """The barriers of ``checkpoint`` must not wait, whether they are sent already or not."""
        if self.unaligned is not None:
            self.carry_out(self.unaligned.step(NO_TIME_MS, events.OvertakingOrdered(checkpoint)))
            if self._outputs.epoch >= checkpoint:
                self._outputs.overdraw()

    def arrived(self, machine: UnalignedBarriers, message: Message, payload: Any) -> None:
        """A new message waits in one of the channels."""
        if self.channel_state.recording:
            self.channel_state.arrived(message.channel, message, payload)
        if message.kind is MessageKind.BARRIER:
            self.carry_out(machine.step(NO_TIME_MS, events.BarrierArrived(message.channel, message.epoch)))

    def decide_overtaking(self, checkpoint: CheckpointId) -> list[effects.BarrierEffect]:
        """Like ``decide``, for the event that the barrier of ``checkpoint`` overtakes now."""
        assert self.unaligned is not None
        return self.unaligned.step(NO_TIME_MS, events.BarrierOvertook(checkpoint))

    def can_hold(self, machine: UnalignedBarriers, checkpoint: CheckpointId) -> bool:
        """Whether a snapshot may hold what the barrier of ``checkpoint`` would overtake; an estimate."""
        room = self._identity.in_flight.room
        for channel in machine.overtaken_by(checkpoint):
            size_bytes, in_snapshot = self._inputs.channels[channel].waiting_before(checkpoint, room)
            room -= in_snapshot
            if size_bytes >= MAX_OVERTAKEN_BYTES or room < 0:
                return False
        return True

    def decide(self, event: events.BarrierEvent) -> list[effects.BarrierEffect]:
        """The effects of ``event``; the caller passes them to ``carry_out`` when the step has begun."""
        return self._machine.step(NO_TIME_MS, event)

    def handle(self, event: events.BarrierEvent) -> None:
        """Carry out the effects of ``event``."""
        self.carry_out(self.decide(event))

    def carry_out(self, found: Sequence[effects.BarrierEffect]) -> None:
        """Carry out effects of the machine, in this order."""
        for effect in found:
            self._apply(effect)

    def _apply(self, effect: effects.BarrierEffect) -> None:
        channels = self._inputs.channels
        match effect:
            case effects.BlockChannel(channel):
                channels[channel].blocked = True
                self._reached("alignment")
            case effects.UnblockChannel(channel):
                channels[channel].blocked = False
            case effects.TakeSnapshot(checkpoint):
                self._take(checkpoint)
            case effects.ForwardBarrier(checkpoint, overtakes):
                self._outputs.broadcast(MessageKind.BARRIER, checkpoint, overtakes)
            case effects.PersistSnapshot(checkpoint):
                handle = self._port.persist(checkpoint, self.channel_state.logs_of(checkpoint))
                if handle is not None:
                    self.persisted(checkpoint, handle, "")
            case effects.AcknowledgeCheckpoint(checkpoint, handle):
                assert isinstance(handle, SnapshotHandle)
                self._port.acknowledge(checkpoint, handle)
            case effects.DeclineCheckpoint(checkpoint, reason, cause):
                self._port.decline(checkpoint, reason, cause)
            case effects.DiscardSnapshot(checkpoint):
                self._port.discard(checkpoint)
            case effects.LogChannel(checkpoint, channel):
                self.channel_state.open_log(checkpoint, channel)
                self._reached("logging")
            case effects.RecordChannel(checkpoint, channel):
                self.channel_state.open_record(checkpoint, channels[channel])
                self._reached("recording")
            case effects.EndCapture(checkpoint, channel):
                logged = self.channel_state.end_capture(checkpoint, channels[channel])
                self._reached("returned" if logged else "recorded")
            case _:
                assert_never(effect)

    def _take(self, checkpoint: CheckpointId) -> None:
        if self._keeps_outputs:
            self._cursors_at[checkpoint] = self._cursors_behind_barrier()
        self._port.take(checkpoint, lambda: self._gather(checkpoint))
        if self._identity.synchronous and checkpoint > self._complete and not self._replay.active:
            self.paused_by = checkpoint
        self._inputs_at = {number: at for number, at in self._inputs_at.items() if number > checkpoint}


def add_logs(
    logs: Logs, saved: OperatorState, pack: Callable[[Message, Any], Any], size_of: Callable[[Any], int]
) -> OperatorState:
    """``saved`` (made when the state was copied) with the messages that were in flight then, and their packed size in
    bytes (``in_flight_bytes``). In any thread.

    ``pack``: a message and its payload as JSON.
    ``size_of``: the bytes of a packed message.
    """
    if not logs:
        return saved
    packed = {str(channel): [pack(*message) for message in log.messages] for channel, log in logs.items()}
    return replace(
        saved,
        inputs=saved.inputs | {str(channel): log.next for channel, log in logs.items()},
        in_flight=packed,
        in_flight_bytes=sum(size_of(message) for messages in packed.values() for message in messages),
    )


def _machine(identity: SubtaskIdentity, channels: tuple[ChannelId, ...], saved: OperatorState) -> BarrierAlignment:
    """The barrier machine for the job's checkpoint mode and the subtask's place in the graph."""
    subtask, version, aligns = identity.subtask, identity.checkpoint, identity.guarantee.aligns
    aborted = [CheckpointId(number) for number in saved.aborted]
    back = identity.back_edges(channels)
    if back:
        invariant(aligns, "a loop needs alignment", subtask=subtask)
        return CyclicAlignment(subtask, channels, back, version, aborted=aborted)
    if identity.unaligned:
        allowed = identity.guarantee.repeats and not identity.cycles
        invariant(allowed, "this job cannot take unaligned checkpoints", subtask=subtask)
        return UnalignedBarriers(subtask, channels, version, aborted=aborted)
    return BarrierAlignment(subtask, channels, version, aborted=aborted, blocking=aligns)
