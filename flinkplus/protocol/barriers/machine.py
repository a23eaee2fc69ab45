"""What all checkpoint algorithms share: the order of checkpoints, and the life cycle of a snapshot.

An algorithm is a machine of one subtask. Its events report barriers. Its effects order which channels wait, when the
state is copied, when the barrier is forwarded, and which messages belong to the snapshot. All modes side by side:

| mode | module | copies the state when the barrier | channel state in the snapshot | what waits |
| --- | --- | --- | --- | --- |
| aligned | ``alignment`` | is taken off all inputs | none | an input, from its barrier to the copy |
| synchronous | ``alignment`` | is taken off all inputs | none | and then all, to the end of the checkpoint |
| at least once | ``alignment`` | is taken off all inputs | none | nothing |
| loops | ``cyclic`` | is taken off all but the back edges | of back edges, up to it | as aligned; early back edges |
| unaligned | ``unaligned`` | arrives on the first input | of all inputs, up to it | nothing |

- In every mode, the barrier goes to every output right after the copy; without one when the copy is declined.
- *Synchronous* is the stop-the-world snapshot that the paper compares with. The machine is that of *aligned*; the
  subtask itself runs no step from the copy to the end of the checkpoint (``SubtaskIdentity.synchronous``).
- *At least once* does not block: the copy includes messages that follow a barrier, and they arrive again after a
  restore.
- *Loops*: a back edge is *early* when its barrier arrives before the copy.
- *Unaligned* is *aligned* until the coordinator orders that a checkpoint may overtake, and while more messages wait
  than a snapshot may hold.

Departures of all modes from the papers:

- The snapshot has two parts. The synchronous part, the copy, precedes the broadcast, so that a slow output never delays
  it. The asynchronous part follows the unblocking or, where channel state is recorded, the last barrier. No message is
  processed between copy and broadcast, so the cut is the same.
- The papers know one barrier at a time, and no failure. Here checkpoints have numbers, rising on every channel, and can
  be aborted at any time, even before their first barrier is taken here.

Rules and invariants:

- The numbers of the checkpoints that begin here only rise; a barrier of any other checkpoint has no effect.
- The barrier is forwarded whether or not the snapshot succeeds afterwards: consumers must not wait for it.
- An aborted checkpoint is never acknowledged.
- One machine serves one generation of a subtask, and takes no completion of a snapshot of an older one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from typing_extensions import assert_never

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.effects import BarrierEffect
from flinkplus.protocol.vocabulary.events import BarrierEvent
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId, invariant

NO_CHECKPOINT = CheckpointId(0)
"""The version of a subtask that starts without a checkpoint."""
MAX_UNFINISHED = 8
"""Maximum number of snapshots that are copied and not finished. Further checkpoints are declined; barriers pass."""
MAX_REMEMBERED_ABORTS = 64
"""Maximum number of aborted checkpoints of which no barrier was taken. The oldest beyond it, and all before it, are
ignored from then on."""


class BarrierMachine(ABC):
    """The machine of one subtask; a source has no ``inputs``.

    ``version``: the checkpoint that it starts from (0: none); barriers up to it are ignored.
    ``aborted``: the property ``aborted``, from a snapshot, of the machine whose steps this one repeats.
    """

    def __init__(
        self,
        subtask: SubtaskId,
        inputs: tuple[ChannelId, ...],
        version: CheckpointId = NO_CHECKPOINT,
        aborted: Sequence[CheckpointId] = (),
    ) -> None:
        invariant(len(set(inputs)) == len(inputs), "an input channel is given twice", subtask=subtask)
        self._subtask = subtask
        self._inputs = inputs
        self._newest_seen = version
        self._aborted_unseen: list[CheckpointId] = sorted(aborted)
        self._unfinished: dict[CheckpointId, bool] = {}  # -> aborted since

    @property
    def waiting_for(self) -> tuple[CheckpointId, ...]:
        """The checkpoints of which some, but not all, barriers were taken (or have arrived, where they overtake)."""
        return ()

    @property
    def aborted(self) -> tuple[CheckpointId, ...]:
        """Aborted checkpoints of which no barrier was taken yet: they will not begin."""
        return tuple(self._aborted_unseen)

    def step(self, now_ms: int, event: BarrierEvent) -> list[BarrierEffect]:
        """The effects of ``event``. Raises ``PeerProtocolError``, changing nothing, when a peer broke the protocol."""
        match event:
            case events.BarrierTaken(channel, checkpoint):
                if channel not in self._inputs:
                    raise PeerProtocolError(
                        f"{self._subtask}: barrier {checkpoint} on {channel}, which is not one of its inputs"
                    )
                return self._on_barrier(channel, checkpoint)
            case events.CheckpointTriggered(checkpoint):
                return self._on_trigger(checkpoint)
            case events.CheckpointAborted(checkpoint):
                return self._on_abort(checkpoint)
            case events.SnapshotPersisted(checkpoint, handle):
                return self._on_persisted(checkpoint, handle)
            case events.SnapshotFailed():
                return self._on_failed(event)
            case _:
                assert_never(event)

    @abstractmethod
    def _on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """The subtask took a barrier off one of its inputs."""

    @abstractmethod
    def _begin_snapshot(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """Copy the state now; a source does so when it is triggered."""

    @abstractmethod
    def _abort_begun(self, checkpoint: CheckpointId) -> list[BarrierEffect] | None:
        """Abort ``checkpoint`` if its barriers are being aligned or awaited here; otherwise ``None``."""

    def _on_trigger(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if self._inputs:
            raise PeerProtocolError(f"{self._subtask}: checkpoint {checkpoint} triggered, but it is not a source")
        if checkpoint <= self._newest_seen or not self._see(checkpoint):
            return []
        return self._begin_snapshot(checkpoint)

    def _see(self, checkpoint: CheckpointId) -> bool:
        """Record that no checkpoint up to this one can begin later; true unless ``checkpoint`` itself is aborted."""
        aborted = checkpoint in self._aborted_unseen
        self._newest_seen = checkpoint
        self._aborted_unseen = [other for other in self._aborted_unseen if other > checkpoint]
        return not aborted

    def _on_abort(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        found = self._abort_begun(checkpoint)
        if found is not None:
            return found
        if checkpoint in self._unfinished:
            self._unfinished[checkpoint] = True
        elif checkpoint > self._newest_seen and checkpoint not in self._aborted_unseen:
            self._aborted_unseen = sorted((*self._aborted_unseen, checkpoint))
            if len(self._aborted_unseen) > MAX_REMEMBERED_ABORTS:
                self._newest_seen = self._aborted_unseen.pop(0)
        return []

    def _refusal(self) -> str | None:
        """Why no further snapshot can be taken now, or ``None``."""
        if len(self._unfinished) < MAX_UNFINISHED:
            return None
        return f"{self._subtask}: {len(self._unfinished)} older snapshots are not finished"

    def _on_persisted(self, checkpoint: CheckpointId, handle: object) -> list[BarrierEffect]:
        self._check_was_ordered(checkpoint)
        aborted = self._unfinished.pop(checkpoint, None)
        if aborted is None:
            return []
        return [effects.DiscardSnapshot(checkpoint) if aborted else effects.AcknowledgeCheckpoint(checkpoint, handle)]

    def _on_failed(self, failed: events.SnapshotFailed) -> list[BarrierEffect]:
        self._check_was_ordered(failed.checkpoint)
        aborted = self._unfinished.pop(failed.checkpoint, True)
        return [] if aborted else [effects.DeclineCheckpoint(failed.checkpoint, failed.reason, failed.cause)]

    def _was_ordered(self, checkpoint: CheckpointId) -> bool:
        """Whether a snapshot may have been ordered."""
        return checkpoint <= self._newest_seen

    def _check_was_ordered(self, checkpoint: CheckpointId) -> None:
        """A repeated completion passes; the completion of a snapshot that was never ordered is a bug."""
        ordered = self._was_ordered(checkpoint)
        invariant(ordered, "a snapshot ended that was never begun", subtask=self._subtask, checkpoint=checkpoint)
