"""Barrier snapshots of one subtask in a graph with loops: asynchronous barrier snapshots of cyclic graphs.

After algorithm 2 of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows" (2015). It is
algorithm 1 (``alignment``) on the inputs that are no back edges, and more for those that are:

- *block input*: a barrier on a regular input blocks it; a back edge is never blocked, else a barrier that waits for the
  loop would wait for itself;
- *all regular inputs blocked*: the state is copied, the barrier goes to every output, the inputs are unblocked; from
  here on all that is taken off a back edge is logged, and processed as ever;
- *barrier on a back edge*: it has come round: what was logged of this edge up to here is what was in flight on it. When
  it has on all of them, the snapshot is the copy and the logs, and is persisted;
- *restore*: what was logged is processed first; it is put back in front of its channel (``InputGate.add``).

Departures beside those of ``barriers``, ``alignment`` and ``recording``:

- Checkpoints may overlap: the state is copied for one while another's barrier is still on its way round. Each has logs
  of its own.
- The barrier itself is the last message of the log: whoever repeats the steps behind the copy takes it again.

Invariant: a snapshot without back edges is just that of algorithm 1, effect by effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkplus.protocol.effects import (
    BarrierEffect,
    CloseLog,
    ForwardBarrier,
    LogChannel,
    TakeSnapshot,
)
from flinkplus.protocol.ids import ChannelId, CheckpointId, SubtaskId, invariant
from flinkplus.protocol.recording import RecordingAlignment


class CyclicAlignment(RecordingAlignment):
    """The machine of one subtask. ``back``: those of its ``inputs`` that are back edges."""

    COMES = "came round"

    def __init__(
        self,
        subtask: SubtaskId,
        inputs: tuple[ChannelId, ...],
        back: tuple[ChannelId, ...],
        max_asynchronous: int = 8,
        aborted: Sequence[CheckpointId] = (),
    ) -> None:
        super().__init__(subtask, inputs, max_asynchronous, aborted)
        self._back = back
        self._awaited = tuple(channel for channel in inputs if channel not in back)
        invariant(bool(self._awaited) or not inputs, "a subtask has only back edges for inputs", subtask=subtask)

    def _on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if channel not in self._back:
            return super()._on_barrier(channel, checkpoint)
        return self._came(channel, checkpoint)

    def _close(self, checkpoint: CheckpointId, channel: ChannelId) -> BarrierEffect:
        return CloseLog(checkpoint, channel)

    def _begin_snapshot(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if not self._back or self._refusal() is not None:
            return super()._begin_snapshot(checkpoint)
        self._asynchronous[checkpoint] = False
        self._rounds[checkpoint] = list(self._back)
        return [
            TakeSnapshot(checkpoint),
            *[LogChannel(checkpoint, channel) for channel in self._back],
            ForwardBarrier(checkpoint),
            *self._unblock(),
        ]
