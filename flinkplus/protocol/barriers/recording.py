"""What ``cyclic`` and ``unaligned`` share: snapshots that hold channel state in addition to the copy of the state.

A *recording* is a checkpoint whose state is copied, and whose barrier is still awaited on some inputs: messages before
it there belong to the snapshot. The algorithm decides which inputs these are, and what counts as the barrier's arrival.

Rules:

- Recordings may overlap. Copies are persisted in the order in which they were taken, since each builds on the one
  before. Copies of aborted checkpoints are persisted too, and then discarded.
- A newer barrier on a channel proves that the older one will never arrive on it: that checkpoint is declined.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.barriers.machine import NO_CHECKPOINT
from flinkplus.protocol.vocabulary import effects
from flinkplus.protocol.vocabulary.effects import BarrierEffect
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId


class RecordingAlignment(BarrierAlignment):
    """The machine of one subtask: algorithm 1, followed by recordings. ``COMES``: the verb for a barrier's arrival."""

    COMES = "came"

    def __init__(
        self,
        subtask: SubtaskId,
        inputs: tuple[ChannelId, ...],
        version: CheckpointId = NO_CHECKPOINT,
        aborted: Sequence[CheckpointId] = (),
    ) -> None:
        super().__init__(subtask, inputs, version, aborted)
        self._recordings: dict[CheckpointId, list[ChannelId]] = {}  # ascending; inputs on which its barrier is awaited

    @property
    def waiting_for(self) -> tuple[CheckpointId, ...]:
        return (*self._recordings, *super().waiting_for)

    def _came(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """The barrier of ``checkpoint`` has arrived on ``channel``."""
        found: list[BarrierEffect] = []
        for older in [number for number in self._recordings if number < checkpoint]:
            if channel in self._recordings.get(older, ()):  # declining one may have ended others before it
                found += self._decline_recording(older, channel, checkpoint)
        awaited = self._recordings.get(checkpoint, [])
        if channel in awaited:
            awaited.remove(channel)
            found += [effects.EndCapture(checkpoint, channel), *self._persist()]
        return found

    def _persist(self) -> list[BarrierEffect]:
        """Persist recordings whose barrier has arrived on all inputs, up to the first whose has not."""
        found: list[BarrierEffect] = []
        for checkpoint, awaited in tuple(self._recordings.items()):
            if awaited:
                break
            del self._recordings[checkpoint]
            found.append(effects.PersistSnapshot(checkpoint))
        return found

    def _abort_begun(self, checkpoint: CheckpointId) -> list[BarrierEffect] | None:
        if checkpoint in self._recordings:
            return self._end_recording(checkpoint)
        return super()._abort_begun(checkpoint)

    def _decline_recording(
        self, checkpoint: CheckpointId, channel: ChannelId, newer: CheckpointId
    ) -> list[BarrierEffect]:
        reason = f"{self._subtask}: barrier {newer} {self.COMES} on {channel} before {checkpoint} did"
        return [effects.DeclineCheckpoint(checkpoint, reason), *self._end_recording(checkpoint)]

    def _end_recording(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """The copy is still persisted, since later snapshots build on it; then it is discarded."""
        self._unfinished[checkpoint] = True
        ended = [effects.EndCapture(checkpoint, channel) for channel in self._recordings[checkpoint]]
        self._recordings[checkpoint].clear()
        return [*ended, *self._persist()]

    def _was_ordered(self, checkpoint: CheckpointId) -> bool:
        return super()._was_ordered(checkpoint) and checkpoint not in self._recordings
