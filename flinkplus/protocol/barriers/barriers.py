"""What every algorithm of checkpointing has in common: the numbers of checkpoints, and the life of a snapshot.

An algorithm is a machine of one subtask that is told of barriers and orders what is to be done: which channels wait,
when the state is copied, when the barrier goes on, which messages belong to the snapshot. All modes side by side:

| mode | module | copies the state when the barrier | of channels, the snapshot holds | what waits |
| --- | --- | --- | --- | --- |
| aligned | ``alignment`` | is taken off all inputs | nothing | an input, from its barrier to the copy |
| synchronous | ``alignment`` | is taken off all inputs | nothing | and then all, to the end of the checkpoint |
| at least once | ``alignment`` | is taken off all inputs | nothing | nothing |
| loops | ``cyclic`` | is taken off all but the back edges | of back edges, up to it | as aligned; early back edges |
| unaligned | ``unaligned`` | comes in on the first input | of all inputs, up to it | nothing |

In all of them the barrier goes to every output right behind the copy. Only ``cyclic`` takes loops, and it takes nothing
else. *Synchronous*, the stop-the-world snapshot that the paper compares with, has no machine of its own: the subtask
begins no step behind its copy (``stands_still``, in ``snapshots``). *At least once* is ``alignment`` that does not
block: what comes behind a barrier meanwhile is in the copy, and comes again after a restore. *Unaligned* is *aligned*
until a checkpoint may overtake, which is an order, and where more waits than a snapshot may hold. What ``cyclic`` and
``unaligned`` share is in ``recording``. A back edge is *early* when its barrier comes before the copy.

Departures of all of them from the papers, and why:

- The snapshot is split. Its synchronous part comes before the broadcast, so that a slow output never delays the
  freezing; its asynchronous part comes after the unblocking. Nothing is processed in between, so the cut is the same.
- The papers know one barrier at a time, and no failure. Here checkpoints have numbers, rising on every channel.
- A checkpoint can be aborted at any time, also before its first barrier is seen here.

Rules and invariants:

- Checkpoints begin in rising order; what is not newer than the newest one seen is ignored.
- A barrier that is forwarded is so whether or not the snapshot succeeds afterwards: consumers must not wait for ours.
- An aborted checkpoint is never acknowledged.
- One machine serves one generation of a subtask: completions of an older one must not be fed to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from typing_extensions import assert_never

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.effects import (
    AcknowledgeCheckpoint,
    BarrierEffect,
    DeclineCheckpoint,
    DiscardSnapshot,
)
from flinkplus.protocol.vocabulary.events import (
    BarrierArrived,
    BarrierEvent,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotPersisted,
)
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId, invariant

NO_CHECKPOINT = CheckpointId(0)
"""The version of those that begin at the start."""
MAX_ASYNCHRONOUS = 8
"""Snapshots in their asynchronous part. Beyond this a checkpoint is declined, and its barrier still forwarded."""
MAX_REMEMBERED_ABORTS = 64
"""Aborted checkpoints none of whose barriers was seen. Beyond this the oldest is taken as seen, with all before it."""


class BarrierMachine(ABC):
    """The machine of one subtask; a source has no ``inputs``.

    ``version``: the checkpoint that it begins from (0: the start); barriers up to it mean nothing.
    ``aborted``: what a snapshot noted of another machine (``aborted``), whose steps this one repeats.
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
        self._asynchronous: dict[CheckpointId, bool] = {}  # -> aborted since

    @property
    def waiting_for(self) -> tuple[CheckpointId, ...]:
        """The checkpoints some of whose barriers are here and some not."""
        return ()

    @property
    def aborted(self) -> tuple[CheckpointId, ...]:
        """Checkpoints that are given up, and none of whose barriers is here yet: they will not be begun."""
        return tuple(self._aborted_unseen)

    def next_deadline_ms(self) -> int | None:
        """Always None: the coordinator times every checkpoint, and aborts it here too."""
        return None

    def step(self, now_ms: int, event: BarrierEvent) -> list[BarrierEffect]:
        """What to do about ``event``. Raises ``PeerProtocolError`` and changes nothing when a peer may not do that."""
        match event:
            case BarrierArrived(channel, checkpoint):
                if channel not in self._inputs:
                    raise PeerProtocolError(
                        f"{self._subtask}: barrier {checkpoint} on {channel}, which is not one of its inputs"
                    )
                return self._on_barrier(channel, checkpoint)
            case CheckpointTriggered(checkpoint):
                return self._on_trigger(checkpoint)
            case CheckpointAborted(checkpoint):
                return self._on_abort(checkpoint)
            case SnapshotPersisted(checkpoint, handle):
                return self._on_persisted(checkpoint, handle)
            case SnapshotFailed():
                return self._on_failed(event)
            case _:
                assert_never(event)

    # ------------------------------------------------------------------------------------- by the algorithm

    @abstractmethod
    def _on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """A barrier was taken off one of the inputs."""

    @abstractmethod
    def _begin_snapshot(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """It is time to copy the state: of a source, because it was told to."""

    @abstractmethod
    def _give_up(self, checkpoint: CheckpointId) -> list[BarrierEffect] | None:
        """An aborted checkpoint, if it is under way and its snapshot is not being persisted; else ``None``."""

    # ------------------------------------------------------------------------------------------------ numbers

    def _on_trigger(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if self._inputs:
            raise PeerProtocolError(f"{self._subtask}: checkpoint {checkpoint} triggered, but it is not a source")
        if checkpoint <= self._newest_seen or not self._see(checkpoint):
            return []
        return self._begin_snapshot(checkpoint)

    def _see(self, checkpoint: CheckpointId) -> bool:
        """Note that nothing up to ``checkpoint`` can begin any more; true when ``checkpoint`` itself shall."""
        aborted = checkpoint in self._aborted_unseen
        self._newest_seen = checkpoint
        self._aborted_unseen = [other for other in self._aborted_unseen if other > checkpoint]
        return not aborted

    def _on_abort(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        found = self._give_up(checkpoint)
        if found is not None:
            return found
        if checkpoint in self._asynchronous:
            self._asynchronous[checkpoint] = True
        elif checkpoint > self._newest_seen and checkpoint not in self._aborted_unseen:
            self._aborted_unseen = sorted((*self._aborted_unseen, checkpoint))
            if len(self._aborted_unseen) > MAX_REMEMBERED_ABORTS:
                self._newest_seen = self._aborted_unseen.pop(0)
        return []

    # ------------------------------------------------------------------------------------------------ snapshots

    def _refusal(self) -> str | None:
        """Why no further snapshot can be taken now."""
        if len(self._asynchronous) < MAX_ASYNCHRONOUS:
            return None
        return f"{self._subtask}: {len(self._asynchronous)} older snapshots are still being persisted"

    def _on_persisted(self, checkpoint: CheckpointId, handle: object) -> list[BarrierEffect]:
        self._check_was_begun(checkpoint)
        aborted = self._asynchronous.pop(checkpoint, None)
        if aborted is None:
            return []
        return [DiscardSnapshot(checkpoint) if aborted else AcknowledgeCheckpoint(checkpoint, handle)]

    def _on_failed(self, failed: SnapshotFailed) -> list[BarrierEffect]:
        self._check_was_begun(failed.checkpoint)
        aborted = self._asynchronous.pop(failed.checkpoint, True)
        return [] if aborted else [DeclineCheckpoint(failed.checkpoint, failed.reason, failed.cause)]

    def _was_begun(self, checkpoint: CheckpointId) -> bool:
        """Whether a snapshot may have been ordered."""
        return checkpoint <= self._newest_seen

    def _check_was_begun(self, checkpoint: CheckpointId) -> None:
        """A second completion is let through; one of a snapshot that cannot have been ordered is a fault of our own."""
        invariant(
            self._was_begun(checkpoint),
            "a snapshot ended that was never begun",
            subtask=self._subtask,
            checkpoint=checkpoint,
        )
