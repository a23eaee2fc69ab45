"""Channel state: the messages in flight that snapshots of one subtask hold.

Two ways lead there. A *log* takes what a step takes from a channel whose barrier is still to come (loops). A *record*
takes what waits in a channel, and what arrives there, until the barrier comes (barriers that overtake). The barrier
machine decides which is open for which channel and snapshot.

Life cycle of a snapshot's channel state: opened, closed (its end on the channel is known), handed to the asynchronous
part (``logs_of``), stored or released. What is held counts against the budget of the slot (``InFlightBudget``).
"""

from __future__ import annotations

from typing import Any

from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId
from flinkplus.protocol.vocabulary.in_flight import (
    ChannelLogged,
    InFlightBudget,
    Logs,
    SnapshotLogs,
)
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

OpenLogs = dict[ChannelId, dict[CheckpointId, ChannelLogged]]
"""Those that are not whole yet, of channels that have any."""


class ChannelState:
    """The channel state of all open snapshots of one subtask.

    ``logging``, ``recording``: whether any log, or record, is open; the steps ask before they call.
    """

    def __init__(self, budget: InFlightBudget) -> None:
        self._budget = budget
        self._of_snapshots: dict[CheckpointId, SnapshotLogs] = {}
        self._persisting: dict[CheckpointId, SnapshotLogs] = {}
        """Of snapshots whose asynchronous part is under way."""
        self.logging: OpenLogs = {}
        self.recording: OpenLogs = {}

    def open_log(self, checkpoint: CheckpointId, channel: ChannelId) -> None:
        """The snapshot holds all that is taken from ``channel`` from now on."""
        self.logging.setdefault(channel, {})[checkpoint] = self._open(checkpoint, channel)

    def close_log(self, checkpoint: CheckpointId, end: InputChannel) -> None:
        """It holds nothing further."""
        _close(self.logging, checkpoint, end.channel, end.cursor.consumed)

    def open_record(self, checkpoint: CheckpointId, end: InputChannel) -> None:
        """The snapshot holds all that waits in a channel, or arrives there, before the barrier of ``checkpoint``, and
        the barrier itself."""
        record = self._open(checkpoint, end.channel)
        for message, payload in end.queue:
            record.add(message, payload)
            if message.kind is MessageKind.BARRIER and message.epoch == checkpoint:
                record.next = message.seq + 1
                return
        self.recording.setdefault(end.channel, {})[checkpoint] = record

    def close_record(self, checkpoint: CheckpointId, end: InputChannel) -> None:
        """It holds nothing further."""
        _close(self.recording, checkpoint, end.channel, end.cursor.expected)

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
        """The channel state of a snapshot whose asynchronous part begins; to be called once."""
        logs = self._of_snapshots.pop(checkpoint, None)
        if logs is None:
            return {}
        self._persisting[checkpoint] = logs
        return logs.channels

    def persisted(self, checkpoint: CheckpointId, handle: SnapshotHandle | None) -> str:
        """The asynchronous part has ended, with a handle or (``None``) without. Returns why the snapshot holds too
        much, empty when it does not."""
        logs = self._persisting.pop(checkpoint, None)
        if logs is None:
            return ""
        if handle is not None:
            logs.stored(handle.operator_state.in_flight_bytes)
        logs.release()
        return logs.excess

    def release(self) -> None:
        """The subtask is closed: give its share of the budget back."""
        for logs in (*self._of_snapshots.values(), *self._persisting.values()):
            logs.release()


def _close(logs: OpenLogs, checkpoint: CheckpointId, channel: ChannelId, end: int) -> None:
    """All that was in flight on ``channel`` is there; ``end`` is the ``seq`` behind it."""
    logs[channel].pop(checkpoint).next = end
    if not logs[channel]:
        del logs[channel]
