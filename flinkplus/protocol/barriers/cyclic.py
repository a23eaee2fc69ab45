"""Barrier snapshots of one subtask in a graph with loops: asynchronous barrier snapshots of cyclic graphs.

After algorithm 2 of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows" (2015). It is
algorithm 1 (``alignment``) on the regular inputs, with additions for the back edges:

- *block input*: a barrier on a regular input blocks it. Back edges are not awaited: a barrier that waited for the loop
  would wait for itself;
- *early barrier on a back edge*: another subtask of the head was aligned first, and its barrier came through the loop
  before the copy here. No message before the barrier is in flight on this back edge then, so it needs no log. What
  follows the barrier must not be in the copy, so the back edge is blocked until the copy, which waits for no back edge;
- *all regular inputs blocked*: the state is copied, the barrier goes to every output, the inputs are unblocked. From
  here on, messages taken off a back edge are processed as usual and logged;
- *barrier on a back edge*: it came through the loop: the edge's log up to here, the barrier included, is what was in
  flight on it. When that is so on all back edges, the snapshot, which is the copy and the logs, is persisted;
- *restore*: logged messages are put back in front of their channel (``InputGate.add``), and processed first.

Departures beyond those of ``machine``, ``alignment`` and ``recording``:

- A checkpoint that is aborted before the copy unblocks its back edges.
- A barrier of the version that the subtask starts from only ends the messages that were put back. It is never early.
- Checkpoints may overlap: the state is copied for one while another's barrier is still in the loop. Each has its own
  logs.

Invariant: a snapshot without back edges equals that of algorithm 1, effect by effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.barriers.machine import NO_CHECKPOINT
from flinkplus.protocol.barriers.recording import RecordingAlignment
from flinkplus.protocol.vocabulary import effects
from flinkplus.protocol.vocabulary.effects import BarrierEffect
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId, invariant


class CyclicAlignment(RecordingAlignment):
    """The machine of one subtask. ``back``: the back edges among its ``inputs``."""

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
        self._early: dict[ChannelId, CheckpointId] = {}  # blocked back edge -> checkpoint of its barrier
        self._aligned_inputs = tuple(channel for channel in inputs if channel not in back)
        invariant(bool(self._aligned_inputs) or not inputs, "a subtask has only back edges for inputs", subtask=subtask)

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
        found = self._came(channel, checkpoint)
        if self._may_begin(checkpoint):
            self._early[channel] = checkpoint
            found.append(effects.BlockChannel(channel))
        return found

    def _on_abort(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        return [*super()._on_abort(checkpoint), *self._release()]

    def _may_begin(self, checkpoint: CheckpointId) -> bool:
        """Whether the state may still be copied for ``checkpoint``."""
        return checkpoint == self._aligning or (checkpoint > self._newest_seen and checkpoint not in self.aborted)

    def _release(self) -> list[BarrierEffect]:
        """Unblock the back edges whose checkpoint has begun here, or never will."""
        released = [channel for channel, checkpoint in self._early.items() if not self._may_begin(checkpoint)]
        for channel in released:
            del self._early[channel]
        return [effects.UnblockChannel(channel) for channel in released]

    def _begin_snapshot(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if not self._back or self._refusal() is not None:
            return super()._begin_snapshot(checkpoint)
        self._unfinished[checkpoint] = False
        awaited = self._recordings[checkpoint] = [
            channel for channel in self._back if self._early.get(channel) != checkpoint
        ]
        found = [
            effects.TakeSnapshot(checkpoint),
            *[effects.LogChannel(checkpoint, channel) for channel in awaited],
            effects.ForwardBarrier(checkpoint),
            *self._unblock(),
        ]
        for channel in awaited:
            newer = self._early.get(channel, checkpoint)
            if newer > checkpoint:
                return [*found, *self._decline_recording(checkpoint, channel, newer)]
        return [*found, *self._persist()]
