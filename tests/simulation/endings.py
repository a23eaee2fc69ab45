"""Whether every move that begins also ends: requests of users, failovers and handovers.

A request ends when it is done, refused or cancelled. A failover or handover ends when all of its subtasks run, when it
is called off, or with a rollback or the end of the job.

Rules:

- Whatever is under way for ``PATIENCE_MS`` without any fault does not end. A fault that lasts, or a process that dies,
  begins the time anew. A request may wait while all slots are on drained hosts, for a subtask that cannot be moved
  without doubt (``sharing_depth``), and while a rollback delays the next deployment.
- A failover that the machine does not have any more was reported as ended, and no other begins before.
- A source keeps its last rows while a request is under way, for ``HOLD_MS`` at most: most jobs would end sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chain_backup.failover.effects import FallBack, FinishFailover, RecordFailoverPhase
from chain_backup.failover.events import JobInterrupted, JobStarted

if TYPE_CHECKING:
    from flinkplus.runtime.coordinator.coordinator import Coordinator
    from flinkplus.runtime.coordinator.drivers.savepoints import Savepoint
    from flinkplus.runtime.coordinator.membership.moves import PlannedMove
    from tests.simulation.world import World

PATIENCE_MS = 3_000
HOLD_MS = 2 * PATIENCE_MS
OPEN = (None, "under_way")


class Endings:
    """Watches the requests, failovers and handovers of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held_until_ms = 0
        self._failover: RecordFailoverPhase | None = None

    @property
    def holds_sources(self) -> bool:
        """Whether sources keep their last rows for now."""
        world = self._world
        return bool(world.moves or world.savepoints.open) and world.now_ms < self._held_until_ms

    # --- requests

    def requested(self, move: PlannedMove) -> None:
        """A user requested ``move``."""
        self._held_until_ms = self._world.now_ms + HOLD_MS
        self._expect(lambda: move.status in OPEN, f"{move}"[1:].partition(":")[0])

    def savepoint_requested(self, savepoint: Savepoint) -> None:
        """A user requested ``savepoint``."""
        world = self._world
        self._held_until_ms = world.now_ms + HOLD_MS
        deployed = world.next_generation
        world.at(world.now_ms + PATIENCE_MS, self._look_at_savepoint, savepoint, world.coordinator, deployed)

    def _look_at_savepoint(self, savepoint: Savepoint, coordinator: Coordinator | None, deployed: int) -> None:
        """As ``_look``. Its time begins anew with every rollback, which it survives. ``deployed``: the next generation
        when it was looked at before."""
        world = self._world
        if savepoint.ended or coordinator is not world.coordinator:
            return
        world.checks.counts["moves_judged"] += 1
        due_ms = world.deadlines.quiet_since_ms + PATIENCE_MS
        if world.next_generation != deployed or self._has_to_wait():
            due_ms = world.now_ms + PATIENCE_MS
        if world.now_ms < due_ms:
            world.at(due_ms, self._look_at_savepoint, savepoint, coordinator, world.next_generation)
        else:
            world.checks.endless(f"{savepoint!r} is under way for {PATIENCE_MS} ms without a fault")

    def job_over(self, coordinator: Coordinator) -> None:
        """The job is over, and what its thread does then is done: no request is under way any more."""
        coordinator.moves.requests.close()
        for move, _, _ in self._world.moves:
            if move.status in OPEN:
                self._world.checks.endless(f"{move}, and the job is over")

    # --- failovers

    def watch(self, coordinator: Coordinator) -> None:
        """Watch the machine of local failover of this driver, if it has one."""
        self._failover = None
        machine: Any = coordinator.parts.machines.failover
        if machine is None:
            return
        machine = getattr(machine, "_machine", machine)  # a recorded one
        step = machine.step

        def stepped(now_ms: int, event: Any) -> Any:
            effects = step(now_ms, event)
            for effect in effects:
                self._happened(effect)
            if isinstance(event, JobInterrupted | JobStarted):
                self._failover = None
            if self._failover is not None and not machine.active:
                self._world.checks.endless(f"{_name(self._failover)}: it is over, and was not reported as ended")
            return effects

        machine.step = stepped

    def _happened(self, effect: Any) -> None:
        before = self._failover
        if isinstance(effect, RecordFailoverPhase):
            self._failover = effect
            if before is None:
                self._world.checks.counts["moves_begun"] += 1
                self._expect(lambda: self._is_under_way(effect.number), _name(effect))
            elif before.number != effect.number:
                self._world.checks.endless(f"{_name(before)}: {_name(effect)} begins before it has ended")
        elif isinstance(effect, FallBack) or (isinstance(effect, FinishFailover) and before is not None):
            self._failover = None

    def _is_under_way(self, number: int) -> bool:
        return self._failover is not None and self._failover.number == number

    # --- patience

    def _expect(self, is_open: Callable[[], bool], name: str) -> None:
        coordinator = self._world.coordinator
        self._world.at(self._world.now_ms + PATIENCE_MS, self._look, is_open, name, coordinator)

    def _look(self, is_open: Callable[[], bool], name: str, coordinator: Coordinator | None) -> None:
        """It should have ended by now, unless there was a fault."""
        world = self._world
        if not is_open() or coordinator is not world.coordinator:
            return
        world.checks.counts["moves_judged"] += 1
        due_ms = world.deadlines.quiet_since_ms + PATIENCE_MS
        if self._has_to_wait():
            due_ms = world.now_ms + PATIENCE_MS
        if world.now_ms < due_ms:
            world.at(due_ms, self._look, is_open, name, coordinator)
        else:
            world.checks.endless(f"{name} is under way for {PATIENCE_MS} ms without a fault")

    def _has_to_wait(self) -> bool:
        """Whether there is no slot to move anything to, or a subtask that cannot be moved; or a rollback delays the
        next deployment."""
        coordinator = self._world.coordinator
        if coordinator is not None and coordinator.parts.machines.job._backoff_until_ms is not None:
            return True
        machine = self._world.failover
        if machine is None or self._failover is not None:
            return False
        if len(machine._planned.barred) == len(machine._planned.slots):
            return True
        return any(machine._attempts.why_unsafe([chain.subtask]) is not None for chain in machine._table)


def _name(effect: RecordFailoverPhase) -> str:
    what = "handover" if effect.kind == "handover" else "failover"
    return f"{what} {effect.number} of {', '.join(map(str, effect.subtasks))}"
