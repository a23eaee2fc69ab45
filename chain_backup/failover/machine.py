"""Local failover: when a slot or a subtask dies, its standbys take over, and no other subtask stops.

``FailoverProtocol`` takes the events and passes each to the part that decides about it:

- ``attempts``: the failover under way, from the failed set to standbys that run;
- ``handover``: planned moves;
- ``chains``: members that join and leave, versions, trimming;
- ``planned_members``: where the members ought to be, and requests.

*Partial* recovery (ABS, section 5) is the same without standbys. No output logs are kept, so the failed set is what
failed *and all its upstreams*, up to the sources: each goes back to a version in the durable store, in place where its
slot lives, otherwise on another living slot. Other subtasks continue, and drop what they had received from the set.

Rules:

- A head that fails leaves its chain, even when its slot lives: the slot joins again as the tail when the failover is
  done. (Partial: it restarts where it was, and elsewhere only when that does not work.)
- A failure first calls off the handover under way, if no slot knows of it.
- What cannot be proved safe is left to rollback (``FallBack``): the same subtask throws twice without a complete
  checkpoint in between, a subtask does not repeat what its predecessor did, or ``attempts`` refuses.

Invariants: at most one slot is head of a subtask, and it is alive; no line is older than what is trimmed or complete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from typing_extensions import assert_never

from chain_backup.failover import events
from chain_backup.failover.attempts import Attempts
from chain_backup.failover.chains import ChainTable
from chain_backup.failover.checks import EventCheck
from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import FailoverEffect, FallBack, ReportMove
from chain_backup.failover.handover import Handover
from chain_backup.failover.placement import PlacementError, Strategy, spread
from chain_backup.failover.planned_members import PlannedMembers, Request
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.events import FailureTakenOn
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId, invariant


class FailoverProtocol:
    """The machine of one job, over all its deployments. Raises ``PlacementError`` when ``strategy`` gives no chain."""

    def __init__(
        self, topology: Topology, slots: int, config: FailoverConfig | None = None, strategy: Strategy = spread
    ) -> None:
        invariant(slots >= 1, "a job needs at least one slot", slots=slots)
        self._config = config or FailoverConfig()
        planned = PlannedMembers(topology, tuple(range(slots)), self._config.replicas, strategy)
        self._check = EventCheck(topology, planned.own)
        self._build(topology, planned)
        self._running = False
        self._threw: set[SubtaskId] = set()  # since the last complete checkpoint; never iterated

    def _build(self, topology: Topology, planned: PlannedMembers) -> None:
        self._topology, self._planned = topology, planned
        self._table = ChainTable(topology, not self._config.partial)
        self._attempts = Attempts(topology, self._config, self._table, planned)
        self._handover = Handover(self._config, self._table, planned, self._attempts)

    # ------------------------------------------------------------------------------------------------- state

    @property
    def is_partial(self) -> bool:
        """Whether failed subtasks return to a checkpoint, without standbys."""
        return self._config.partial

    @property
    def heads(self) -> Mapping[SubtaskId, int]:
        """Where each subtask runs, or will when the failover under way is done; empty while no job runs. A handover
        counts from the moment that a slot knows of it."""
        former = self._handover.former_members
        return {chain.subtask: former.get(chain.subtask, chain.members)[0] for chain in self._table}

    def deployment_slots(self, hosts: Mapping[int, str]) -> Mapping[SubtaskId, int]:
        """The slot among ``hosts`` (slot -> host) on which the next deployment puts each subtask: on a drained host
        only if all are drained. Raises ``PlacementError``."""
        self._planned.update_hosts(hosts)
        return {subtask: self._planned.deployment_slot(subtask, hosts) for subtask in self._topology.subtasks}

    def chains_on(
        self, parallelism: int, slots: tuple[int, ...], hosts: Mapping[int, str] | None = None
    ) -> Mapping[SubtaskId, tuple[int, ...]]:
        """The chains that the strategy gives that many subtasks on ``slots``, each with its home first. ``hosts``: of
        slots that are new (slot -> host). Raises ``PlacementError``."""
        topology = replace(self._topology, parallelism=parallelism)
        planned = self._planned.replaced(topology, slots)
        planned.update_hosts(hosts or {})
        return {subtask: planned.of(subtask) for subtask in topology.subtasks}

    @property
    def generations(self) -> Mapping[SubtaskId, Generation]:
        """The newest generation of each subtask that slots should accept."""
        former = self._handover.former_members
        return {chain.subtask: chain.working if chain.subtask in former else chain.generation for chain in self._table}

    @property
    def chains(self) -> Mapping[SubtaskId, tuple[int, ...]]:
        """The members of each chain, head first."""
        return {chain.subtask: chain.members for chain in self._table}

    @property
    def copies(self) -> int:
        """The planned number of members of a chain, the head included; 0 while no job runs."""
        return max((len(chain.planned) for chain in self._table), default=0)

    @property
    def missing(self) -> int:
        """How many planned standbys are missing or behind; 0 while no job runs, and in partial recovery."""
        if self._config.partial:
            return 0
        caught_up = [(chain, len(chain.members) - len(chain.catching_up)) for chain in self._table]
        return sum(max(0, len(chain.planned) - count) for chain, count in caught_up)

    @property
    def drained_hosts(self) -> tuple[str, ...]:
        """The hosts that get no work, sorted."""
        return self._planned.drained_hosts

    @property
    def holdings(self) -> list[tuple[SubtaskId, int, int, list[tuple[int, int | None, bool]]]]:
        """For each chain: subtask, generation, newest version of the head, and for each member, head first: slot,
        newest version that it has (``None``: none), whether it is catching up."""
        found = []
        for chain in self._table:
            held = [(slot, chain.newest_held(slot), slot in chain.catching_up) for slot in chain.members]
            found.append((chain.subtask, int(chain.generation), max(chain.persisted), held))
        return found

    def versions(self, subtask: SubtaskId) -> tuple[int, ...]:
        """The versions that ``subtask`` may have to go back to; empty while no job runs."""
        return tuple(self._table[subtask].persisted) if self._running else ()

    def all_have(self, version: int) -> bool:
        """Whether every head, and every standby that counts, has ``version`` or a newer one."""
        return self._running and all(chain.stable >= version for chain in self._table)

    @property
    def newest_generation(self) -> Generation:
        """No number up to this one may be used again."""
        return self._attempts.newest_generation

    def is_alive(self, slot: int) -> bool:
        """Whether a slot lives, and may be in chains."""
        return self._running and self._table.is_alive(slot)

    @property
    def active(self) -> bool:
        """Whether a failover is under way."""
        return self._attempts.active

    @property
    def recovering(self) -> bool:
        """Whether a failover is under way in which something failed, so not a handover."""
        return self._attempts.kind not in (None, "handover")

    def is_current(self, subtask: SubtaskId, generation: Generation) -> bool:
        """Whether a snapshot or a failure of ``subtask`` in ``generation`` counts. The driver of checkpoints must drop
        acknowledgements by this rule: otherwise a checkpoint may complete with the snapshot of a replaced subtask."""
        return self._running and self._table[subtask].working == generation

    def next_deadline_ms(self) -> int | None:
        """When to step with ``TimeAdvanced`` unless another event comes first; never in the past of the last step."""
        return self._attempts.next_deadline_ms()

    # ------------------------------------------------------------------------------------------------------- step

    def step(self, now_ms: int, event: events.FailoverEvent) -> list[FailoverEffect]:
        """The effects of ``event``, and of all that is due at ``now_ms``. Raises ``PeerProtocolError`` or
        ``InvariantViolation``, changing nothing, when the event is impossible."""
        if self._check.is_stale(event):
            return []
        self._check(event, self.newest_generation, self._running)
        if isinstance(event, events.JobStarted):
            return self._on_started(event)
        if isinstance(event, events.SubtasksChanged):
            self._replace(event)
            return []
        if not self._running:
            return []
        effects = self._after_fallback(self._handle(now_ms, event))
        if self._running:
            effects += self._after_fallback(self._advance(now_ms))
        if self._running and not self.active:
            effects += self._planned.progress(self._table)
            self._table.keep(self._planned.slots)
        return effects

    def _after_fallback(self, effects: list[FailoverEffect]) -> list[FailoverEffect]:
        """``effects``; when the last is a fallback, the deployment ends before it."""
        if effects and isinstance(effects[-1], FallBack):
            return [*effects[:-1], *self._stop(effects[-1].reason), effects[-1]]
        return effects

    def _handle(self, now_ms: int, event: events.FailoverEvent) -> list[FailoverEffect]:
        match event:
            case events.TimeAdvanced() | events.JobStarted() | events.SubtasksChanged():
                return []
            case events.JobInterrupted():
                return self._stop("the job was interrupted")
            case events.SlotLost(slot, _, reason):
                return self._on_slots_lost(now_ms, [slot], f"slot {slot}: {reason}")
            case events.SlotJoined(slot, host):
                return self._on_joined(slot, host)
            case (
                events.MoveRequested()
                | events.HostDrainRequested()
                | events.HostUndrainRequested()
                | events.ScaleRequested()
            ):
                return self._on_request(event)
            case events.SubtaskFailed():
                return self._on_subtask_failed(now_ms, event)
            case events.HeadPersisted(subtask, generation, version, cursors):
                if self.is_current(subtask, generation):
                    self._table.persist(subtask, version, cursors)
                return []
            case events.VersionStaged():
                return self._on_staged(now_ms, event)
            case events.CheckpointCompleted(version):
                return self._on_completed(now_ms, version)
            case events.CheckpointAborted(version):
                self._table.abort(version)
                return []
            case events.RecordsWritten(attempt):
                return self._attempts.written(now_ms, attempt)
            case events.RecordsRefused(attempt, reason):
                awaited = self._attempts.awaits_records(attempt)
                return self._without_registry(f"ZooKeeper refused the new chains: {reason}") if awaited else []
            case events.SlotFenced(attempt, slot, received):
                return self._attempts.fenced(now_ms, attempt, slot, received)
            case events.SlotFencedPart(attempt, slot):
                self._attempts.fencing(now_ms, attempt, slot)
                return []
            case events.RecipesFetched(attempt):
                return self._attempts.recipes_read(now_ms, attempt)
            case events.RecipeFetchFailed(attempt, reason):
                return self._attempts.recipes_not_read(attempt, reason)
            case events.StandbysPromoted(attempt, slot):
                done = self._attempts.promoted(attempt, slot)
                return done + self._adjust() if done else []
            case events.StandbyPromotionFailed(attempt, slot, subtask, reason):
                why = f"{subtask} not promoted on slot {slot}: {reason}"
                return self._on_not_promoted(now_ms, [(attempt, slot)], why)
            case _:
                assert_never(event)

    # ---------------------------------------------------------------------------------- life cycle of the job

    def _on_started(self, event: events.JobStarted) -> list[FailoverEffect]:
        self._planned.update_hosts(dict(event.hosts))
        self._stop("")
        self._running = True
        self._attempts.newest_generation = event.generation
        cursors, heads = dict(event.cursors), dict(event.heads)
        self._table.form(self._planned.of, self._planned.own, event.generation, event.version, cursors, heads)
        return self._table.publish()

    def _replace(self, event: events.SubtasksChanged) -> None:
        """Nothing is left of the deployments before, except for what ``_stop`` keeps."""
        invariant(not self._running, "subtasks are replaced while the job is interrupted", slots=event.slots)
        topology, attempts = replace(self._topology, parallelism=event.parallelism), self._attempts
        planned = self._planned.replaced(topology, event.slots)
        self._check = EventCheck(topology, planned.own, self._check, attempts.newest_generation)
        self._build(topology, planned)
        self._attempts.continue_numbers_of(attempts)

    def _stop(self, reason: str) -> list[FailoverEffect]:
        """Forget the deployment, except for the numbers that were used and the hosts that are drained."""
        self._running = False
        self._table.clear()
        self._attempts.reset()
        self._handover.reset()
        self._threw.clear()
        return [*self._planned.interrupted(reason)]

    def _on_staged(self, now_ms: int, event: events.VersionStaged) -> list[FailoverEffect]:
        subtask, slot = event.subtask, event.slot
        if not self.is_current(subtask, event.generation) or slot not in self._table[subtask].members:
            return []
        self._table.stage(subtask, slot, event.version)
        return self._on_progress(now_ms)

    def _on_completed(self, now_ms: int, version: int) -> list[FailoverEffect]:
        previous = self._table.complete
        if not self._table.finish(version, self._config.max_versions_behind):
            return []
        self._threw.clear()
        self._handover.completed(previous)
        return self._on_progress(now_ms)

    def _on_progress(self, now_ms: int) -> list[FailoverEffect]:
        if not self.active:
            return self._adjust() + self._handover.begin(now_ms)
        return self._table.trim() if self._attempts.can_be_called_off else []

    # ------------------------------------------------------------------------------------- slots, requests, failures

    def _on_slots_lost(self, now_ms: int, slots: list[int], reason: str) -> list[FailoverEffect]:
        lost = [slot for slot in slots if self._table.is_alive(slot)]
        if not lost:
            return []
        effects = self._handover.call_off() + self._replanned(self._planned.lost(lost))
        failed = self._table.lose(lost)
        if failed:
            return effects + self._attempts.fail(now_ms, "slot", failed, reason)
        return effects + (self._attempts.without(now_ms, lost) if self.active else self._adjust())

    def _on_joined(self, slot: int, host: str) -> list[FailoverEffect]:
        if self._table.is_alive(slot) or self._planned.is_retired(slot):
            return []
        with contextlib.suppress(PlacementError):  # the user's own strategy: the next deployment raises it
            self._planned.update_hosts({slot: host})
        self._table.replan(self._planned.of)
        self._table.join(slot)
        self._handover.joined(slot)
        return [] if self.active else self._adjust()

    def _adjust(self) -> list[FailoverEffect]:
        return self._table.adjust(self._planned.forced)

    def _replanned(self, reports: list[ReportMove]) -> list[FailoverEffect]:
        """The planned members have changed, as ``reports`` say; members move when no failover is under way."""
        self._table.replan(self._planned.of)
        return [*reports]

    def _on_request(self, event: Request) -> list[FailoverEffect]:
        if not self._config.handover:
            why = "work cannot be handed over without a loss under this guarantee"
            return [ReportMove(event.request, "refused", why)]
        reports = self._planned.request(event, self._table)
        if any(report.status == "refused" for report in reports):
            return [*reports]
        effects = self._handover.call_off() + self._replanned(reports)
        return effects if self.active else effects + self._adjust()

    def _on_subtask_failed(self, now_ms: int, event: events.SubtaskFailed) -> list[FailoverEffect]:
        subtask, reason, error = event.subtask, f"{event.subtask}: {event.reason}", event.error
        if not self.is_current(subtask, event.generation):
            return []
        effects = self._handover.call_off()
        if not event.deterministic:
            if not self.recovering:  # otherwise it is part of the recovery that ends here
                effects.append(FailureTakenOn("exception", event.generation, False, reason, error))
            return [*effects, FallBack("exception", (subtask,), reason, error)]
        if subtask in self._attempts.failed:
            self._threw.add(subtask)
            return effects
        if subtask in self._threw:
            again = f"{reason} (again, without a complete checkpoint in between: the same input fails each successor)"
            return [*effects, FallBack("exception", (subtask,), again, error)]
        self._threw.add(subtask)
        effects.append(FailureTakenOn("exception", event.generation, self.recovering, reason, error))
        if not self._config.partial:
            self._table.drop_head(subtask)
        return effects + self._attempts.fail(now_ms, "exception", [subtask], reason, error)

    def _without_registry(self, reason: str) -> list[FailoverEffect]:
        """A handover is called off; a failover cannot continue."""
        if self._attempts.can_be_called_off:
            return self._handover.call_off() + self._adjust()
        return self._attempts.fall_back(reason)

    def _on_not_promoted(self, now_ms: int, promotions: list[tuple[int, int]], reason: str) -> list[FailoverEffect]:
        kind = self._attempts.kind
        slots = [slot for _, slot in promotions]
        failed = [subtask for promotion in promotions for subtask in self._attempts.not_promoted(*promotion)]
        if kind is None or not failed:
            return []
        for slot in slots:
            self._handover.refused(slot)
        effects = self._replanned([report for slot in slots for report in self._planned.refused(slot, failed, reason)])
        for subtask in failed:
            self._table.drop_head(subtask)
        return effects + self._attempts.fail(now_ms, kind, failed, reason)

    def _advance(self, now_ms: int) -> list[FailoverEffect]:
        effects: list[FailoverEffect] = []
        if self._attempts.is_registry_late(now_ms):
            limit_ms = self._config.registry_timeout_ms
            effects += self._without_registry(f"ZooKeeper did not take the new chains within {limit_ms} ms")
        elif late := self._attempts.late_to_fence(now_ms):
            reason = f"not fenced within {self._config.fence_timeout_ms} ms"
            effects += [EvictSlot(slot, None, reason) for slot in late]
            effects += self._on_slots_lost(now_ms, late, f"slots {', '.join(map(str, late))}: {reason}")
        elif self._attempts.are_recipes_late(now_ms):
            limit_ms = self._config.fence_timeout_ms
            effects += self._attempts.fall_back(f"the recipe of the output was not read within {limit_ms} ms")
        if promotions := self._attempts.late_promotions(now_ms):
            where = ", ".join(str(slot) for _, slot in promotions)
            reason = f"standbys not promoted on slots {where} within {self._config.promote_timeout_ms} ms"
            effects += self._on_not_promoted(now_ms, promotions, reason)
        return effects
