"""Planned moves: which running subtasks are handed over to another slot of their chain, and when.

Rules:

- A handover is an optional failover: only after a complete checkpoint, while no failover is under way, and only of
  subtasks whose failover is provable. Until the fence is sent to the first slot, any failure calls it off.
- A head moves to its planned slot (``planned_members``): back home after a failover, or elsewhere on request.
- A head that is not planned any more waits until all planned members have caught up, so that no chain becomes shorter.
  By force, it does not wait for planned members that are dead.
- A slot that could not take its work back is skipped for some checkpoints.

Invariants: all subtasks of a handover go to one slot, which has the last complete version of each; a handover that is
called off leaves the members as they were, except for those that were lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from chain_backup.failover.attempts import Attempts
from chain_backup.failover.chains import Chain, ChainTable
from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import FailoverEffect
from chain_backup.failover.planned_members import PlannedMembers
from flinkplus.protocol.vocabulary.ids import SubtaskId

HANDOVER_PAUSE = 10
"""Number of complete checkpoints before a slot that could not take its work back is tried again."""


class Handover:
    """Chooses the next handover, starts it with ``attempts``, and calls it off."""

    def __init__(self, config: FailoverConfig, table: ChainTable, planned: PlannedMembers, attempts: Attempts) -> None:
        self._config = config
        self._table = table
        self._planned = planned
        self._attempts = attempts
        self._former: dict[SubtaskId, tuple[int, ...]] = {}  # members of the chains before the newest handover
        self._paused: dict[int, int] = {}  # slots that could not take their work back -> checkpoints to wait
        self._ready: set[int] = set()  # home slots that can take their work back; never iterated

    def reset(self) -> None:
        self._former = {}
        self._paused.clear()
        self._ready.clear()

    @property
    def former_members(self) -> Mapping[SubtaskId, tuple[int, ...]]:
        """The former members of the chains in the handover under way; empty when it cannot be called off."""
        return self._former if self._attempts.can_be_called_off else {}

    def completed(self, previous: int) -> None:
        """A checkpoint is complete; ``previous``: the complete version before it."""
        self._paused = {slot: left - 1 for slot, left in self._paused.items() if left > 1}
        fit = [slot for slot in self._planned.slots if slot not in self._paused]
        self._ready = {slot for slot in fit if self._has_at_home(slot, previous)}

    def joined(self, slot: int) -> None:
        """The process of ``slot`` is new: try it again."""
        self._paused.pop(slot, None)

    def refused(self, slot: int) -> None:
        """``slot`` could not take its work."""
        self._paused[slot] = HANDOVER_PAUSE
        self._ready.discard(slot)

    def begin(self, now_ms: int) -> list[FailoverEffect]:
        """Start to move the work of one slot back home: once for each complete checkpoint, and soon after it, so that
        replay is short. So the slot must have been up to date when the checkpoint became complete."""
        if self._attempts.active:
            return []
        for slot in self._planned.slots:
            if slot in self._ready and self._has_at_home(slot, self._table.complete) and self._may_take(slot):
                return self._hand_over(now_ms, slot)
        return []

    def _has_at_home(self, slot: int, version: int) -> bool:
        """Whether ``slot`` has ``version`` or newer of all subtasks that should run there and do not."""
        away = self._away(slot)
        if self._config.partial:  # every slot has it, in the durable store
            return bool(away) and self._table.is_alive(slot)
        return bool(away) and all(chain.newest_staged(slot) >= version for chain in away)

    def _may_take(self, slot: int) -> bool:
        """Whether no chain whose head moves to ``slot`` becomes shorter permanently."""
        leaving = [chain for chain in self._away(slot) if chain.head not in chain.planned]
        return all(self._table.is_full(chain, chain.head in self._planned.forced) for chain in leaving)

    def _away(self, slot: int) -> list[Chain]:
        away = [chain for chain in self._table if self._goal(chain) == slot != chain.head]
        return [chain for chain in away if self._config.handover and self._is_due(chain)]

    def _goal(self, chain: Chain) -> int:
        """The slot for the head of ``chain``: home; if it must leave and its home is away, another planned slot."""
        if chain.head in chain.planned:
            return chain.home
        return next((slot for slot in chain.planned if self._table.is_alive(slot)), chain.home)

    def _is_due(self, chain: Chain) -> bool:
        """Whether the head of ``chain`` should move."""
        return self._config.failback or self._planned.is_moving(chain.subtask) or chain.head not in chain.planned

    def _hand_over(self, now_ms: int, slot: int) -> list[FailoverEffect]:
        """Move as many subtasks as are provable together; the others follow after later checkpoints."""
        self._ready.clear()
        moving: list[SubtaskId] = []
        for chain in self._away(slot):
            if self._attempts.why_unsafe([*moving, chain.subtask]) is None:
                moving.append(chain.subtask)
        if not moving:
            return []
        reason = self._planned.reason(self._table[moving[0]])
        self._former = {subtask: self._table[subtask].members for subtask in self._attempts.restarting_with(moving)}
        for subtask in moving:
            self._table.drop_head(subtask)
            self._table[subtask].put_first(slot)
        return self._attempts.hand_over(now_ms, moving, reason)

    def call_off(self) -> list[FailoverEffect]:
        """End the handover under way, unless a slot knows of it: the old heads continue."""
        if not self._attempts.can_be_called_off:
            return []
        for subtask, members in self._former.items():
            self._table.reinstate(subtask, members)
        return self._attempts.call_off()
