"""Deadlines that fire in a simulated job, and the injected fault that must explain each.

The machines of the driver give every wait a deadline. Where one fires, something did not answer. In a correct product
that is always the work of a fault; a deadline without one means that two parts wait for each other. Such a fault of the
product costs seconds and mends itself, so no other checker sees it.

Rules: a fault explains a deadline when it is of a kind that can delay the answer, and when it lasted into the wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flinkplus.protocol.vocabulary.effects import JobState
from tests.simulation.parameters import SILENCES

if TYPE_CHECKING:
    from flinkplus.runtime.coordinator.coordinator import Coordinator
    from tests.simulation.world import World

HUNG = ("pause", "pause_spare")
DIED = "died"
"""A process ended, for whatever reason: some kinds of faults are injected long before they strike."""
LOST = (DIED, "cut_control", "expire", *HUNG)
DISKS = ("disk_full", "disk_fails", "no_upload", "reads_wrong", "frames_wrong")
STREAMS = ("cut", "slow", "break_at_join", "duplicate", "refuse", "garble", "forge", *SILENCES)
EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    "registry": ("zookeeper_away", "zookeeper_unsure"),
    "fence": HUNG,
    "recipes": ("zookeeper_away", "zookeeper_unsure"),
    "promotion": HUNG,
    "deployment": HUNG,
    "slots": LOST,
    "stop": HUNG,
    "quiesce": ("hang_storage",),
    "division": ("hang_storage",),
    "retraction": ("hang_storage",),
    "checkpoint": (*LOST, *DISKS, *STREAMS, "throw", "outage", "zookeeper_away", "zookeeper_unsure", "no_table"),
    "turn": ("hang_storage",),
    "manifest": ("hang_storage",),
    "commit": ("hang_storage",),
    "heartbeat": HUNG,
    "reach": (*SILENCES, "refuse", "garble", "forge", "cut", *HUNG),
}
"""For each deadline the kinds of faults that can make it fire."""
LINGERS_MS = 1_000
"""How long the effects of a fault last that is over: slots start again, streams are opened again, logs are replayed."""


class Deadlines:
    """Watches the machines of each driver of one world. ``fired`` is called with the name of a deadline, when its wait
    began, and what was waited for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._struck: list[tuple[str, int, int]] = []

    def struck(self, kind: str, duration_ms: int = 0) -> None:
        """A fault of this kind was injected now, or ``DIED``."""
        now_ms = self._world.now_ms
        self._struck.append((kind, now_ms, now_ms + duration_ms))

    @property
    def quiet_since_ms(self) -> int:
        """The end of the last fault; in the future while one lasts."""
        return max((last_ms for _, _, last_ms in self._struck), default=0)

    def watch(self, coordinator: Coordinator) -> None:
        """Have every deadline of this driver's machines reported here."""
        machines = coordinator.parts.machines
        self._watch_job(machines.job)
        self._watch_checkpoints(machines.checkpoints)
        if machines.failover is not None:
            self._watch_failover(machines.failover)
        evict = coordinator.parts.presence.evict

        def evicted(process: Any, reason: str) -> None:
            patience_ms = round(coordinator.options.heartbeat_timeout * 1000)
            if reason.startswith("no heartbeat"):
                self._fired("heartbeat", patience_ms, reason)
            elif reason.endswith("is given up"):  # ``EvictSlot``, after a look at who reaches whom
                self._fired("reach", patience_ms, reason)
            evict(process, reason)

        coordinator.parts.presence.evict = evicted  # type: ignore[method-assign]

    def _fired(self, name: str, waited_ms: int, what: str) -> None:
        """Deadline ``name`` fires after ``waited_ms``: a fault must explain it."""
        world = self._world
        world.note("deadline %s: %s", name, what)
        world.counts[f"deadline_{name}"] += 1
        began_ms = world.now_ms - waited_ms
        kinds = EXPLAINED_BY[name]
        if name == "checkpoint" and world.parameters.synchronous:  # the stream stands until the one before is complete
            kinds = (*kinds, "hang_storage")
        for kind, first_ms, last_ms in self._struck:
            if kind in kinds and first_ms <= world.now_ms and last_ms + LINGERS_MS >= began_ms:
                return
        world.checks.unexplained(name, what)

    def _watch_failover(self, machine: Any) -> None:
        machine = getattr(machine, "_machine", machine)  # a recorded one
        advance: Callable[[int], Any] = machine._advance
        attempts, config = machine._attempts, machine._config

        def advanced(now_ms: int) -> Any:
            attempt = attempts._attempt
            if attempt is not None and not attempt.is_written and now_ms >= attempt.registry_until_ms:
                self._fired("registry", config.registry_timeout_ms, f"the records of attempt {attempt.number}")
            elif attempt is not None and attempt.awaited and now_ms >= attempt.fence_until_ms:
                self._fired("fence", config.fence_timeout_ms, f"slots {attempt.awaited} in attempt {attempt.number}")
            elif attempt is not None and attempt.awaits_recipes and now_ms >= attempt.fence_until_ms:
                self._fired("recipes", config.fence_timeout_ms, f"the recipes of attempt {attempt.number}")
            for (number, slot), promotion in attempts._promotions.items():
                if now_ms >= promotion.until_ms:
                    names = ", ".join(map(str, promotion.subtasks))
                    self._fired("promotion", config.promote_timeout_ms, f"{names} on slot {slot} in attempt {number}")
            return advance(now_ms)

        machine._advance = advanced

    def _watch_job(self, machine: Any) -> None:
        machine = getattr(machine, "_machine", machine)  # a recorded one
        check, deploying, stopping = machine._check_waits, machine._advance_deploying, machine._advance_stopping
        quiesce, end_quiescing = machine._quiesce, machine._end_quiescing
        config = machine._config
        quiescing_since_ms = 0
        reported_ms: int | None = None  # the deadline of quiescing

        def checked(now_ms: int) -> Any:
            nonlocal reported_ms
            quiesce_until_ms = machine._quiesce_until_ms
            ended = check(now_ms)
            if ended is not None:
                name = {"slots": "slots", "rescale": "division"}.get(ended.failure, "")
                name = name or ("retraction" if quiesce_until_ms is None else "quiesce")
                reported_ms = quiesce_until_ms if name == "quiesce" else reported_ms
                waits_ms = {"slots": config.restart_slot_timeout_ms, "division": config.deploy_timeout_ms}
                self._fired(name, waits_ms.get(name, config.quiesce_timeout_ms), ended.reason)
            return ended

        def deployed(now_ms: int) -> Any:
            late = [slot for slot in machine._slots.needed if slot not in machine._deployed]
            if late and machine._deploy_until_ms is not None and now_ms >= machine._deploy_until_ms:
                self._fired("deployment", config.deploy_timeout_ms, f"slots {late}")
            return deploying(now_ms)

        def stopped(now_ms: int) -> Any:
            if machine._stop_until_ms is not None and machine._slots.held and now_ms >= machine._stop_until_ms:
                self._fired("stop", config.stop_timeout_ms, "slots that were to stop")
            until_ms = machine._quiesce_until_ms
            if until_ms is not None and until_ms != reported_ms and now_ms >= until_ms:
                self._fired("quiesce", config.quiesce_timeout_ms, "the end of what is being written")
            return stopping(now_ms)

        def begins_to_quiesce(now_ms: int) -> Any:
            nonlocal quiescing_since_ms
            quiescing_since_ms = now_ms if not machine._quiescing else quiescing_since_ms
            return quiesce(now_ms)

        def quiesced() -> None:
            waited_ms = self._world.now_ms - quiescing_since_ms
            if machine._quiescing and machine._state is JobState.INTERRUPTED and waited_ms > config.quiesce_timeout_ms:
                self._world.checks.unbounded("a rollback", "what was being written", waited_ms)
            end_quiescing()

        machine._check_waits, machine._advance_deploying, machine._advance_stopping = checked, deployed, stopped
        machine._quiesce, machine._end_quiescing = begins_to_quiesce, quiesced

    def _watch_checkpoints(self, machine: Any) -> None:
        machine = getattr(machine, "_machine", machine)  # a recorded one
        time_out, advance = machine._time_out, machine._commits.advance
        config = machine._config

        def timed_out(now_ms: int) -> Any:
            storing = machine._storing
            found = time_out(now_ms)
            if found and storing is not None and machine._storing is None:
                self._fired("manifest", config.storage_timeout_ms, f"the manifest of {storing}")
            elif found:
                late = f"{found[0]}"  # not acknowledged, or its manifest has not had its turn
                name = "turn" if "an older manifest was still being stored" in late else "checkpoint"
                self._fired(name, config.timeout_ms, late)
            return found

        def advanced(now_ms: int) -> Any:
            commits = machine._commits
            if commits.in_flight and now_ms >= commits._reported_ms + config.storage_timeout_ms:
                self._fired("commit", config.storage_timeout_ms, "a commit")
            return advance(now_ms)

        machine._time_out, machine._commits.advance = timed_out, advanced
