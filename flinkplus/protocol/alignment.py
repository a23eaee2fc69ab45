"""Barrier alignment of one subtask: asynchronous barrier snapshots of acyclic graphs.

After algorithm 1 of Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows" (2015).

Its steps, by the names that the tests use:

- *init*: the subtask knows its inputs and outputs, and no input is blocked;
- *barrier from nil*: a source has no inputs and is told by the coordinator; nothing is blocked, all else is as below;
- *block input*: a barrier came on an input: nothing more is taken from it;
- *all inputs blocked*: the barrier goes to every output, the state is snapshotted, and every input is unblocked;
- *message*: from an input that is not blocked it is processed, from a blocked one it waits. The caller's part: this
  machine only says which are blocked.

Departures, and why:

- The snapshot is split. Its synchronous part comes before the broadcast, so that a slow output never delays the
  freezing; its asynchronous part comes after the unblocking. Nothing is processed in between, so the cut is the same.
- The paper knows one barrier at a time, and no failure. Here checkpoints have numbers, rising on every channel. A
  barrier of a newer checkpoint on a channel proves that the one being aligned will never come on it: it is declined.
- A checkpoint can be aborted at any time, also before its first barrier is seen here.

Rules and invariants:

- Checkpoints begin in rising order; what is not newer than the newest one seen is ignored.
- A barrier is forwarded exactly when its alignment is complete, whether or not the snapshot succeeds afterwards:
  consumers must not wait for ours.
- A channel is blocked only while a checkpoint is being aligned, and never all of them at rest.
- Without ``blocking`` the same is done, but nothing waits: barriers are only counted, one a channel. (At least once: a
  snapshot holds some of what comes behind its barrier.)
- An aborted checkpoint is never acknowledged.
- One machine serves one generation of a subtask: completions of an older one must not be fed to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import assert_never

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.effects import (
    AcknowledgeCheckpoint,
    AlignmentEffect,
    BlockChannel,
    DeclineCheckpoint,
    DiscardSnapshot,
    ForwardBarrier,
    PersistSnapshot,
    TakeSnapshot,
    UnblockChannel,
)
from flinkplus.protocol.events import (
    AlignmentEvent,
    BarrierArrived,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotFailed,
    SnapshotPersisted,
)
from flinkplus.protocol.ids import ChannelId, CheckpointId, SubtaskId, invariant

MAX_REMEMBERED_ABORTS = 64
"""Aborted checkpoints none of whose barriers was seen. Beyond this the oldest is taken as seen, with all before it."""


class BarrierAlignment:
    """The machine of one subtask; a source has no ``inputs``.

    ``blocking``: whether an input waits once its barrier has come. ``max_asynchronous``: snapshots in their
    asynchronous part beyond which a checkpoint is declined (and its barrier still forwarded). ``aborted``: what a
    snapshot noted of another machine (``aborted``), whose steps this one repeats.
    """

    def __init__(
        self,
        subtask: SubtaskId,
        inputs: tuple[ChannelId, ...],
        max_asynchronous: int = 8,
        aborted: Sequence[CheckpointId] = (),
        blocking: bool = True,
    ) -> None:
        invariant(len(set(inputs)) == len(inputs), "an input channel is given twice", subtask=subtask)
        invariant(max_asynchronous >= 1, "max_asynchronous must be at least 1", given=max_asynchronous)
        self._subtask = subtask
        self._inputs = inputs
        self._blocking = blocking
        self._max_asynchronous = max_asynchronous
        self._newest_seen = CheckpointId(0)
        self._aligning: CheckpointId | None = None
        self._blocked: list[ChannelId] = []
        self._aborted_unseen: list[CheckpointId] = sorted(aborted)
        self._asynchronous: dict[CheckpointId, bool] = {}  # -> aborted since

    @property
    def aligning(self) -> CheckpointId | None:
        """The checkpoint some of whose barriers are here and some not."""
        return self._aligning

    @property
    def blocked(self) -> tuple[ChannelId, ...]:
        """The channels that nothing may be taken off."""
        return tuple(self._blocked) if self._blocking else ()

    @property
    def aborted(self) -> tuple[CheckpointId, ...]:
        """Checkpoints that are given up, and none of whose barriers is here yet: they will not be aligned."""
        return tuple(self._aborted_unseen)

    def next_deadline_ms(self) -> int | None:
        """Always None: the coordinator times every checkpoint, and aborts it here too."""
        return None

    def step(self, now_ms: int, event: AlignmentEvent) -> list[AlignmentEffect]:
        """What to do about ``event``. Raises ``PeerProtocolError`` and changes nothing when a peer may not do that."""
        match event:
            case BarrierArrived(channel, checkpoint):
                return self._on_barrier(channel, checkpoint)
            case CheckpointTriggered(checkpoint):
                return self._on_trigger(checkpoint)
            case CheckpointAborted(checkpoint):
                return self._on_abort(checkpoint)
            case SnapshotPersisted(checkpoint, handle):
                return self._on_persisted(checkpoint, handle)
            case SnapshotFailed(checkpoint, reason):
                return self._on_failed(checkpoint, reason)
            case _:
                assert_never(event)

    # ------------------------------------------------------------------------------------------------ barriers

    def _on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        if channel not in self._inputs:
            raise PeerProtocolError(f"{self._subtask}: barrier {checkpoint} on {channel}, which is no input of it")
        if channel in self._blocked and self._blocking:
            raise PeerProtocolError(
                f"{self._subtask}: barrier {checkpoint} on {channel}, which checkpoint {self._aligning} blocks"
            )
        if checkpoint == self._aligning:
            return self._block(channel, checkpoint) if channel not in self._blocked else []
        if checkpoint <= self._newest_seen:
            return []
        effects = self._give_up_alignment(superseded_by=checkpoint)
        if self._see(checkpoint):
            self._aligning = checkpoint
            effects += self._block(channel, checkpoint)
        return effects

    def _on_trigger(self, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        if self._inputs:
            raise PeerProtocolError(f"{self._subtask}: checkpoint {checkpoint} triggered, but it is no source")
        if checkpoint <= self._newest_seen or not self._see(checkpoint):
            return []
        return self._complete_alignment(checkpoint)

    def _see(self, checkpoint: CheckpointId) -> bool:
        """Note that nothing up to ``checkpoint`` can begin any more; true when ``checkpoint`` itself shall."""
        aborted = checkpoint in self._aborted_unseen
        self._newest_seen = checkpoint
        self._aborted_unseen = [other for other in self._aborted_unseen if other > checkpoint]
        return not aborted

    def _block(self, channel: ChannelId, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        self._blocked.append(channel)
        effects: list[AlignmentEffect] = [BlockChannel(channel)] if self._blocking else []
        if len(self._blocked) == len(self._inputs):
            effects += self._complete_alignment(checkpoint)
        return effects

    def _complete_alignment(self, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        if len(self._asynchronous) >= self._max_asynchronous:
            reason = f"{self._subtask}: {len(self._asynchronous)} older snapshots are still being persisted"
            return [ForwardBarrier(checkpoint), *self._unblock(), DeclineCheckpoint(checkpoint, reason)]
        self._asynchronous[checkpoint] = False
        return [
            TakeSnapshot(checkpoint),
            ForwardBarrier(checkpoint),
            *self._unblock(),
            PersistSnapshot(checkpoint),
        ]

    def _unblock(self) -> list[AlignmentEffect]:
        effects: list[AlignmentEffect] = [UnblockChannel(channel) for channel in self._blocked if self._blocking]
        self._blocked.clear()
        self._aligning = None
        return effects

    def _give_up_alignment(self, superseded_by: CheckpointId) -> list[AlignmentEffect]:
        if self._aligning is None:
            return []
        reason = f"{self._subtask}: barrier {superseded_by} came while {self._aligning} was being aligned"
        return [DeclineCheckpoint(self._aligning, reason), *self._unblock()]

    # ---------------------------------------------------------------------------------- aborts and completions

    def _on_abort(self, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        if checkpoint == self._aligning:
            return self._unblock()
        if checkpoint in self._asynchronous:
            self._asynchronous[checkpoint] = True
        elif checkpoint > self._newest_seen and checkpoint not in self._aborted_unseen:
            self._aborted_unseen = sorted((*self._aborted_unseen, checkpoint))
            if len(self._aborted_unseen) > MAX_REMEMBERED_ABORTS:
                self._newest_seen = self._aborted_unseen.pop(0)
        return []

    def _on_persisted(self, checkpoint: CheckpointId, handle: object) -> list[AlignmentEffect]:
        self._check_was_begun(checkpoint)
        aborted = self._asynchronous.pop(checkpoint, None)
        if aborted is None:
            return []
        return [DiscardSnapshot(checkpoint) if aborted else AcknowledgeCheckpoint(checkpoint, handle)]

    def _on_failed(self, checkpoint: CheckpointId, reason: str) -> list[AlignmentEffect]:
        self._check_was_begun(checkpoint)
        aborted = self._asynchronous.pop(checkpoint, True)
        return [] if aborted else [DeclineCheckpoint(checkpoint, reason)]

    def _check_was_begun(self, checkpoint: CheckpointId) -> None:
        """A second completion is let through; one of a snapshot that cannot have been ordered is a fault of our own."""
        invariant(
            checkpoint <= self._newest_seen and checkpoint != self._aligning,
            "a snapshot ended that was never begun",
            subtask=self._subtask,
            checkpoint=checkpoint,
        )
