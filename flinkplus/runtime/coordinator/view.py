"""A running job as users see it: its state, its metrics, and where everything is.

Rules: any thread may read, except for ``status``: values are replaced, never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.coordinator.dispatch.calls import Calls
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.drivers.failover_phases import FailoverPhases
from flinkplus.runtime.coordinator.drivers.triggers import Triggers
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.membership.spares import Spares
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.record.recovery_log import STANDBY
from flinkplus.runtime.coordinator.record.status import chains_of, slots_of, subtasks_of


@dataclass(eq=False, repr=False)
class JobView:
    """Reads the parts of one coordinator."""

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _calls: Calls
    _figures: Figures
    _presence: Presence
    _phases: FailoverPhases
    _triggers: Triggers
    _spares: Spares | None

    @property
    def state(self) -> str:
        """The job's state now, as text."""
        state = self._calls.result.state
        return (state if state is not None else self._machines.job.state).value

    def running_s(self) -> float | None:
        """Seconds since the subtasks were first started, to the end of the job."""
        started_s, ended_s = self._deployment.first_started_s, self._calls.result.ended_s
        return None if started_s is None else (ended_s or self._dispatch.clock.monotonic()) - started_s

    def failovers(self) -> dict[str, Any]:
        """What local failover has done so far: counts, why the job rolled back nevertheless, ZooKeeper."""
        lost = self._presence.registry_lost or "connected"
        return {
            **self._phases.counts,
            "fallback_reasons": list(self._phases.fallback_reasons),
            "zookeeper": None if self._machines.failover is None else lost,
        }

    def security(self) -> dict[str, int]:
        """What the driver and the slots of all times have refused: of strangers, and of fenced generations."""
        servers = [self._dispatch.rendezvous, self._dispatch.lifelines, self._dispatch.door]
        refused = sum(server.refusals.total for server in servers if server is not None)
        pulses, figures = self._dispatch.pulses, self._figures
        malformed = self._dispatch.rendezvous.malformed + figures.malformed_reports + figures.malformed
        return {
            "refused_connections": refused + figures.refused,
            "refused_datagrams": 0 if pulses is None else pulses.refused,
            "malformed_frames": malformed,
            "fenced_messages": figures.fenced_messages,
            "fenced_reports": figures.fenced_reports,
        }

    def status(self) -> dict[str, Any]:
        """Slots, subtasks and chains; only in the coordinator's thread."""
        deployment, processes, failover = self._deployment, self._dispatch.processes, self._machines.failover
        chains = [] if failover is None or self._phases.mode != STANDBY else list(failover.holdings)
        return {
            "slots": slots_of(
                range(processes.slots),
                {} if self._spares is None else {slot: state.value for slot, state in self._spares.states.items()},
                processes.all(),
                processes.incarnations,
                deployment.assignment,
                chains,
                self._dispatch.clock.monotonic(),
            ),
            "subtasks": subtasks_of(
                deployment.assignment,
                deployment.generations,
                self.pids(),
                self._triggers.moving,
                self._figures.subtasks(),
            ),
            "chains": chains_of(chains),
            "drained_hosts": [] if failover is None else list(failover.drained_hosts),
        }

    @property
    def copies(self) -> int:
        """How many copies each state is to have; 0 while the job does not run, or without standbys."""
        return 0 if self._machines.failover is None else self._machines.failover.copies

    def missing_standbys(self) -> int:
        """How many standbys are missing or not in step; 0 when the job is over."""
        failover = self._machines.failover
        if failover is None:
            return 0
        return self._calls.answer(lambda: failover.missing + failover.active, 0)

    def chain_hosts(self) -> dict[str, list[str]]:
        """The hosts of each chain's members, the head's first; none when the job is over, or has no standbys."""

        def hosts() -> dict[str, list[str]]:
            where = {process.slot: process.host for process in self._dispatch.processes.all()}
            return {subtask: [where.get(slot, "") for slot in slots] for subtask, slots in self.chains().items()}

        return self._calls.answer(hosts, {})

    def chains(self) -> dict[str, list[int]]:
        """The slots that hold the state of each subtask, first the one that runs it, or is about to."""
        failover = self._machines.failover
        return {} if failover is None else {str(subtask): list(slots) for subtask, slots in failover.chains.items()}

    def pids(self) -> dict[int, int]:
        """Process of each registered slot."""
        return {process.slot: process.pid for process in self._dispatch.processes.all()}

    def placement(self) -> dict[str, str]:
        """Host of each subtask whose slot is registered."""
        hosts = {process.slot: process.host for process in self._dispatch.processes.all()}
        return {str(subtask): hosts[slot] for subtask, slot in self.assignment.items() if slot in hosts}

    @property
    def assignment(self) -> dict[SubtaskId, int]:
        """The slot of each subtask."""
        return dict(self._deployment.assignment)

    @property
    def slot_restarts(self) -> int:
        """Registrations beyond the first of each slot."""
        return self._dispatch.processes.restarts
