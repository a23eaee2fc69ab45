"""Kills for fault injection: now, or when a point of the protocol is reached (``faults.points``).

Rules: ``kill`` may be called in any thread but the coordinator's; ``reach`` only in that.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from flinkplus.errors import SubtaskNotRunning
from flinkplus.graph import JobGraph
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import find_subtask
from flinkplus.runtime.coordinator.dispatch.calls import Calls
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.faults.injections import KILL
from flinkplus.runtime.faults.points import COORDINATOR_POINTS, STANDBY_POINTS, Faults

LOOK_AGAIN_S = 0.01
log = logging.getLogger("flinkplus.coordinator")


@dataclass(eq=False, repr=False)
class Kills:
    """Kills processes of one job. ``faults``: those that its options arm."""

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _presence: Presence
    _calls: Calls
    _graph: JobGraph
    _faults: Faults

    def kill(self, subtask: SubtaskId, point: str | None, timeout_s: float) -> bool:
        """SIGKILL the process that hosts a subtask; the time is stamped right before the signal.

        With a ``point``: when that is reached next, by the subtask, by its first standby, or in the coordinator. Waits
        until there is such a process. Returns false when the job is over. Raises ``SubtaskNotRunning`` after
        ``timeout_s`` seconds.
        """

        def strike() -> bool:
            if self._deployment.first_started_s is None:
                return False
            return self._presence.kill(subtask) if point is None else self._arm(point, subtask)

        until_s = time.monotonic() + timeout_s
        while not self._calls.answer(strike, False):
            if self._calls.result.done.is_set():
                return False
            if time.monotonic() >= until_s:
                raise SubtaskNotRunning(
                    f"{subtask} cannot be killed: it has not run within {timeout_s:g} s, the job is "
                    f"{self._machines.job.state.value}"
                )
            time.sleep(LOOK_AGAIN_S)
        return True

    def _arm(self, point: str, subtask: SubtaskId) -> bool:
        if point in COORDINATOR_POINTS:
            self._faults.arm(point, str(subtask))
            return True
        slot = self._deployment.assignment.get(subtask)
        if point in STANDBY_POINTS:
            chains = {} if self._machines.failover is None else self._machines.failover.chains
            slot = next(iter(chains.get(subtask, ())[1:]), None)
        if slot is None or self._dispatch.processes.get(slot) is None:
            return False
        self._dispatch.tell(slot, control.Inject(KILL, [str(subtask)], point=point))
        return True

    def reach(self, point: str) -> None:
        """The coordinator reaches a point."""
        self._faults.reach(point, self._deployment.generation, strike=self._strike)

    def _strike(self, name: str) -> None:
        if not self._presence.kill(find_subtask(name, self._graph, self._dispatch.processes.slots)):
            log.warning("cannot kill %s: its slot is not registered", name)
