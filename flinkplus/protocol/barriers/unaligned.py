"""Unaligned snapshots of one subtask: barriers that overtake waiting messages.

After Chandy and Lamport, "Distributed Snapshots" (1985), with barriers as markers. From Flink comes the idea that a
slow aligned checkpoint turns into an unaligned one. It is algorithm 1 (``alignment``) until the coordinator orders, at
once or after a timeout, that a checkpoint may *overtake*. From then on:

- *first barrier*: it need not be taken; it is enough that it has arrived on one channel. Before any other step, the
  state is copied, and the barrier is sent to every output at once;
- *record channel*: on every input whose barrier was not taken, all messages not yet taken, up to the barrier, were in
  flight. They belong to the snapshot, whether they are here already or still to arrive;
- *last barrier*: when it has arrived on all inputs, the snapshot, which is the copy and the records, is persisted.
  Recorded messages are processed as usual, before or after that. A barrier that is taken later has no effect;
- *restore*: recorded messages are put back in front of their channel (``InputGate.add``).

Why the cut is that of an aligned checkpoint. Channels keep their order and their numbers, and a barrier has its place
on each. All that a subtask does before its own barrier depends on what precedes the barriers of its inputs. So every
snapshot, aligned or not, stands behind the barrier at both ends of every channel, and both kinds can mix within one
checkpoint. A message before the barrier is either in the state of its consumer, or in its record.

Why it does not wait for the backlog. A barrier counts when it arrives in the queue of its consumer. It is sent without
credit, with all that its producer has appended before it (``OutputChannels.overdraw`` has the exceptions). A step that
waits for room in its producer runs to its end (``OutputChannels.endless``), or as far as a barrier may overtake.

A barrier overtakes no more than a snapshot can hold (``MAX_OVERTAKEN_BYTES`` of a channel, ``InFlightBudget.room`` of
all); until less is left, it waits as an aligned one does.

Departures beyond those of ``machine`` and ``recording``:

- Barriers do not say how to take them: whether one may overtake is a separate order. A subtask that misses the order
  aligns; that takes longer, and is equally correct.
- When the state is copied is a choice: it decides the epoch of the messages that waited. So it is a determinant
  (``Choice.OVERTAKE``). A successor repeats it whether or not the barrier has arrived again.
- The last checkpoint of a job is never unaligned: no message may be in flight when the job ends.

Invariants:

- Without an order, this is algorithm 1, effect by effect.
- The arrival of a barrier affects no message: it makes a checkpoint due, ends a recording, or declines an older one.
  The copy, and all that is sent, follow from the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkplus.protocol.barriers.machine import NO_CHECKPOINT
from flinkplus.protocol.barriers.recording import RecordingAlignment
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.effects import BarrierEffect
from flinkplus.protocol.vocabulary.events import BarrierEvent, OvertakingEvent
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
        self._ordered: list[CheckpointId] = []  # ascending; may overtake, and have not begun
        self._arrived: dict[CheckpointId, list[ChannelId]] = {}  # of checkpoints that have not begun
        self.due: CheckpointId | None = None

    def may_overtake(self, checkpoint: CheckpointId) -> bool:
        """Whether the coordinator has ordered that ``checkpoint``, which has not begun, may overtake."""
        return checkpoint in self._ordered

    def overtaken_by(self, checkpoint: CheckpointId) -> tuple[ChannelId, ...]:
        """The inputs on which the barrier of ``checkpoint``, which has not begun, was not taken."""
        return tuple(c for c in self._inputs if checkpoint != self._aligning or c not in self._taken)

    def step(self, now_ms: int, event: BarrierEvent | OvertakingEvent) -> list[BarrierEffect]:
        match event:
            case events.BarrierArrived(channel, checkpoint):
                found = self._on_arrived(channel, checkpoint)
            case events.OvertakingOrdered(checkpoint):
                found = []
                if self._is_to_come(checkpoint) and checkpoint not in self._ordered:
                    self._ordered = sorted((*self._ordered, checkpoint))
            case events.BarrierOvertook(checkpoint):
                found = self._on_overtook(checkpoint)
            case _:
                found = super().step(now_ms, event)
        self._look_for_due()
        return found

    def _is_to_come(self, checkpoint: CheckpointId) -> bool:
        return checkpoint > self._newest_seen or checkpoint == self._aligning

    def _look_for_due(self) -> None:
        self._ordered = [number for number in self._ordered if self._is_to_come(number)]
        self._arrived = {number: found for number, found in self._arrived.items() if self._is_to_come(number)}
        ready = [n for n in self._ordered if n in self._arrived and n not in self._aborted_unseen]
        self.due = ready[0] if ready else None

    def _on_arrived(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        found = self._came(channel, checkpoint)
        if self._is_to_come(checkpoint):
            self._arrived.setdefault(checkpoint, []).append(channel)
        return found

    def _begin_snapshot(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """Aligned, or of a source: the snapshot does not overtake, but its barrier may do so downstream."""
        overtakes = checkpoint in self._ordered
        found = super()._begin_snapshot(checkpoint)
        return [
            effects.ForwardBarrier(e.checkpoint, overtakes) if isinstance(e, effects.ForwardBarrier) else e
            for e in found
        ]

    def _on_overtook(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        can_begin = self._is_to_come(checkpoint) and checkpoint not in self._aborted_unseen
        why = "a barrier overtakes for a checkpoint that cannot begin"
        invariant(can_begin, why, subtask=self._subtask, checkpoint=checkpoint)
        found: list[BarrierEffect] = []
        if checkpoint != self._aligning:
            found += self._decline_alignment(superseded_by=checkpoint)
            self._see(checkpoint)
        refusal = self._refusal()
        if refusal is not None:
            barrier = effects.ForwardBarrier(checkpoint, overtakes=True)
            return [*found, barrier, *self._unblock(), effects.DeclineCheckpoint(checkpoint, refusal)]
        self._unfinished[checkpoint] = False
        recorded = self.overtaken_by(checkpoint)
        here = self._arrived.get(checkpoint, ())
        self._recordings[checkpoint] = [channel for channel in recorded if channel not in here]
        return [
            *found,
            effects.TakeSnapshot(checkpoint),
            *[effects.RecordChannel(checkpoint, channel) for channel in recorded],
            effects.ForwardBarrier(checkpoint, overtakes=True),
            *self._unblock(),
            *self._persist(),
            *self._decline_if_passed(checkpoint),
        ]

    def _decline_if_passed(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """Decline if a newer barrier has already arrived on a channel where this one has not."""
        for channel in self._recordings.get(checkpoint, ()):
            for newer, channels in self._arrived.items():
                if newer > checkpoint and channel in channels:
                    return self._decline_recording(checkpoint, channel, newer)
        return []
