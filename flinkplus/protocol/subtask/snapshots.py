"""Checkpoints of one subtask: what its barrier machine orders is done here, and what it needs to know is told.

Which algorithm is at work is the machine's affair (``barriers``); here is what they all have in common: where the
channels stood at each snapshot, what was sent and may be let go, how a snapshot becomes a handle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from typing_extensions import assert_never

from flinkplus.protocol.barriers.barriers import BarrierMachine
from flinkplus.protocol.channels.inputs import InputChannel, InputGate
from flinkplus.protocol.channels.outputs import OutputChannels
from flinkplus.protocol.subtask.incarnation import Incarnation
from flinkplus.protocol.subtask.work import SubtaskWork
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId
from flinkplus.protocol.vocabulary.in_flight import (
    MAX_LOGGED_BYTES,
    AbortCause,
    ChannelLogged,
    Logs,
    SnapshotLogs,
    in_flight_bytes,
)
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

NO_TIME_MS = 0
"""The machine has no deadlines: the coordinator times every checkpoint."""

__all__ = ["MAX_LOGGED_BYTES", "NO_TIME_MS", "SubtaskSnapshots"]


OpenLogs = dict[ChannelId, dict[CheckpointId, ChannelLogged]]
"""Those that are not whole yet, of channels that have any."""


def _close(logs: OpenLogs, checkpoint: CheckpointId, channel: ChannelId, end: int) -> None:
    """What was in flight on ``channel`` is all there; ``end`` is the ``seq`` behind it."""
    logs[channel].pop(checkpoint).next = end
    if not logs[channel]:
        del logs[channel]


class SubtaskSnapshots(SubtaskWork):
    """The part of a subtask's steps that concerns checkpoints. ``standbys``: whether there are any."""

    inputs: InputGate
    outputs: OutputChannels

    def __init__(self, incarnation: Incarnation, standbys: bool) -> None:
        self._incarnation = incarnation
        self._standbys = standbys
        self._halted: CheckpointId | None = None
        """The checkpoint whose end is waited for (a synchronous one)."""
        self._complete = incarnation.checkpoint
        self._cursors_at: dict[CheckpointId, dict[str, int]] = {}
        self._inputs_at: dict[CheckpointId, dict[str, int]] = {}
        self._logs: dict[CheckpointId, SnapshotLogs] = {}
        self._open_logs: OpenLogs = {}
        self._open_records: OpenLogs = {}
        self._persisting: dict[CheckpointId, SnapshotLogs] = {}
        """What was in flight at those snapshots whose asynchronous part is under way."""

    def _handle_barriers(self, machine: BarrierMachine, version: CheckpointId, saved: Mapping[str, Any]) -> None:
        """All channels are there, as they were at ``version``; ``machine`` decides from now on."""
        self.outputs.epoch = version
        self._cursors_at[version] = dict(saved.get("outputs", {}))
        self._barriers = machine

    def _saved_checkpoints(self, checkpoint: CheckpointId) -> dict[str, Any]:
        """Of the snapshot of ``checkpoint``: where every channel stands, which later checkpoints are given up."""
        return {
            "inputs": {**self.inputs.cursors(), **self._inputs_at.get(checkpoint, {})},
            "outputs": self._cursors_behind_barrier(),
            "aborted": list(self._barriers.aborted),
        }

    def _note_in_flight(self, channel: ChannelId, message: Message, payload: Any) -> None:
        """A message was taken off ``channel``; some snapshots may hold it."""
        for log in self._open_logs.get(channel, {}).values():
            log.add(message, payload)

    def _note_arrival(self, channel: ChannelId, message: Message, payload: Any) -> None:
        """A message came in on ``channel``; some snapshots may hold it."""
        for record in self._open_records.get(channel, {}).values():
            record.add(message, payload)

    def _record(self, checkpoint: CheckpointId, end: InputChannel) -> None:
        """All that is before the barrier of ``checkpoint`` on a channel, and the barrier, belong to the snapshot."""
        record = self._open_log(checkpoint, end.channel)
        for message, payload in end.queue:
            record.add(message, payload)
            if message.kind is MessageKind.BARRIER and message.epoch == checkpoint:
                record.next = message.seq + 1
                return
        self._open_records.setdefault(end.channel, {})[checkpoint] = record

    def _open_log(self, checkpoint: CheckpointId, channel: ChannelId) -> ChannelLogged:
        if checkpoint not in self._logs:
            self._logs[checkpoint] = SnapshotLogs(self._incarnation.in_flight)
        return self._logs[checkpoint].open(channel)

    def logs_of(self, checkpoint: CheckpointId) -> Logs:
        """What was in flight when the state was copied. To be called once, in ``_persist``."""
        logs = self._logs.pop(checkpoint, None)
        if logs is None:
            return {}
        self._persisting[checkpoint] = logs
        return logs.channels

    def add_logs(self, logs: Logs, saved: dict[str, Any]) -> None:
        """Add to ``saved`` (what ``saved_cursors`` gave when the state was copied) what was in flight then, and what
        that takes there: ``in_flight_bytes``. In any thread."""
        if not logs:
            return
        packed = {str(channel): [self._pack(*message) for message in log.messages] for channel, log in logs.items()}
        saved["inputs"] |= {str(channel): log.next for channel, log in logs.items()}
        saved["in_flight"] = packed
        saved["in_flight_bytes"] = sum(self._size_of(message) for messages in packed.values() for message in messages)

    def release_logs(self) -> None:
        """The subtask is closed: it holds nothing of what was in flight."""
        for logs in (*self._logs.values(), *self._persisting.values()):
            logs.release()

    def _cursors_behind_barrier(self) -> dict[str, int]:
        """Where the outputs stand when the barrier, which is sent next, is out."""
        return {channel: seq + 1 for channel, seq in self.outputs.cursors().items()}

    def trim(self, version: CheckpointId) -> None:
        """Nobody goes back before ``version``: what was sent before it is let go."""
        cursors = self._cursors_at.get(version)
        if cursors is not None:
            self.outputs.trim(cursors)
        self._cursors_at = {number: found for number, found in self._cursors_at.items() if number >= version}

    @property
    @abstractmethod
    def repeating(self) -> bool:
        """Whether it does again what the one before it did."""

    def go_on_after(self, checkpoint: CheckpointId) -> None:
        """Nobody waits for the end of ``checkpoint`` any more, nor of an older one."""
        self._complete = max(self._complete, checkpoint)
        if self._halted is not None and self._halted <= checkpoint:
            self._halted = None

    def persisted(self, checkpoint: CheckpointId, handle: dict[str, Any] | None, reason: str) -> None:
        """The asynchronous part of a snapshot ended, with a handle or a reason why not."""
        logs, excess = self._persisting.pop(checkpoint, None), ""
        if logs is not None:
            if handle is not None:
                logs.stored(in_flight_bytes(handle))
            logs.release()
            excess = logs.excess
        if excess:
            self._obey(events.SnapshotFailed(checkpoint, excess, AbortCause.OVER_BUDGET))
        elif handle is not None and not reason:
            self._obey(events.SnapshotPersisted(checkpoint, handle))
        else:
            self._obey(events.SnapshotFailed(checkpoint, reason))

    def _obey(self, event: events.BarrierEvent) -> None:
        self._apply_all(self._barriers.step(NO_TIME_MS, event))

    def _apply_all(self, found: list[effects.BarrierEffect]) -> None:
        for effect in found:
            self._apply(effect)

    def _apply(self, effect: effects.BarrierEffect) -> None:
        match effect:
            case effects.BlockChannel(channel):
                self.inputs.channels[channel].blocked = True
                self._on_point("alignment")
            case effects.UnblockChannel(channel):
                self.inputs.channels[channel].blocked = False
            case effects.TakeSnapshot(checkpoint):
                if self._standbys:
                    self._cursors_at[checkpoint] = self._cursors_behind_barrier()
                self._take_snapshot(checkpoint)
                if self._incarnation.stands_still and checkpoint > self._complete and not self.repeating:
                    self._halted = checkpoint
                self._inputs_at = {number: at for number, at in self._inputs_at.items() if number > checkpoint}
            case effects.ForwardBarrier(checkpoint, overtakes):
                self.outputs.broadcast(MessageKind.BARRIER, checkpoint, overtakes)
            case effects.PersistSnapshot(checkpoint):
                self._persist(checkpoint)
            case effects.AcknowledgeCheckpoint(checkpoint, handle):
                assert isinstance(handle, dict)
                self._acknowledge(checkpoint, handle)
            case effects.DeclineCheckpoint(checkpoint, reason, cause):
                self._decline(checkpoint, reason, cause)
            case effects.DiscardSnapshot(checkpoint):
                self._discard(checkpoint)
            case effects.LogChannel(checkpoint, channel):
                self._open_logs.setdefault(channel, {})[checkpoint] = self._open_log(checkpoint, channel)
                self._on_point("logging")
            case effects.CloseLog(checkpoint, channel):
                _close(self._open_logs, checkpoint, channel, self.inputs.channels[channel].cursor.consumed)
                self._on_point("returned")
            case effects.RecordChannel(checkpoint, channel):
                self._record(checkpoint, self.inputs.channels[channel])
                self._on_point("recording")
            case effects.CloseRecord(checkpoint, channel):
                _close(self._open_records, checkpoint, channel, self.inputs.channels[channel].cursor.expected)
                self._on_point("recorded")
            case _:
                assert_never(effect)
