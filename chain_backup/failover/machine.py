"""Local failover: when a slot or a subtask dies, its standbys go on, and nothing else stops.

The life of one attempt, for a failed set of subtasks::

                +--records ordered--> REGISTRY --written------------------+
    detected ---+                                                         +--both--> line --> promoting --> done
        ^       +--slots told-------> FENCE -----all living ones fenced---+                       |
        |                               |                                                         |
        +-- a further failure: the union of both sets --+---- of what is being promoted ----------+
                                                             (the rest goes on being promoted)

A handover takes the two one after the other: slots are told when the records are written.

*Partial* recovery (ABS, section 5) is the same without standbys. Nobody keeps what was sent, so the failed set is what
failed *and all its upstreams*, up to the sources: each goes back to a version in the durable store, in place where its
slot lives, else on another living slot. Whoever is not upstream goes on, and drops what it has had.

Rules:

- Nobody is promoted before the new generation and members are in ZooKeeper, nor before every living slot has fenced the
  old generation, which is when the line is known. Neither waits for the other: to refuse what is old is right whether
  or not there will be something new. Slots that have fenced while ZooKeeper is away just wait.
- An attempt takes one new number and one new generation for all of its failed set. What answers an older attempt has no
  effect, with one exception: what was told to begin stays told. When something else fails while standbys are being
  promoted, these go on, and their answers count; only what failed is in the new attempt.
- A head that fails leaves its chain, even when its slot lives: its slot joins again as the tail, when all is over.
  (Partial: it begins anew where it was, and elsewhere only when that does not work.)
- Partial: a set of subtasks that goes back contains every producer of each of its members. So nothing that was sent
  before is asked for, and the set needs no output log of anybody.
- Failed subtasks go back to the last complete version, or to a newer one that every head has in the durable store
  (then it is about to become complete, and must not be undone); with ``pending_versions`` also to a newer one that
  all new heads of a component have staged.
- What cannot be proved safe is left to rollback (``FallBack``): no member left, no line, determinants lost, the same
  subtask throwing twice without a complete checkpoint in between, a subtask that does not repeat what the one before it
  did, ZooKeeper refusing or silent.
- A handover is a failover that nothing makes necessary: only after a complete checkpoint, only when nothing else is
  going on, only what is provable. Until the first slot is told to fence, it can still be called off, and is, for any
  failure.
- Work is handed to wherever its plan says that it belongs (``plans``): back home after a failover, or elsewhere, when
  somebody asks for it. Nobody hands over to leave a chain shorter than it was: a head that is not planned any more
  waits until all planned members have caught up.
- Slots of which nothing is known at the start, *spare* ones, join as those do that come back; they are waited for by
  nobody. One that is to retire is drained like a host, and is no slot of the job any more when nothing is on it.

Invariants: generations and attempts rise and are never used twice; at most one slot is head of a subtask, and it is
alive; no line is older than what is trimmed or complete; every wait has a deadline of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import assert_never

from chain_backup.failover.chains import Chain, ChainTable
from chain_backup.failover.checks import EventCheck
from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import (
    FailoverEffect,
    FailoverKind,
    FallBack,
    FenceSlots,
    FinishFailover,
    PromoteStandbys,
    RecordFailoverPhase,
    ReplaceInCheckpoints,
    ReportMove,
    TrimLogs,
    WriteRecords,
)
from chain_backup.failover.events import (
    CheckpointAborted,
    CheckpointCompleted,
    FailoverEvent,
    HeadPersisted,
    HostDrainRequested,
    HostUndrainRequested,
    JobInterrupted,
    JobStarted,
    MoveRequested,
    RecordsRefused,
    RecordsWritten,
    ScaleRequested,
    SlotFenced,
    SlotFencedPart,
    SlotJoined,
    SlotLost,
    StandbyPromotionFailed,
    StandbysPromoted,
    SubtaskFailed,
    TimeAdvanced,
    VersionStaged,
)
from chain_backup.failover.placement import PlacementError, Strategy, spread
from chain_backup.failover.plans import Plans, Request
from chain_backup.failover.recovery_line import NoLine, provable
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.events import FailureTakenOn
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, SubtaskId, invariant
from flinkplus.protocol.vocabulary.phases import Phase

HANDOVER_PAUSE = 10
"""Complete checkpoints before a slot that could not take its work back is asked again."""

__all__ = ["HANDOVER_PAUSE", "FailoverConfig", "FailoverProtocol"]


@dataclass(slots=True)
class _Failover:
    """What is going on, from the first failure until all are at work."""

    number: int
    kind: FailoverKind
    reason: str
    error: object
    subtasks: dict[SubtaskId, None] = field(default_factory=dict)  # an ordered set
    moved: dict[SubtaskId, None] = field(default_factory=dict)  # another: these, and who begins anew because of them
    refused: dict[SubtaskId, list[int]] = field(default_factory=dict)
    """Partial: the slots on which a subtask could not begin."""


@dataclass(slots=True)
class _Attempt:
    """The failed set on its way to the line; each of it has its new head first in its chain."""

    number: int
    generation: Generation
    failed: tuple[SubtaskId, ...]
    registry_until_ms: int
    undo: dict[SubtaskId, tuple[int, ...]] | None
    """The members before, while this is a handover that can be called off."""
    written: bool = False
    fence_until_ms: int = 0
    awaited: list[int] = field(default_factory=list)
    """Slots that were told to fence and have not. None are told later than the records are written."""
    received: dict[ChannelId, int] = field(default_factory=dict)

    @property
    def deadlines_ms(self) -> list[int]:
        """Of what is waited for."""
        registry = [] if self.written else [self.registry_until_ms]
        return [*registry, self.fence_until_ms] if self.awaited else registry


@dataclass(slots=True)
class _Promotion:
    """Standbys on one slot that were told to begin."""

    subtasks: tuple[SubtaskId, ...]
    until_ms: int


class FailoverProtocol:
    """The machine of one job, over all its deployments. Raises ``PlacementError`` when ``strategy`` is no good."""

    def __init__(
        self, topology: Topology, slots: int, config: FailoverConfig | None = None, strategy: Strategy = spread
    ) -> None:
        invariant(slots >= 1, "a job needs at least one slot", slots=slots)
        self._topology = topology
        self._own_slots = tuple(range(slots))
        self._config = config or FailoverConfig()
        self._plans = Plans(topology, self._own_slots, self._config.replicas, strategy)
        self._check = EventCheck(topology, self._own_slots)
        self._running = False
        self._table = self._no_chains()
        self._newest_generation = Generation(0)
        self._attempts = 0
        self._failovers = 0
        self._threw: set[SubtaskId] = set()  # since the last complete checkpoint; never iterated
        self._not_home: dict[int, int] = {}  # slots that could not take their work back -> checkpoints to wait
        self._in_step: set[int] = set()  # home slots that may have their work back; never iterated
        self._failover: _Failover | None = None
        self._attempt: _Attempt | None = None
        self._promotions: dict[tuple[int, int], _Promotion] = {}  # (attempt, slot)

    def _no_chains(self) -> ChainTable:
        return ChainTable(self._topology, not self._config.partial)

    # ------------------------------------------------------------------------------------------------- what is so

    @property
    def heads(self) -> Mapping[SubtaskId, int]:
        """Where each subtask is at work, or will be when the failover under way is over; empty while no job runs.
        What a handover moves is where it was, as long as nobody has been told."""
        before = self._untold
        return {
            chain.subtask: before[chain.subtask][0] if chain.subtask in before else chain.head for chain in self._table
        }

    def begins_on(self, hosts: Mapping[int, str]) -> Mapping[SubtaskId, int]:
        """Where the next deployment is to put each subtask, among the slots that are on ``hosts``: on no drained host
        as long as others have slots. Raises ``PlacementError``.
        """
        self._plans.hosted(hosts)
        return {subtask: self._plans.begins_on(subtask, hosts) for subtask in self._topology.subtasks}

    @property
    def generations(self) -> Mapping[SubtaskId, Generation]:
        """The newest generation of each subtask: the one that slots are told to accept."""
        before = self._untold
        return {chain.subtask: chain.working if chain.subtask in before else chain.generation for chain in self._table}

    @property
    def _untold(self) -> Mapping[SubtaskId, tuple[int, ...]]:
        """What a handover moves that nobody has been told of yet, with its members before."""
        return {} if self._attempt is None or self._attempt.undo is None else self._attempt.undo

    @property
    def chains(self) -> Mapping[SubtaskId, tuple[int, ...]]:
        """The members of each chain, head first."""
        return {chain.subtask: chain.members for chain in self._table}

    @property
    def copies(self) -> int:
        """How many members a chain ought to have, the head included; 0 while no job runs."""
        return max((len(chain.planned) for chain in self._table), default=0)

    @property
    def missing(self) -> int:
        """How many standbys there should be and are not, or are not in step; 0 while no job runs."""
        in_step = [(chain, len(chain.members) - len(chain.catching_up)) for chain in self._table]
        return sum(max(0, len(chain.planned) - count) for chain, count in in_step)

    @property
    def drained_hosts(self) -> tuple[str, ...]:
        """The hosts that get no work, sorted."""
        return self._plans.drained_hosts

    @property
    def holdings(self) -> list[tuple[SubtaskId, int, int, list[tuple[int, int | None, bool]]]]:
        """Of each chain: its subtask and generation, the newest version of its head, and for each member, head first:
        the slot, the newest version that it has (``None``: none), and whether it is catching up.
        """
        return [
            (
                chain.subtask,
                int(chain.generation),
                max(chain.persisted),
                [(slot, chain.newest_held(slot), slot in chain.catching_up) for slot in chain.members],
            )
            for chain in self._table
        ]

    def versions(self, subtask: SubtaskId) -> tuple[int, ...]:
        """Those that ``subtask`` may have to go back to; none while no job runs."""
        return tuple(self._table[subtask].persisted) if self._running else ()

    def all_have(self, version: int) -> bool:
        """Whether every member of every chain (that counts) has ``version`` or a newer one."""
        return self._running and all(chain.stable >= version for chain in self._table)

    @property
    def newest_generation(self) -> Generation:
        """No number up to this one may be used again."""
        return self._newest_generation

    @property
    def trimmed(self) -> int:
        """The newest version whose ``TrimLogs`` was ordered, or from which the job started."""
        return self._table.trimmed

    def is_alive(self, slot: int) -> bool:
        """Whether a slot is there, and may be in chains."""
        return self._running and self._table.is_alive(slot)

    @property
    def active(self) -> bool:
        """Whether a failover is under way."""
        return self._failover is not None

    @property
    def recovering(self) -> bool:
        """Whether a failover is under way that something has failed in, so not a handover."""
        return self._failover is not None and self._failover.kind != "handover"

    def is_current(self, subtask: SubtaskId, generation: Generation) -> bool:
        """Whether a snapshot (or a failure) that ``subtask`` reports in ``generation`` counts. Checkpoints must take
        acknowledgements by the same rule, else one is complete with a history that was left."""
        return self._running and self._table[subtask].working == generation

    def next_deadline_ms(self) -> int | None:
        """When to step with ``TimeAdvanced`` if nothing happens before; never a time that has been stepped over."""
        deadlines = [promotion.until_ms for promotion in self._promotions.values()]
        if self._attempt is not None:
            deadlines += self._attempt.deadlines_ms
        return min(deadlines, default=None)

    # ------------------------------------------------------------------------------------------------------- step

    def step(self, now_ms: int, event: FailoverEvent) -> list[FailoverEffect]:
        """What to do about ``event``, and about all that is due at ``now_ms``.

        Raises ``PeerProtocolError`` or ``InvariantViolation``, and changes nothing, when the event cannot be.
        """
        self._check(event, self._newest_generation, self._running)
        if isinstance(event, JobStarted):
            return self._on_started(event)
        if not self._running:
            return []
        effects = self._handle(now_ms, event)
        effects += self._advance(now_ms)
        if self._running and self._failover is None:
            effects += self._plans.progress(self._table)
            self._table.keep(self._plans.slots)
        return effects

    @property
    def _slots(self) -> tuple[int, ...]:
        """All that there are, ascending, the spare ones that have joined last."""
        return self._plans.slots

    def _handle(self, now_ms: int, event: FailoverEvent) -> list[FailoverEffect]:
        match event:
            case TimeAdvanced() | JobStarted():
                return []
            case JobInterrupted():
                return self._stop("the job was interrupted")
            case SlotLost(slot, _, reason):
                return self._on_slots_lost(now_ms, [slot], f"slot {slot}: {reason}")
            case SlotJoined(slot, host):
                return self._on_joined(slot, host)
            case MoveRequested() | HostDrainRequested() | HostUndrainRequested() | ScaleRequested():
                return self._on_request(event)
            case SubtaskFailed():
                return self._on_subtask_failed(now_ms, event)
            case HeadPersisted() | VersionStaged() | CheckpointCompleted() | CheckpointAborted():
                return self._on_progress(now_ms, event)
            case RecordsWritten(attempt):
                return self._on_written(now_ms, attempt)
            case RecordsRefused(attempt, reason):
                return self._on_refused(attempt, reason)
            case SlotFenced(attempt, slot, received):
                return self._on_fenced(now_ms, attempt, slot, received)
            case SlotFencedPart(attempt, slot):
                return self._on_fencing(now_ms, attempt, slot)
            case StandbysPromoted(attempt, slot):
                return self._on_promoted(attempt, slot)
            case StandbyPromotionFailed(attempt, slot, subtask, reason):
                why = f"{subtask} not promoted on slot {slot}: {reason}"
                return self._on_not_promoted(now_ms, [(attempt, slot)], why)
            case _:
                assert_never(event)

    # ------------------------------------------------------------------------------------------- the job's life

    def _on_started(self, event: JobStarted) -> list[FailoverEffect]:
        self._plans.hosted(dict(event.hosts))
        self._stop("")
        self._running = True
        self._newest_generation = event.generation
        cursors, heads = dict(event.cursors), dict(event.heads)
        self._table.form(self._plans.of, self._own_slots, event.generation, event.version, cursors, heads)
        return self._tell()

    def _stop(self, reason: str) -> list[FailoverEffect]:
        """Forget the deployment, not the numbers that were used, nor which hosts are drained."""
        self._running = False
        self._table = self._no_chains()
        self._failover = self._attempt = None
        self._promotions = {}
        self._threw.clear()
        self._not_home.clear()
        self._in_step.clear()
        return [*self._plans.interrupted(reason)]

    def _tell(self) -> list[FailoverEffect]:
        """Write down and broadcast the members that changed."""
        records = self._table.unwritten()
        return [WriteRecords(None, records), self._table.formation()] if records else []

    def _on_progress(
        self, now_ms: int, event: HeadPersisted | VersionStaged | CheckpointCompleted | CheckpointAborted
    ) -> list[FailoverEffect]:
        match event:
            case HeadPersisted(subtask, generation, version, cursors):
                if self.is_current(subtask, generation):
                    self._table.persist(subtask, version, cursors)
                return []
            case CheckpointAborted(version):
                self._table.abort(version)
                return []
            case VersionStaged(subtask, slot, generation, version):
                if not self.is_current(subtask, generation) or slot not in self._table[subtask].members:
                    return []
                self._table.stage(subtask, slot, version)
            case CheckpointCompleted(version):
                before = self._table.complete
                if not self._table.finish(version, self._config.max_versions_behind):
                    return []
                self._threw.clear()
                self._not_home = {slot: left - 1 for slot, left in self._not_home.items() if left > 1}
                fit = [slot for slot in self._slots if slot not in self._not_home]
                self._in_step = {slot for slot in fit if self._has_at_home(slot, before)}
            case _:
                assert_never(event)
        settled = self._trim() if self._failover is not None else self._settle()
        return settled + self._hand_back(now_ms)

    def _trim(self) -> list[FailoverEffect]:
        """Let go of what no line can need. Not during a failover: its line may be any version since the last trim."""
        if self._failover is not None and not self._may_call_off:
            return []
        trimmed = self._table.trim()
        return [] if trimmed is None else [TrimLogs(trimmed)]

    # ------------------------------------------------------------------------------------- slots come and go

    def _on_slots_lost(self, now_ms: int, slots: list[int], reason: str) -> list[FailoverEffect]:
        lost = [slot for slot in slots if self._table.is_alive(slot)]
        if not lost:
            return []
        effects = self._call_off() + self._replanned(self._plans.lost(lost))
        failed = self._table.lose(lost)
        if failed:
            return effects + self._fail(now_ms, "slot", failed, reason)
        if self._failover is None:
            return effects + self._settle()
        if self._attempt is None:
            return effects + self._tell()
        self._attempt.awaited = [slot for slot in self._attempt.awaited if slot not in lost]
        return effects + self._promote_when_ready(now_ms)

    def _on_joined(self, slot: int, host: str) -> list[FailoverEffect]:
        if self._table.is_alive(slot) or self._plans.is_retired(slot):
            return []
        with contextlib.suppress(PlacementError):  # the user's own strategy: the next deployment says so
            self._plans.hosted({slot: host})
        self._table.replan(self._plans.of)
        self._table.join(slot)
        self._not_home.pop(slot, None)
        return [] if self._failover is not None else self._settle()

    def _settle(self) -> list[FailoverEffect]:
        """Nothing is under way: back to full strength, and to the plans."""
        self._table.replenish()
        self._table.thin_out(self._plans.hasty)
        return self._tell() + self._trim()

    # ------------------------------------------------------------------------------------------------- requests

    def _on_request(self, event: Request) -> list[FailoverEffect]:
        if not self._config.handover:
            why = "work cannot be handed over without a loss under this guarantee"
            return [ReportMove(event.request, "refused", why)]
        reports = self._plans.request(event, self._table)
        if any(report.status == "refused" for report in reports):
            return [*reports]
        effects = self._call_off() + self._replanned(reports)
        return effects if self._failover is not None else effects + self._settle()

    def _replanned(self, reports: list[ReportMove]) -> list[FailoverEffect]:
        self._table.replan(self._plans.of)
        return [*reports]

    # ------------------------------------------------------------------------------------------------ failures

    def _on_subtask_failed(self, now_ms: int, event: SubtaskFailed) -> list[FailoverEffect]:
        subtask, reason = event.subtask, f"{event.subtask}: {event.reason}"
        if not self.is_current(subtask, event.generation):
            return []
        effects = self._call_off()
        if not event.deterministic:
            if not self.recovering:  # else it is part of the recovery that ends here
                effects.append(FailureTakenOn("exception", event.generation, False, reason, event.error))
            return [*effects, *self._fall_back("exception", (subtask,), reason, event.error)]
        if self._attempt is not None and subtask in self._attempt.failed:
            self._threw.add(subtask)
            return effects
        if subtask in self._threw:
            again = f"{reason} (again, without a complete checkpoint in between: the same input fails each successor)"
            return [*effects, *self._fall_back("exception", (subtask,), again, event.error)]
        self._threw.add(subtask)
        taken_on = FailureTakenOn("exception", event.generation, self.recovering, reason, event.error)
        if not self._config.partial:
            self._table.drop_head(subtask)
        return [*effects, taken_on, *self._fail(now_ms, "exception", [subtask], reason, event.error)]

    def _fail(
        self, now_ms: int, kind: FailoverKind, failed: list[SubtaskId], reason: str, error: object = None
    ) -> list[FailoverEffect]:
        """Begin an attempt for ``failed``, whose heads have left their chains, and for what is not promoted yet."""
        failover = self._join_failover(kind, reason, error)
        failover.subtasks.update(dict.fromkeys(sorted(failed)))
        if self._attempt is not None:
            failed = [*failed, *self._attempt.failed]
        together = self._moved_with(failed)
        failover.moved.update(dict.fromkeys(together))
        for key, promotion in tuple(self._promotions.items()):
            promotion.subtasks = tuple(subtask for subtask in promotion.subtasks if subtask not in together)
            if not promotion.subtasks:
                del self._promotions[key]
        if self._config.partial:
            self._find_slots(failover, together)
        orphans = [str(subtask) for subtask in together if not self._table[subtask].members]
        if orphans:
            left = "slot for" if self._config.partial else "standby of"
            return self._give_up(f"{reason}; no {left} {', '.join(orphans)} is left")
        unsafe = self._unsafe(together)
        if unsafe is not None:
            return self._give_up(f"{reason}; {unsafe}")
        for subtask in together:
            self._table[subtask].put_best_first(self._table.complete)
        return self._attempt_for(now_ms, together)

    def _moved_with(self, failed: Sequence[SubtaskId]) -> tuple[SubtaskId, ...]:
        """Who begins anew when ``failed`` do, themselves included; sorted."""
        return self._topology.with_upstreams(failed) if self._config.partial else tuple(sorted(set(failed)))

    def _find_slots(self, failover: _Failover, moved: tuple[SubtaskId, ...]) -> None:
        """Whoever is nowhere any more gets a slot on which it was not refused."""
        for subtask in moved:
            if not self._table[subtask].members:
                self._table.put_anywhere(subtask, failover.refused.get(subtask, ()), self._plans.barred)

    def _unsafe(self, together: tuple[SubtaskId, ...]) -> str | None:
        """Why these cannot be moved together, if they cannot."""
        return provable(together, self._topology, self._config.sharing_depth, self._table.unsettled(together))

    def _attempt_for(
        self, now_ms: int, failed: tuple[SubtaskId, ...], undo: dict[SubtaskId, tuple[int, ...]] | None = None
    ) -> list[FailoverEffect]:
        self._attempts += 1
        self._newest_generation = Generation(self._newest_generation + 1)
        for subtask in failed:
            self._table[subtask].generation = self._newest_generation
        until_ms = now_ms + self._config.registry_timeout_ms
        attempt = self._attempt = _Attempt(self._attempts, self._newest_generation, failed, until_ms, undo)
        records = WriteRecords(attempt.number, self._table.written(failed))
        fence = [] if self._may_call_off else self._fence(now_ms, attempt)
        return [self._phase("detect"), records, *fence]

    def _join_failover(self, kind: FailoverKind, reason: str, error: object) -> _Failover:
        if self._failover is None:
            self._failovers += 1
            self._failover = _Failover(self._failovers, kind, reason, error)
            return self._failover
        self._failover.reason = reason
        if self._failover.kind == "handover":
            self._failover.kind = kind
        if self._failover.error is None:
            self._failover.error = error
        return self._failover

    def _give_up(self, reason: str) -> list[FailoverEffect]:
        failover = self._open()
        return self._fall_back(failover.kind, tuple(sorted(failover.subtasks)), reason, failover.error)

    def _fall_back(
        self, kind: FailoverKind, subtasks: tuple[SubtaskId, ...], reason: str, error: object
    ) -> list[FailoverEffect]:
        return [*self._stop(reason), FallBack(kind, subtasks, reason, error)]

    def _open(self) -> _Failover:
        invariant(self._failover is not None, "no failover is under way")
        assert self._failover is not None  # for the type checker only
        return self._failover

    def _phase(self, phase: Phase) -> RecordFailoverPhase:
        failover = self._open()
        subtasks, moved = tuple(sorted(failover.subtasks)), tuple(sorted(failover.moved))
        return RecordFailoverPhase(failover.number, phase, failover.kind, subtasks, failover.reason, moved)

    # ---------------------------------------------------------------------------------------- registry and fence

    def _on_written(self, now_ms: int, number: int) -> list[FailoverEffect]:
        attempt = self._attempt
        if attempt is None or attempt.number != number or attempt.written:
            return []
        attempt.written = True
        if self._may_call_off:
            attempt.undo = None
            return self._fence(now_ms, attempt)
        return self._promote_when_ready(now_ms)

    def _fence(self, now_ms: int, attempt: _Attempt) -> list[FailoverEffect]:
        attempt.awaited = [slot for slot in self._slots if self._table.is_alive(slot)]
        attempt.fence_until_ms = now_ms + self._config.fence_timeout_ms
        targets = tuple((subtask, self._table[subtask].head) for subtask in attempt.failed)
        fence = FenceSlots(attempt.number, attempt.generation, targets, tuple(attempt.awaited))
        return [self._phase("fence"), fence]

    def _on_refused(self, number: int, reason: str) -> list[FailoverEffect]:
        attempt = self._attempt
        if attempt is None or attempt.number != number or attempt.written:
            return []
        return self._without_registry(f"ZooKeeper refused the new chains: {reason}")

    def _without_registry(self, reason: str) -> list[FailoverEffect]:
        """A handover is called off; a failover cannot go on."""
        if self._may_call_off:
            return self._call_off() + self._settle()
        return self._give_up(f"{self._open().reason}; {reason}")

    def _on_fenced(
        self, now_ms: int, number: int, slot: int, received: tuple[tuple[ChannelId, int], ...]
    ) -> list[FailoverEffect]:
        attempt = self._attempt
        if attempt is None or attempt.number != number or slot not in attempt.awaited:
            return []
        attempt.awaited.remove(slot)
        attempt.received.update(received)
        return self._promote_when_ready(now_ms)

    def _on_fencing(self, now_ms: int, number: int, slot: int) -> list[FailoverEffect]:
        """A slot whose answer is long is not late as long as parts of it come."""
        attempt = self._attempt
        if attempt is not None and attempt.number == number and slot in attempt.awaited:
            attempt.fence_until_ms = now_ms + self._config.fence_timeout_ms
        return []

    def _promote_when_ready(self, now_ms: int) -> list[FailoverEffect]:
        attempt = self._attempt
        if attempt is None or not attempt.written or attempt.awaited:
            return []
        line = self._table.line(attempt.failed, attempt.received, self._config.pending_versions)
        if isinstance(line, NoLine):
            return self._give_up(f"{self._open().reason}; there is no version to go on from: {line.reason}")
        self._attempt = None
        effects: list[FailoverEffect] = [self._phase("promote"), self._phase("restore")]
        by_slot: dict[int, list[tuple[SubtaskId, int]]] = {}
        for subtask, version in line.items():
            self._table[subtask].begin(version, self._config.max_concurrent_checkpoints + 1)
            by_slot.setdefault(self._table[subtask].head, []).append((subtask, version))
        until_ms = now_ms + self._config.promote_timeout_ms
        for slot, told in sorted(by_slot.items()):
            self._promotions[attempt.number, slot] = _Promotion(tuple(subtask for subtask, _ in told), until_ms)
            effects.append(PromoteStandbys(attempt.number, attempt.generation, slot, tuple(told)))
        formed = self._tell() or [self._table.formation()]
        return [*effects, *formed, ReplaceInCheckpoints(tuple(line.items()))]

    # -------------------------------------------------------------------------------------------------- promotion

    def _on_promoted(self, number: int, slot: int) -> list[FailoverEffect]:
        if self._promotions.pop((number, slot), None) is None or self._promotions or self._attempt is not None:
            return []
        effects: list[FailoverEffect] = [self._phase("replay"), FinishFailover(self._open().number)]
        self._failover = None
        return effects + self._settle()

    def _on_not_promoted(self, now_ms: int, keys: list[tuple[int, int]], reason: str) -> list[FailoverEffect]:
        failed: list[SubtaskId] = []
        for key in keys:
            promotion = self._promotions.pop(key, None)
            if promotion is not None:
                self._not_home[key[1]] = HANDOVER_PAUSE
                self._in_step.discard(key[1])
                failed += promotion.subtasks
                for subtask in promotion.subtasks:
                    self._open().refused.setdefault(subtask, []).append(key[1])
        if not failed:
            return []
        reports = [report for _, slot in keys for report in self._plans.refused(slot, failed, reason)]
        effects = self._replanned(reports)
        for subtask in failed:
            self._table.drop_head(subtask)
        return effects + self._fail(now_ms, self._open().kind, failed, reason)

    # --------------------------------------------------------------------------------------------------- handover

    def _hand_back(self, now_ms: int) -> list[FailoverEffect]:
        """Begin to move the work of one slot back home: once for each complete checkpoint, and soon after it, so that
        little is repeated. So a slot must have been in step when it became complete, not come to it long after."""
        if self._failover is not None:
            return []
        for slot in self._slots:
            if slot in self._in_step and self._has_at_home(slot, self._table.complete) and self._may_leave(slot):
                return self._hand_over(now_ms, slot)
        return []

    def _has_at_home(self, slot: int, version: int) -> bool:
        """Whether ``slot`` has ``version`` or newer of all that should be at work there and is not."""
        away = self._away(slot)
        if self._config.partial:  # there, as anywhere, it is in the durable store
            return bool(away) and self._table.is_alive(slot)
        return bool(away) and all(chain.newest_staged(slot) >= version for chain in away)

    def _may_leave(self, slot: int) -> bool:
        """Whether no chain whose head goes to ``slot`` gets shorter for good by that."""
        hasty = self._plans.hasty
        leaving = [chain for chain in self._away(slot) if chain.head not in chain.planned]
        return all(self._table.is_full(chain, chain.head in hasty) for chain in leaving)

    def _away(self, slot: int) -> list[Chain]:
        away = [chain for chain in self._table if self._goal(chain) == slot != chain.head]
        return [chain for chain in away if self._config.handover and self._is_due(chain)]

    def _goal(self, chain: Chain) -> int:
        """Where the head of ``chain`` goes: home; when it must leave, and its home is away, where another member is."""
        if chain.head in chain.planned:
            return chain.home
        return next((slot for slot in chain.planned if self._table.is_alive(slot)), chain.home)

    def _is_due(self, chain: Chain) -> bool:
        """Whether the head of ``chain`` is to go home."""
        return self._config.failback or self._plans.is_moving(chain.subtask) or chain.head not in chain.planned

    def _hand_over(self, now_ms: int, slot: int) -> list[FailoverEffect]:
        """Move as many as can be moved at once without doubt; the others follow after the next checkpoints."""
        self._in_step.clear()
        moving: list[SubtaskId] = []
        for chain in self._away(slot):
            if self._unsafe(self._moved_with([*moving, chain.subtask])) is None:
                moving.append(chain.subtask)
        if not moving:
            return []
        moved = self._moved_with(moving)
        undo = {subtask: self._table[subtask].members for subtask in moved}
        reason = self._plans.reason(self._table[moving[0]])
        failover = self._join_failover("handover", reason, None)
        failover.subtasks.update(dict.fromkeys(moving))
        failover.moved.update(dict.fromkeys(moved))
        for subtask in moving:
            self._table.drop_head(subtask)
            self._table[subtask].put_first(slot)
        return self._attempt_for(now_ms, moved, undo)

    @property
    def _may_call_off(self) -> bool:
        return self._attempt is not None and self._attempt.undo is not None

    def _call_off(self) -> list[FailoverEffect]:
        """Nobody has been told of the handover under way, if that is what is under way: the old heads just go on."""
        attempt = self._attempt
        if attempt is None or attempt.undo is None:
            return []
        for subtask, before in attempt.undo.items():
            self._table.restore(subtask, before)
        effects: list[FailoverEffect] = [FinishFailover(self._open().number)]
        self._attempt = self._failover = None
        return effects

    # ------------------------------------------------------------------------------------------------ what is due

    def _advance(self, now_ms: int) -> list[FailoverEffect]:
        effects: list[FailoverEffect] = []
        attempt = self._attempt
        if attempt is not None and not attempt.written and now_ms >= attempt.registry_until_ms:
            limit_ms = self._config.registry_timeout_ms
            effects += self._without_registry(f"ZooKeeper did not take the new chains within {limit_ms} ms")
        elif attempt is not None and attempt.awaited and now_ms >= attempt.fence_until_ms:
            effects += self._evict(now_ms, attempt)
        keys = [key for key, promotion in self._promotions.items() if now_ms >= promotion.until_ms]
        if keys:
            where = ", ".join(str(slot) for _, slot in keys)
            reason = f"standbys not promoted on slots {where} within {self._config.promote_timeout_ms} ms"
            effects += self._on_not_promoted(now_ms, keys, reason)
        return effects

    def _evict(self, now_ms: int, attempt: _Attempt) -> list[FailoverEffect]:
        late = list(attempt.awaited)
        reason = f"not fenced within {self._config.fence_timeout_ms} ms"
        where = ", ".join(str(slot) for slot in late)
        evictions: list[FailoverEffect] = [EvictSlot(slot, None, reason) for slot in late]
        return evictions + self._on_slots_lost(now_ms, late, f"slots {where}: {reason}")
