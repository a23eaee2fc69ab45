"""Triggers of checkpoints, sent to the slots of sources.

Rules: a source that is moving gets its triggers after the move, except for those of checkpoints that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch


@dataclass(eq=False, repr=False)
class Triggers:
    """Sends the triggers of one job. ``pending``: returns the checkpoints that still wait for subtasks."""

    _dispatch: Dispatch
    _deployment: Deployment
    _pending: Callable[[], Collection[CheckpointId]]
    _moving: dict[SubtaskId, None] = field(default_factory=dict, init=False)
    _held: dict[tuple[CheckpointId, SubtaskId], None] = field(default_factory=dict, init=False)

    @property
    def moving(self) -> list[SubtaskId]:
        """The subtasks that a failover or handover is moving."""
        return list(self._moving)

    def send(self, checkpoint: CheckpointId, sources: Iterable[SubtaskId], generation: Generation) -> None:
        """Trigger ``checkpoint`` at ``sources``; at those that are moving, after their move."""
        by_slot: dict[int, list[str]] = {}
        for source in sources:
            if source in self._moving:
                self._held[(checkpoint, source)] = None
            else:
                by_slot.setdefault(self._deployment.assignment[source], []).append(str(source))
        for slot, names in by_slot.items():
            self._dispatch.send(slot, control.Trigger(generation, checkpoint, names))

    def moves(self, subtasks: Iterable[SubtaskId]) -> None:
        """``subtasks`` start to move."""
        self._moving.update(dict.fromkeys(subtasks))

    def arrived(self) -> None:
        """All moves have ended."""
        held, generation = self._held, self._deployment.generation
        self.reset()
        for checkpoint, source in held:
            if checkpoint in self._pending():
                self.send(checkpoint, [source], generation)
        if self._deployment.draining:
            self._dispatch.send_all(control.Drain(generation))

    def reset(self) -> None:
        """Forget all moves: a rollback or the end of the job begins."""
        self._moving, self._held = {}, {}
