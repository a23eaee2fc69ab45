"""Channel state: the messages in flight that snapshots of one subtask hold.

It is captured in two ways. A *log* captures what steps take from a channel until its barrier is taken (loops). A
*record* captures what waits in a channel, and what arrives there, until the barrier (barriers that overtake). The
barrier machine decides which is open for which channel and snapshot.

Life cycle of a snapshot's channel state: opened, ended (its end on the channel is known), handed to the asynchronous
part (``logs_of``), stored or released. Captured messages count against the slot's budget (``InFlightBudget``).
"""

from __future__ import annotations

from typing import Any

from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId
from flinkplus.protocol.vocabulary.in_flight import ChannelLogged, InFlightBudget, Logs, SnapshotLogs
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

OpenLogs = dict[ChannelId, dict[CheckpointId, ChannelLogged]]
"""Logs or records that are still open, for channels that have any."""


class ChannelState:
    """The channel state of all open snapshots of one subtask.

    ``logging``, ``recording``: the open logs and records; the steps check that there are any before they call.
    """

    def __init__(self, budget: InFlightBudget) -> None:
        self._budget = budget
        self._of_snapshots: dict[CheckpointId, SnapshotLogs] = {}
        self._persisting: dict[CheckpointId, SnapshotLogs] = {}
        """Channel state of snapshots whose asynchronous part is running."""
        self.logging: OpenLogs = {}
        self.recording: OpenLogs = {}

    def open_log(self, checkpoint: CheckpointId, channel: ChannelId) -> None:
        """Capture all that steps take from ``channel`` from now on."""
        self.logging.setdefault(channel, {})[checkpoint] = self._open(checkpoint, channel)

    def open_record(self, checkpoint: CheckpointId, end: InputChannel) -> None:
        """Capture all that waits in a channel, or arrives there, up to the barrier of ``checkpoint``, inclusive."""
        record = self._open(checkpoint, end.channel)
        for message, payload in end.queue:
            record.add(message, payload)
            if message.kind is MessageKind.BARRIER and message.epoch == checkpoint:
                record.next = message.seq + 1
                return
        self.recording.setdefault(end.channel, {})[checkpoint] = record

    def end_capture(self, checkpoint: CheckpointId, end: InputChannel) -> bool:
        """The snapshot captures no further messages of this channel. Returns whether it had a log (or a record)."""
        logged = checkpoint in self.logging.get(end.channel, {})
        logs = self.logging if logged else self.recording
        logs[end.channel].pop(checkpoint).next = end.cursor.consumed if logged else end.cursor.expected
        if not logs[end.channel]:
            del logs[end.channel]
        return logged

    def _open(self, checkpoint: CheckpointId, channel: ChannelId) -> ChannelLogged:
        if checkpoint not in self._of_snapshots:
            self._of_snapshots[checkpoint] = SnapshotLogs(self._budget)
        return self._of_snapshots[checkpoint].open(channel)

    def taken(self, channel: ChannelId, message: Message, payload: Any) -> None:
        """A step took a message from ``channel``."""
        for log in self.logging.get(channel, {}).values():
            log.add(message, payload)

    def arrived(self, channel: ChannelId, message: Message, payload: Any) -> None:
        """A message arrived on ``channel``."""
        for record in self.recording.get(channel, {}).values():
            record.add(message, payload)

    def logs_of(self, checkpoint: CheckpointId) -> Logs:
        """The channel state of a snapshot whose asynchronous part begins; call it once."""
        logs = self._of_snapshots.pop(checkpoint, None)
        if logs is None:
            return {}
        self._persisting[checkpoint] = logs
        return logs.channels

    def persisted(self, checkpoint: CheckpointId, handle: SnapshotHandle | None) -> str:
        """The asynchronous part has ended; ``handle`` is ``None`` if it failed. Returns why the channel state exceeds
        its budget; empty when it does not."""
        logs = self._persisting.pop(checkpoint, None)
        if logs is None:
            return ""
        if handle is not None:
            logs.stored(handle.operator_state.in_flight_bytes)
        logs.release()
        return logs.excess

    def release(self) -> None:
        """The subtask is closed: return its share of the budget."""
        for logs in (*self._of_snapshots.values(), *self._persisting.values()):
            logs.release()
