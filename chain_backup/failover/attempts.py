"""The failover under way: its attempts, from the failed set to standbys that run.

The life of one attempt, for a failed set of subtasks (of a handover: the subtasks that move)::

                +--records ordered--> REGISTRY --written------------------+
    detected ---+                                                         +--both--> line --> promoting --> done
        ^       +--fence sent-------> FENCE -----all living slots fenced--+                       |
        |                               |                                                         |
        +-- a further failure: the union of both sets --+---- of what is being promoted ----------+
                                                             (the rest continues to be promoted)

A handover takes the two one after the other: the fence is sent when the records are written.

Rules:

- No standby is promoted before the new generation and members are in ZooKeeper, nor before every living slot has fenced
  the old generation, which is when the line is known. Sinks of the failed set whose rows are visible at once must have
  fenced it as well, and their recipes must be read. Neither waits for the other: to refuse the old generation is
  right whether or not a new one follows.
- An attempt takes one new number and one new generation for all of its failed set. An answer to an older attempt has no
  effect, except for an ordered promotion, which stays ordered: when something else fails meanwhile, it continues, and
  its answer counts. Only what failed is in the new attempt.
- Partial recovery: the failed set contains every producer of each of its members. So it needs no output log of other
  subtasks.
- Failed subtasks go back to the last complete version, or to a newer one that every head has in the durable store
  (then it is about to become complete, and must not be undone); with ``pending_versions`` also to a newer one that
  all new heads of a component have staged.
- An attempt that cannot be proved safe ends the failover with ``FallBack``: no member left, no line, determinants lost,
  ZooKeeper refusing or silent.

Invariants: attempts and generations rise and are never used twice; every wait has a deadline of its own; ``FallBack``
is the last effect of its list, and leaves no failover under way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from chain_backup.failover import effects
from chain_backup.failover.chains import ChainTable
from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import FailoverEffect, FailoverKind
from chain_backup.failover.planned_members import PlannedMembers
from chain_backup.failover.recovery_line import NoLine, unprovable
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, SubtaskId, invariant
from flinkplus.protocol.vocabulary.phases import Phase


@dataclass(slots=True)
class _Failover:
    """The failover under way, from the first failure until all subtasks run."""

    number: int
    kind: FailoverKind
    reason: str
    error: object
    subtasks: dict[SubtaskId, None] = field(default_factory=dict)  # failed or handed over; used as an ordered set
    moved: dict[SubtaskId, None] = field(default_factory=dict)  # ``subtasks`` and all that restart with them; likewise
    refused: dict[SubtaskId, list[int]] = field(default_factory=dict)
    """Partial: the slots on which a subtask could not start."""


@dataclass(slots=True)
class _Attempt:
    """An attempt whose line is not known yet. In the chain of each ``failed`` subtask, its new head is first."""

    number: int
    generation: Generation
    failed: tuple[SubtaskId, ...]
    registry_until_ms: int
    is_written: bool = False
    fence_sent: bool = False
    fence_until_ms: int = 0
    awaited: list[int] = field(default_factory=list)
    """Slots to which the fence was sent and that have not answered."""
    awaits_recipes: bool = False
    """Sinks whose rows are visible at once were to be fenced, and have not answered."""
    received: dict[ChannelId, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Promotion:
    """Standbys on one slot whose promotion was ordered."""

    subtasks: tuple[SubtaskId, ...]
    until_ms: int


class Attempts:
    """At most one failover with one attempt at a time, and the promotions of it and of the attempts before."""

    def __init__(self, topology: Topology, config: FailoverConfig, table: ChainTable, planned: PlannedMembers) -> None:
        self._topology = topology
        self._config = config
        self._table = table
        self._planned = planned
        self.newest_generation = Generation(0)
        """The newest generation ever given out."""
        self._count = 0
        self._failovers = 0
        self._failover: _Failover | None = None
        self._attempt: _Attempt | None = None
        self._promotions: dict[tuple[int, int], _Promotion] = {}  # (attempt, slot)

    def continue_numbers_of(self, other: Attempts) -> None:
        """Use no number that ``other`` has used."""
        self.newest_generation, self._count, self._failovers = other.newest_generation, other._count, other._failovers

    def reset(self) -> None:
        """Forget the failover under way, not the numbers that were used."""
        self._failover = self._attempt = None
        self._promotions = {}

    @property
    def kind(self) -> FailoverKind | None:
        """The kind of the failover under way; ``None``: no failover is."""
        return None if self._failover is None else self._failover.kind

    @property
    def active(self) -> bool:
        return self._failover is not None

    @property
    def failed(self) -> Collection[SubtaskId]:
        """The failed set whose line is not known yet."""
        return () if self._attempt is None else self._attempt.failed

    @property
    def can_be_called_off(self) -> bool:
        """Whether the attempt under way is a handover that no slot knows of."""
        return self._attempt is not None and not self._attempt.fence_sent

    def next_deadline_ms(self) -> int | None:
        deadlines = [promotion.until_ms for promotion in self._promotions.values()]
        attempt = self._attempt
        if attempt is not None and not attempt.is_written:
            deadlines.append(attempt.registry_until_ms)
        if attempt is not None and (attempt.awaited or attempt.awaits_recipes):
            deadlines.append(attempt.fence_until_ms)
        return min(deadlines, default=None)

    def restarting_with(self, failed: Sequence[SubtaskId]) -> tuple[SubtaskId, ...]:
        """The subtasks that restart when ``failed`` do, themselves included; sorted."""
        return self._topology.with_upstreams(failed) if self._config.partial else tuple(sorted(set(failed)))

    def why_unsafe(self, failed: Sequence[SubtaskId]) -> str | None:
        """Why ``failed`` cannot be promoted together; ``None`` if they can."""
        together = self.restarting_with(failed)
        return unprovable(together, self._topology, self._config.sharing_depth, self._table.unsettled(together))

    def fail(
        self, now_ms: int, kind: FailoverKind, failed: Sequence[SubtaskId], reason: str, error: object = None
    ) -> list[FailoverEffect]:
        """Start an attempt for three sets together: ``failed``; the failed set of the attempt under way, if there is
        one; what restarts with either. Where there are standbys, the heads of ``failed`` have left their chains."""
        failover = self._join(kind, failed, reason, error)
        together = self.restarting_with([*failed, *self.failed])
        failover.moved.update(dict.fromkeys(together))
        for key, promotion in tuple(self._promotions.items()):
            promotion.subtasks = tuple(subtask for subtask in promotion.subtasks if subtask not in together)
            if not promotion.subtasks:
                del self._promotions[key]
        for subtask in together if self._config.partial else ():
            if not self._table[subtask].members:  # it gets a slot that has not refused it
                self._table.put_anywhere(subtask, failover.refused.get(subtask, ()), self._planned.barred)
        orphans = [str(subtask) for subtask in together if not self._table[subtask].members]
        if orphans:
            left = "slot for" if self._config.partial else "standby of"
            return self.fall_back(f"no {left} {', '.join(orphans)} is left")
        unsafe = self.why_unsafe(together)
        if unsafe is not None:
            return self.fall_back(unsafe)
        for subtask in together:
            self._table[subtask].put_best_first(self._table.complete)
        return self._begin(now_ms, together, fence=True)

    def hand_over(self, now_ms: int, moving: Sequence[SubtaskId], reason: str) -> list[FailoverEffect]:
        """Begin an attempt for ``moving``, whose new heads come first in their chains."""
        failover = self._join("handover", moving, reason, None)
        moved = self.restarting_with(moving)
        failover.moved.update(dict.fromkeys(moved))
        return self._begin(now_ms, moved, fence=False)

    def _join(self, kind: FailoverKind, failed: Sequence[SubtaskId], reason: str, error: object) -> _Failover:
        if self._failover is None:
            self._failovers += 1
            self._failover = _Failover(self._failovers, kind, reason, error)
        failover = self._failover
        failover.reason = reason
        if failover.kind == "handover":
            failover.kind = kind
        if failover.error is None:
            failover.error = error
        failover.subtasks.update(dict.fromkeys(sorted(failed)))
        return failover

    def _begin(self, now_ms: int, failed: tuple[SubtaskId, ...], fence: bool) -> list[FailoverEffect]:
        self._count += 1
        self.newest_generation = Generation(self.newest_generation + 1)
        for subtask in failed:
            self._table[subtask].generation = self.newest_generation
        until_ms = now_ms + self._config.registry_timeout_ms
        attempt = self._attempt = _Attempt(self._count, self.newest_generation, failed, until_ms)
        records = effects.WriteRecords(attempt.number, self._table.entries(failed))
        return [self._phase("detect"), records, *(self._fence(now_ms, attempt) if fence else ())]

    def fall_back(self, why: str) -> list[FailoverEffect]:
        """End the failover under way; the whole job must roll back."""
        failover = self._open()
        self.reset()
        subtasks = tuple(sorted(failover.subtasks))
        return [effects.FallBack(failover.kind, subtasks, f"{failover.reason}; {why}", failover.error)]

    def call_off(self) -> list[FailoverEffect]:
        """End a handover that no slot knows of. Its chains already have their former members again."""
        failover = self._open()
        self.reset()
        return [effects.FinishFailover(failover.number)]

    def _open(self) -> _Failover:
        invariant(self._failover is not None, "no failover is under way")
        assert self._failover is not None  # for the type checker only
        return self._failover

    def _phase(self, phase: Phase) -> effects.RecordFailoverPhase:
        failover = self._open()
        subtasks, moved = tuple(sorted(failover.subtasks)), tuple(sorted(failover.moved))
        return effects.RecordFailoverPhase(failover.number, phase, failover.kind, subtasks, failover.reason, moved)

    def awaits_records(self, number: int) -> bool:
        return self._attempt is not None and self._attempt.number == number and not self._attempt.is_written

    def written(self, now_ms: int, number: int) -> list[FailoverEffect]:
        """ZooKeeper has the records of attempt ``number``."""
        attempt = self._attempt
        if attempt is None or not self.awaits_records(number):
            return []
        attempt.is_written = True
        return self._promote_when_ready(now_ms) if attempt.fence_sent else self._fence(now_ms, attempt)

    def _fence(self, now_ms: int, attempt: _Attempt) -> list[FailoverEffect]:
        attempt.fence_sent = True
        attempt.awaited = [slot for slot in self._planned.slots if self._table.is_alive(slot)]
        attempt.fence_until_ms = now_ms + self._config.fence_timeout_ms
        targets = tuple((subtask, self._table[subtask].head) for subtask in attempt.failed)
        recipes = tuple(subtask for subtask in attempt.failed if subtask.vertex in self._topology.recipes)
        attempt.awaits_recipes = bool(recipes)
        fence = effects.FenceSlots(attempt.number, attempt.generation, targets, tuple(attempt.awaited), recipes)
        return [self._phase("fence"), fence]

    def fenced(
        self, now_ms: int, number: int, slot: int, received: tuple[tuple[ChannelId, int], ...]
    ) -> list[FailoverEffect]:
        attempt = self._attempt
        if attempt is None or attempt.number != number or slot not in attempt.awaited:
            return []
        attempt.awaited.remove(slot)
        attempt.received.update(received)
        return self._promote_when_ready(now_ms)

    def recipes_read(self, now_ms: int, number: int) -> list[FailoverEffect]:
        """The sinks of attempt ``number`` are fenced, and their recipes are read."""
        attempt = self._attempt
        if attempt is None or attempt.number != number:
            return []
        attempt.awaits_recipes = False
        return self._promote_when_ready(now_ms)

    def recipes_not_read(self, number: int, reason: str) -> list[FailoverEffect]:
        """The recipes of attempt ``number`` cannot be read now."""
        attempt = self._attempt
        if attempt is None or attempt.number != number or not attempt.awaits_recipes:
            return []
        return self.fall_back(f"the recipe of the output cannot be read: {reason}")

    def fencing(self, now_ms: int, number: int, slot: int) -> None:
        """A part of a long answer came from ``slot``: its timeout starts again."""
        attempt = self._attempt
        if attempt is not None and attempt.number == number and slot in attempt.awaited:
            attempt.fence_until_ms = now_ms + self._config.fence_timeout_ms

    def without(self, now_ms: int, lost: Collection[int]) -> list[FailoverEffect]:
        """Slots were ``lost`` that were the head of no subtask."""
        if self._attempt is None:
            return self._table.publish()
        self._attempt.awaited = [slot for slot in self._attempt.awaited if slot not in lost]
        return self._promote_when_ready(now_ms)

    def is_registry_late(self, now_ms: int) -> bool:
        attempt = self._attempt
        return attempt is not None and not attempt.is_written and now_ms >= attempt.registry_until_ms

    def late_to_fence(self, now_ms: int) -> list[int]:
        """The slots that have not fenced in time."""
        attempt = self._attempt
        return [] if attempt is None or now_ms < attempt.fence_until_ms else list(attempt.awaited)

    def _promote_when_ready(self, now_ms: int) -> list[FailoverEffect]:
        attempt = self._attempt
        if attempt is None or not attempt.is_written or attempt.awaited or attempt.awaits_recipes:
            return []
        line = self._table.line(attempt.failed, attempt.received, self._config.pending_versions)
        if isinstance(line, NoLine):
            return self.fall_back(f"no version to resume from: {line.reason}")
        self._attempt = None
        found: list[FailoverEffect] = [self._phase("promote"), self._phase("restore")]
        by_slot: dict[int, list[tuple[SubtaskId, int]]] = {}
        for subtask, version in line.items():
            self._table[subtask].begin(version, self._config.max_concurrent_checkpoints + 1)
            by_slot.setdefault(self._table[subtask].head, []).append((subtask, version))
        until_ms = now_ms + self._config.promote_timeout_ms
        for slot, promoted in sorted(by_slot.items()):
            self._promotions[attempt.number, slot] = _Promotion(tuple(subtask for subtask, _ in promoted), until_ms)
            found.append(effects.PromoteStandbys(attempt.number, attempt.generation, slot, tuple(promoted)))
        formed = self._table.publish() or [self._table.formation()]
        return [*found, *formed, effects.ReplaceInCheckpoints(tuple(line.items()))]

    def promoted(self, number: int, slot: int) -> list[FailoverEffect]:
        """The standbys of attempt ``number`` on ``slot`` run: when they are the last, the failover is done."""
        if self._promotions.pop((number, slot), None) is None or self._promotions or self._attempt is not None:
            return []
        done: list[FailoverEffect] = [self._phase("replay"), effects.FinishFailover(self._open().number)]
        self._failover = None
        return done

    def not_promoted(self, number: int, slot: int) -> tuple[SubtaskId, ...]:
        """The subtasks whose promotion on ``slot`` has failed; none when no promotion was ordered there."""
        promotion = self._promotions.pop((number, slot), None)
        if promotion is None:
            return ()
        for subtask in promotion.subtasks:
            self._open().refused.setdefault(subtask, []).append(slot)
        return promotion.subtasks

    def are_recipes_late(self, now_ms: int) -> bool:
        """Whether all slots have fenced, and the recipes were not read in time."""
        attempt = self._attempt
        return attempt is not None and attempt.awaits_recipes and now_ms >= attempt.fence_until_ms

    def late_promotions(self, now_ms: int) -> list[tuple[int, int]]:
        """Attempt and slot of each promotion that has not been answered in time."""
        return [key for key, promotion in self._promotions.items() if now_ms >= promotion.until_ms]
