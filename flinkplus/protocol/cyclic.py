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

Departures beside those of ``barriers`` and ``alignment``:

- Checkpoints may overlap: the state is copied for one while another's barrier is still on its way round. Each has logs
  of its own. Copies are persisted in the order in which they were taken, since each builds on the one before.
- A newer barrier on a back edge proves that the older one will never come round on it: that checkpoint is declined.
- The barrier itself is the last message of the log: whoever repeats the steps behind the copy takes it again.

Invariant: a snapshot without back edges is just that of algorithm 1, effect by effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from flinkplus.protocol.alignment import BarrierAlignment
from flinkplus.protocol.effects import (
    BarrierEffect,
    CloseLog,
    DeclineCheckpoint,
    ForwardBarrier,
    LogChannel,
    PersistSnapshot,
    TakeSnapshot,
)
from flinkplus.protocol.ids import ChannelId, CheckpointId, SubtaskId, invariant


class CyclicAlignment(BarrierAlignment):
    """The machine of one subtask. ``back``: those of its ``inputs`` that are back edges."""

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
        self._rounds: dict[CheckpointId, list[ChannelId]] = {}  # ascending; back edges it has not come round on

    @property
    def waiting_for(self) -> tuple[CheckpointId, ...]:
        return (*self._rounds, *super().waiting_for)

    def _on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[BarrierEffect]:
        if channel not in self._back:
            return super()._on_barrier(channel, checkpoint)
        effects: list[BarrierEffect] = []
        for older in [number for number in self._rounds if number < checkpoint]:
            if channel in self._rounds.get(older, ()):  # one that was given up may be done with those before it
                reason = f"{self._subtask}: barrier {checkpoint} came round on {channel} before {older} did"
                effects += [DeclineCheckpoint(older, reason), *self._give_up_round(older)]
        awaited = self._rounds.get(checkpoint, [])
        if channel in awaited:
            awaited.remove(channel)
            effects += [CloseLog(checkpoint, channel), *self._persist()]
        return effects

    def _persist(self) -> list[BarrierEffect]:
        """Those whose barrier has come round on all back edges, up to the first that it has not."""
        effects: list[BarrierEffect] = []
        for checkpoint, awaited in tuple(self._rounds.items()):
            if awaited:
                break
            del self._rounds[checkpoint]
            effects.append(PersistSnapshot(checkpoint))
        return effects

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

    def _give_up(self, checkpoint: CheckpointId) -> list[BarrierEffect] | None:
        if checkpoint in self._rounds:
            return self._give_up_round(checkpoint)
        return super()._give_up(checkpoint)

    def _give_up_round(self, checkpoint: CheckpointId) -> list[BarrierEffect]:
        """The copy is persisted all the same, since later snapshots build on it; it is discarded then."""
        self._asynchronous[checkpoint] = True
        logs: list[BarrierEffect] = [CloseLog(checkpoint, channel) for channel in self._rounds[checkpoint]]
        self._rounds[checkpoint].clear()
        return [*logs, *self._persist()]

    def _was_begun(self, checkpoint: CheckpointId) -> bool:
        return super()._was_begun(checkpoint) and checkpoint not in self._rounds
