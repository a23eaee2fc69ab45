"""Barrier alignment of one subtask: asynchronous barrier snapshots of acyclic graphs.

After algorithm 1 of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows" (2015).

Its steps, by the names that the tests use:

- *init*: the subtask knows its inputs and outputs, and no input is blocked;
- *barrier from nil*: the coordinator triggers a source, which has no inputs to block; the rest is as below;
- *block input*: a barrier was taken off an input, which is blocked: the subtask takes no further message from it;
- *all inputs blocked*: the state is copied, the barrier goes to every output, and every input is unblocked;
- *message*: the caller processes messages of inputs that are not blocked. This machine only says which are blocked.

One departure beyond those of all algorithms (``machine``): a barrier of a newer checkpoint on a channel ends the
alignment under way. The subtask declines the older checkpoint. Where inputs are blocked, it proves that the older
barrier will never arrive there; at least once, the older checkpoint is given up without proof.

Rules and invariants:

- A barrier is forwarded exactly when its alignment is complete.
- A channel is blocked only while a checkpoint is being aligned, and never all of them between two events.
- Without ``blocking`` (at least once) no input is blocked: barriers are only counted, one per channel, and a snapshot
  includes some of what follows its barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.barriers.machine import NO_CHECKPOINT, BarrierMachine
from flinkplus.protocol.vocabulary import effects
from flinkplus.protocol.vocabulary.effects import BarrierEffect
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId


class BarrierAlignment(BarrierMachine):
    """The machine of one subtask. ``blocking``: whether an input waits after its barrier."""

    def __init__(
        self,
        subtask: SubtaskId,
        inputs: tuple[ChannelId, ...],
        version: CheckpointId = NO_CHECKPOINT,
        aborted: Sequence[CheckpointId] = (),
        blocking: bool = True,
    ) -> None:
        super().__init__(subtask, inputs, version, aborted)
        self._aligned_inputs = inputs
        self._blocking = blocking
        self._aligning: CheckpointId | None = None
        self._taken: list[ChannelId] = []  # inputs off which the barrier of ``_aligning`` was taken

    @property
    def waiting_for(self) -> tuple[CheckpointId, ...]:
        return () if self._aligning is None else (self._aligning,)

    @property
    def blocked(self) -> tuple[ChannelId, ...]:
        """The channels from which no message may be taken."""
        return tuple(self._taken) if self._blocking else ()

    def completes(self, channel: ChannelId, checkpoint: CheckpointId) -> bool:
        """Whether the alignment is complete once the barrier of ``checkpoint`` is taken off this input."""
        if checkpoint == self._aligning:
            return channel not in self._taken and len(self._taken) + 1 == len(self._aligned_inputs)
        begins = checkpoint > self._newest_seen and checkpoint not in self._aborted_unseen
        return begins and len(self._aligned_inputs) == 1

    def _on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if channel in self._taken and self._blocking:
            raise PeerProtocolError(
                f"{self._subtask}: barrier {checkpoint} on {channel}, which checkpoint {self._aligning} blocks"
            )
        if checkpoint == self._aligning:
            return self._count(channel, checkpoint) if channel not in self._taken else []
        if checkpoint <= self._newest_seen:
            return []
        found = self._decline_alignment(superseded_by=checkpoint)
        if self._see(checkpoint):
            self._aligning = checkpoint
            found += self._count(channel, checkpoint)
        return found

    def _count(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        self._taken.append(channel)
        found: list[BarrierEffect] = [effects.BlockChannel(channel)] if self._blocking else []
        if len(self._taken) == len(self._aligned_inputs):
            found += self._begin_snapshot(checkpoint)
        return found

    def _begin_snapshot(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        refusal = self._refusal()
        if refusal is not None:
            declined = effects.DeclineCheckpoint(checkpoint, refusal)
            return [effects.ForwardBarrier(checkpoint), *self._unblock(), declined]
        self._unfinished[checkpoint] = False
        begun = effects.TakeSnapshot(checkpoint), effects.ForwardBarrier(checkpoint)
        return [*begun, *self._unblock(), effects.PersistSnapshot(checkpoint)]

    def _unblock(self) -> list[BarrierEffect]:
        found: list[BarrierEffect] = [effects.UnblockChannel(channel) for channel in self._taken if self._blocking]
        self._taken.clear()
        self._aligning = None
        return found

    def _decline_alignment(self, superseded_by: CheckpointId) -> list[BarrierEffect]:
        if self._aligning is None:
            return []
        reason = f"{self._subtask}: barrier {superseded_by} came while {self._aligning} was being aligned"
        return [effects.DeclineCheckpoint(self._aligning, reason), *self._unblock()]

    def _abort_begun(self, checkpoint: CheckpointId) -> list[BarrierEffect] | None:
        return self._unblock() if checkpoint == self._aligning else None

    def _was_ordered(self, checkpoint: CheckpointId) -> bool:
        return super()._was_ordered(checkpoint) and checkpoint != self._aligning
