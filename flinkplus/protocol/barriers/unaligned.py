"""Unaligned snapshots of one subtask: barriers that overtake what waits, after Chandy and Lamport.

After Chandy and Lamport, "Distributed Snapshots" (1985), with barriers for markers; that an aligned checkpoint turns
into an unaligned one when it takes too long is Flink's. It is algorithm 1 (``alignment``) for as long as the
coordinator does not say that a checkpoint may *overtake*, at once or after a time-out, and from then on:

- *first barrier*: it need not be taken, it is enough that it has come in on one channel (is *sighted*). Between two
  steps, before any other, the state is copied, and the barrier goes to every output and is sent at once;
- *record channel*: on every input whose barrier was not taken, all from the oldest message that is not taken up to the
  barrier was in flight, and belongs to the snapshot: what is here already, and what is still to come;
- *last barrier*: when it has come in on all inputs the snapshot, which is the copy and the records, is persisted.
  What is recorded is worked on as ever, before that or after; when the barrier's own turn comes, nothing happens;
- *restore*: what was recorded is put back in front of its channel (``InputGate.add``).

Why the cut is that of an aligned checkpoint. Channels keep their order and their numbers; a barrier has its place on
each, and all that a subtask does before its own barrier depends on what lies before the barriers of its inputs. So a
snapshot stands behind the barrier on every channel, at both ends, whichever way it was taken: aligned and unaligned
ones mix within one checkpoint, and what producers keep, what is let go and where a failed set goes on is decided by the
same cursors. A message before the barrier is either in the state of its consumer, or in its record.

Why it does not wait for the backlog. What a barrier would wait for is skipped at all three places:

- in its consumer, the queue: it counts when it comes in, not when it is taken;
- on the wire, credit: it is sent with all that its producer has made before it (``OutputChannels.overdraw``). That is
  bounded, since a producer keeps few messages unsent, and makes no more before credit has caught up. What is sent again
  to a consumer's successor may be much: it goes with credit, and the barrier there waits for it;
- in its producer, room: a step that rests half-way for lack of room is done to its end (``OutputChannels.endless``), or
  as far as may be overtaken.

No more is overtaken than a snapshot can hold (``MAX_OVERTAKEN_BYTES`` of a channel, ``InFlightBudget.room`` of all):
until less is left, a barrier waits as an aligned one does.

What is left is a step at each subtask on the way, and the time that the messages take which are in flight.

Departures beside those of ``barriers`` and ``recording``:

- Markers say nothing of how they are to be taken: whether one may overtake is an order beside the stream. Somebody who
  does not hear of it aligns; that takes longer, and is as right.
- When the state was copied is a choice, since what waited is taken in another epoch else. It is a determinant
  (``Choice.OVERTAKE``), and whoever repeats it does so whether the barrier has come in again or not.
- The last checkpoint of a job is never unaligned: nothing may be in flight when it ends.

Invariants:

- Without an order, this is algorithm 1, effect by effect.
- What is sighted changes nothing but when a snapshot is persisted; all else follows from the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkplus.protocol.barriers.barriers import NO_CHECKPOINT
from flinkplus.protocol.barriers.recording import RecordingAlignment
from flinkplus.protocol.vocabulary.effects import (
    BarrierEffect,
    CloseRecord,
    DeclineCheckpoint,
    ForwardBarrier,
    RecordChannel,
    TakeSnapshot,
)
from flinkplus.protocol.vocabulary.events import (
    BarrierEvent,
    BarrierOvertook,
    BarrierSighted,
    OvertakingEvent,
    OvertakingOrdered,
)
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId, invariant


class UnalignedBarriers(RecordingAlignment):
    """The machine of one subtask.

    ``due``: the checkpoint that is to be begun before any other step (``BarrierOvertook``), if there is one.
    """

    def __init__(
        self,
        subtask: SubtaskId,
        inputs: tuple[ChannelId, ...],
        version: CheckpointId = NO_CHECKPOINT,
        aborted: Sequence[CheckpointId] = (),
    ) -> None:
        super().__init__(subtask, inputs, version, aborted)
        self._ordered: list[CheckpointId] = []  # ascending; those that may overtake, and are not begun
        self._sighted: dict[CheckpointId, list[ChannelId]] = {}  # of checkpoints that are not begun
        self.due: CheckpointId | None = None

    def may_overtake(self, checkpoint: CheckpointId) -> bool:
        """Whether the coordinator has said so; of a checkpoint that is not begun."""
        return checkpoint in self._ordered

    def overtaken_by(self, checkpoint: CheckpointId) -> tuple[ChannelId, ...]:
        """The inputs on which the barrier of ``checkpoint``, which is not begun, was not taken."""
        return tuple(c for c in self._inputs if checkpoint != self._aligning or c not in self._blocked)

    def step(self, now_ms: int, event: BarrierEvent | OvertakingEvent) -> list[BarrierEffect]:
        match event:
            case BarrierSighted(channel, checkpoint):
                found = self._on_sighted(channel, checkpoint)
            case OvertakingOrdered(checkpoint):
                found = self._on_ordered(checkpoint)
            case BarrierOvertook(checkpoint):
                found = self._on_overtook(checkpoint)
            case _:
                found = super().step(now_ms, event)
        self._look_for_due()
        return found

    def _is_to_come(self, checkpoint: CheckpointId) -> bool:
        return checkpoint > self._newest_seen or checkpoint == self._aligning

    def _look_for_due(self) -> None:
        self._ordered = [number for number in self._ordered if self._is_to_come(number)]
        self._sighted = {number: found for number, found in self._sighted.items() if self._is_to_come(number)}
        ready = [n for n in self._ordered if n in self._sighted and n not in self._aborted_unseen]
        self.due = ready[0] if ready else None

    # --------------------------------------------------------------------------------------------- orders

    def _on_ordered(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if self._is_to_come(checkpoint) and checkpoint not in self._ordered:
            self._ordered = sorted((*self._ordered, checkpoint))
        return []

    def _on_sighted(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        effects = self._came(channel, checkpoint)
        if self._is_to_come(checkpoint):
            self._sighted.setdefault(checkpoint, []).append(channel)
        return effects

    # ------------------------------------------------------------------------------------------- snapshots

    def _begin_snapshot(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """Aligned, or of a source: it does not wait itself, but its barrier might."""
        overtakes = checkpoint in self._ordered
        found = super()._begin_snapshot(checkpoint)
        return [ForwardBarrier(e.checkpoint, overtakes) if isinstance(e, ForwardBarrier) else e for e in found]

    def _on_overtook(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        invariant(
            self._is_to_come(checkpoint) and checkpoint not in self._aborted_unseen,
            "a barrier overtakes for a checkpoint that cannot begin",
            subtask=self._subtask,
            checkpoint=checkpoint,
        )
        effects: list[BarrierEffect] = []
        if checkpoint != self._aligning:
            effects += self._give_up_alignment(superseded_by=checkpoint)
            self._see(checkpoint)
        refusal = self._refusal()
        if refusal is not None:
            barrier = ForwardBarrier(checkpoint, overtakes=True)
            return [*effects, barrier, *self._unblock(), DeclineCheckpoint(checkpoint, refusal)]
        self._asynchronous[checkpoint] = False
        recorded = self.overtaken_by(checkpoint)
        here = self._sighted.get(checkpoint, ())
        self._recordings[checkpoint] = [channel for channel in recorded if channel not in here]
        return [
            *effects,
            TakeSnapshot(checkpoint),
            *[RecordChannel(checkpoint, channel) for channel in recorded],
            ForwardBarrier(checkpoint, overtakes=True),
            *self._unblock(),
            *self._persist(),
            *self._decline_if_passed(checkpoint),
        ]

    def _decline_if_passed(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """A newer barrier may have come in already where this one has not."""
        for channel in self._recordings.get(checkpoint, ()):
            for newer, channels in self._sighted.items():
                if newer > checkpoint and channel in channels:
                    return self._decline_recording(checkpoint, channel, newer)
        return []

    def _close(self, checkpoint: CheckpointId, channel: ChannelId) -> BarrierEffect:
        return CloseRecord(checkpoint, channel)
