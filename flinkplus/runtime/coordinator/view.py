"""What users can see of a running job: its state, failovers, security counters, slots and chains.

Rules: any thread may read, except for the parts of the status; values are replaced, never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls, Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.drivers.failover_stamps import FailoverStamps
from flinkplus.runtime.coordinator.drivers.triggers import Triggers
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.membership.rescales import Rescales
from flinkplus.runtime.coordinator.membership.spares import Spares, SpareState
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.record.recovery_times import STANDBY
from flinkplus.runtime.coordinator.record.status import (
    ChainStatus,
    MemberStatus,
    RescaleStatus,
    SlotStatus,
    SubtaskStatus,
)

JOINED = SpareState.JOINED.value


@dataclass(eq=False, repr=False)
class JobView:
    """Reads the parts of one coordinator."""

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _calls: Calls
    _figures: Figures
    _presence: Presence
    _stamps: FailoverStamps
    _triggers: Triggers
    _spares: Spares | None
    _rescales: Rescales | None

    @property
    def state(self) -> str:
        """The current state of the job, as text."""
        state = self._calls.result.state
        return (state if state is not None else self._machines.job.state).value

    def running_s(self) -> float | None:
        """Seconds from the first start of the subtasks to now, or to the end of the job; ``None`` before that start."""
        started_s, ended_s = self._deployment.first_started_s, self._calls.result.ended_s
        return None if started_s is None else (ended_s or self._dispatch.clock.monotonic()) - started_s

    def failovers(self) -> dict[str, Any]:
        """Counts of failovers, handovers and fallbacks, the fallback reasons, the state of ZooKeeper."""
        lost = self._presence.registry_lost or "connected"
        return {
            **self._stamps.counts,
            "fallback_reasons": list(self._stamps.fallback_reasons),
            "zookeeper": lost if self._presence.uses_registry else None,
        }

    def security(self) -> dict[str, int]:
        """Counts of what the driver and all slots have refused: of unknown senders, and of fenced generations."""
        servers = [self._dispatch.rendezvous, self._dispatch.lifelines, self._dispatch.commands]
        pulses, figures = self._dispatch.pulses, self._figures
        refused, malformed, fenced = figures.dropped
        return {
            "refused_connections": refused + sum(one.refusals.total for one in servers if one is not None),
            "refused_datagrams": 0 if pulses is None else pulses.refused,
            "malformed_frames": malformed + figures.malformed_reports + self._dispatch.rendezvous.malformed,
            "fenced_messages": fenced,
            "fenced_reports": figures.fenced_reports,
        }

    # --- parts of the status; only in the coordinator's thread

    def slots(self) -> tuple[SlotStatus, ...]:
        """Every slot; spare ones last."""
        table = self._dispatch.processes
        spares = {} if self._spares is None else {slot: one.value for slot, one in self._spares.states.items()}
        apart = {} if self._rescales is None else self._rescales.states
        copies = [slot for *_, members in self._holdings() for slot, _, _ in members[1:]]
        incarnations, now_s = table.incarnations, self._dispatch.clock.monotonic()
        found = []
        for slot in (*table.own, *sorted({**spares, **apart})):
            process, subtasks, standbys = table.get(slot), len(self._deployment.on(slot)), copies.count(slot)
            state = "working" if subtasks else "standby" if standbys else "idle"
            if slot in apart or spares.get(slot, JOINED) != JOINED:
                state = apart.get(slot) or spares[slot]
            elif process is None:
                state = "away"
            found.append(
                SlotStatus(
                    slot=f"slot-{slot}",
                    spare=slot in spares,
                    state=state,
                    host=None if process is None else process.host,
                    pid=None if process is None else process.pid,
                    address=None if process is None else process.address,
                    restarts=max(0, incarnations.get(slot, 0) - 1),
                    heard_ms=None if process is None else round((now_s - process.heard_s) * 1e3, 1),
                    subtasks=subtasks,
                    standbys=standbys,
                )
            )
        return tuple(found)

    def subtasks(self) -> tuple[SubtaskStatus, ...]:
        """Every subtask, with the counters of its last heartbeat."""
        counters, moving = self._figures.subtasks(), self._triggers.moving
        found = []
        for subtask, slot in sorted(self._deployment.assignment.items()):
            reported = counters.get(str(subtask), {})
            operators = list(reported.get("operators", {}).values())
            running = self._dispatch.processes.get(slot) is not None
            found.append(
                SubtaskStatus(
                    subtask=str(subtask),
                    vertex=subtask.vertex,
                    index=subtask.index,
                    slot=f"slot-{slot}",
                    generation=self._deployment.generations.get(subtask),
                    state="moving" if subtask in moving else "running" if running else "away",
                    rows_in=operators[0].get("rows_in") if operators else None,
                    rows_out=reported.get("rows_out"),
                    behind_rows=reported.get("behind"),
                    waiting_messages=reported.get("waiting"),
                    keys=reported.get("keys"),
                    state_bytes=reported.get("bytes"),
                    busy_s=reported.get("busy_s"),
                    watermark_ms=reported.get("watermark"),
                    blocked=reported.get("blocked", ""),
                )
            )
        return tuple(found)

    def rescaling(self) -> RescaleStatus | None:
        """The change of parallelism that is under way."""
        return None if self._rescales is None else self._rescales.status

    def chain_states(self) -> tuple[ChainStatus, ...]:
        found = []
        for subtask, generation, newest, held in self._holdings():
            members = tuple(
                MemberStatus(
                    slot=f"slot-{slot}",
                    role="standby" if place else "head",
                    version=version,
                    lag=newest - (version or 0),
                    catching_up=catching_up,
                )
                for place, (slot, version, catching_up) in enumerate(held)
            )
            found.append(ChainStatus(subtask=str(subtask), generation=generation, newest=newest, members=members))
        return tuple(found)

    def _holdings(self) -> list[tuple[SubtaskId, int, int, list[tuple[int, int | None, bool]]]]:
        failover = self._machines.failover
        return [] if failover is None or self._stamps.mode != STANDBY else failover.holdings

    def drained_hosts(self) -> list[str]:
        return [] if self._machines.failover is None else list(self._machines.failover.drained_hosts)

    # --- for ``JobHandle``

    @property
    def copies(self) -> int:
        """Target number of slots in each chain, with the head; 0 while the job does not run, or in a rollback."""
        return 0 if self._machines.failover is None else self._machines.failover.copies

    def missing_standbys(self) -> int:
        """Number of standbys that are missing or still catching up; 0 when the job is over."""
        failover = self._machines.failover
        if failover is None:
            return 0
        return self._calls.answer(lambda: failover.missing + failover.active, 0)

    def chain_hosts(self) -> dict[str, list[str]]:
        """Subtask -> hosts of its chain, the head's first; empty when the job is over, or without standbys."""

        def hosts() -> dict[str, list[str]]:
            where = {process.slot: process.host for process in self._dispatch.processes.all()}
            return {subtask: [where.get(slot, "") for slot in slots] for subtask, slots in self.chains().items()}

        return self._calls.answer(hosts, {})

    def chains(self) -> dict[str, list[int]]:
        """Subtask -> slots of its chain, head first."""
        failover = self._machines.failover
        return {} if failover is None else {str(subtask): list(slots) for subtask, slots in failover.chains.items()}

    def pids(self) -> dict[int, int]:
        return {process.slot: process.pid for process in self._dispatch.processes.all()}

    def placement(self) -> dict[str, str]:
        """Subtask -> host, if its slot is registered."""
        hosts = {process.slot: process.host for process in self._dispatch.processes.all()}
        return {str(subtask): hosts[slot] for subtask, slot in self.assignment.items() if slot in hosts}

    @property
    def assignment(self) -> dict[SubtaskId, int]:
        return dict(self._deployment.assignment)

    @property
    def slot_restarts(self) -> int:
        """Registrations beyond the first of each slot."""
        return self._dispatch.processes.restarts
