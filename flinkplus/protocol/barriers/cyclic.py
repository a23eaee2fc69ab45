"""Barrier snapshots of one subtask in a graph with loops: asynchronous barrier snapshots of cyclic graphs.

After algorithm 2 of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows" (2015). It is
algorithm 1 (``alignment``) on the inputs that are no back edges, and more for those that are:

- *block input*: a barrier on a regular input blocks it. A back edge is not awaited; otherwise a barrier
  that waits for the loop would wait for itself;
- *early barrier on a back edge*: another subtask of the head was aligned first, and its barrier has come round before
  the state is copied here. Nothing is in flight on this back edge then, and nothing of it is logged. What follows the
  barrier must not be in the copy: the back edge is blocked until then. The copy waits for no back edge, so it ends;
- *all regular inputs blocked*: the state is copied, the barrier goes to every output, the inputs are unblocked; from
  here on all that is taken off a back edge is logged, and processed as ever;
- *barrier on a back edge*: it has come round: what was logged of this edge up to here is what was in flight on it. When
  it has on all of them, the snapshot is the copy and the logs, and is persisted;
- *restore*: what was logged is processed first; it is put back in front of its channel (``InputGate.add``).

Departures beside those of ``barriers``, ``alignment`` and ``recording``:

- A checkpoint that is given up before the copy unblocks its back edges. A barrier of the version that the subtask
  begins from is the end of what was logged, and never early.
- Checkpoints may overlap: the state is copied for one while another's barrier is still on its way round. Each has logs
  of its own.
- The barrier itself is the last message of the log: whoever repeats the steps behind the copy takes it again.

Invariant: a snapshot without back edges is just that of algorithm 1, effect by effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.barriers.barriers import NO_CHECKPOINT
from flinkplus.protocol.barriers.recording import RecordingAlignment
from flinkplus.protocol.vocabulary.effects import (
    BarrierEffect,
    BlockChannel,
    CloseLog,
    ForwardBarrier,
    LogChannel,
    TakeSnapshot,
    UnblockChannel,
)
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId, invariant


class CyclicAlignment(RecordingAlignment):
    """The machine of one subtask. ``back``: those of its ``inputs`` that are back edges."""

    COMES = "came round"

    def __init__(
        self,
        subtask: SubtaskId,
        inputs: tuple[ChannelId, ...],
        back: tuple[ChannelId, ...],
        version: CheckpointId = NO_CHECKPOINT,
        aborted: Sequence[CheckpointId] = (),
    ) -> None:
        super().__init__(subtask, inputs, version, aborted)
        self._back = back
        self._early: dict[ChannelId, CheckpointId] = {}  # blocked back edges, each with the checkpoint of its barrier
        self._awaited = tuple(channel for channel in inputs if channel not in back)
        invariant(bool(self._awaited) or not inputs, "a subtask has only back edges for inputs", subtask=subtask)

    @property
    def blocked(self) -> tuple[ChannelId, ...]:
        return (*super().blocked, *self._early)

    def _on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if channel not in self._back:
            return [*super()._on_barrier(channel, checkpoint), *self._release()]
        if channel in self._early:
            raise PeerProtocolError(
                f"{self._subtask}: barrier {checkpoint} on {channel}, which checkpoint {self._early[channel]} blocks"
            )
        effects = self._came(channel, checkpoint)
        if self._may_begin(checkpoint):
            self._early[channel] = checkpoint
            effects.append(BlockChannel(channel))
        return effects

    def _on_abort(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        return [*super()._on_abort(checkpoint), *self._release()]

    def _may_begin(self, checkpoint: CheckpointId) -> bool:
        """Whether the state may be copied for ``checkpoint`` yet."""
        return checkpoint == self._aligning or (checkpoint > self._newest_seen and checkpoint not in self.aborted)

    def _release(self) -> list[BarrierEffect]:
        """Unblock the back edges whose checkpoint has been begun here, or never will be."""
        released = [channel for channel, checkpoint in self._early.items() if not self._may_begin(checkpoint)]
        for channel in released:
            del self._early[channel]
        return [UnblockChannel(channel) for channel in released]

    def _close(self, checkpoint: CheckpointId, channel: ChannelId) -> BarrierEffect:
        return CloseLog(checkpoint, channel)

    def _begin_snapshot(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if not self._back or self._refusal() is not None:
            return super()._begin_snapshot(checkpoint)
        self._asynchronous[checkpoint] = False
        awaited = self._recordings[checkpoint] = [
            channel for channel in self._back if self._early.get(channel) != checkpoint
        ]
        effects = [
            TakeSnapshot(checkpoint),
            *[LogChannel(checkpoint, channel) for channel in awaited],
            ForwardBarrier(checkpoint),
            *self._unblock(),
        ]
        for channel in awaited:
            newer = self._early.get(channel, checkpoint)
            if newer > checkpoint:
                return [*effects, *self._decline_recording(checkpoint, channel, newer)]
        return [*effects, *self._persist()]
