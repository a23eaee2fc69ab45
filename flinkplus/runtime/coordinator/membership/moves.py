"""Planned moves that a user requests, in any thread; the coordinator's thread decides and carries them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chain_backup.failover.effects import ReportMove
from chain_backup.failover.events import HostDrainRequested, HostUndrainRequested, MoveRequested
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.coordinator.dispatch.calls import Calls
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.membership.requests import MoveRequests, PlannedMove
from flinkplus.runtime.coordinator.membership.spares import Spares


@dataclass(eq=False, repr=False)
class Moves:
    """The requests of one job. ``spares``: ``None`` for a job that cannot have spare slots."""

    _calls: Calls
    _machines: JobMachines
    requests: MoveRequests
    _spares: Spares | None

    def migrate(self, subtask: SubtaskId, slot: int) -> PlannedMove:
        """Move ``subtask`` to ``slot``."""
        step = self._machines.step_failover
        return self._request(
            f"migrate {subtask} to slot {slot}", lambda number: step(MoveRequested(number, subtask, slot))
        )

    def drain_host(self, host: str, force: bool) -> PlannedMove:
        """Move all subtasks and standbys off ``host``. ``force``: even if chains get shorter, or share hosts."""
        step = self._machines.step_failover
        return self._request(f"drain {host}", lambda number: step(HostDrainRequested(number, host, force)))

    def undrain_host(self, host: str) -> PlannedMove:
        """Allow subtasks and standbys on ``host`` again."""
        step = self._machines.step_failover
        return self._request(f"undrain {host}", lambda number: step(HostUndrainRequested(number, host)))

    def scale(self, count: int, force: bool) -> PlannedMove:
        """Start or end spare slots until there are ``count``. ``force``: as of ``drain_host``."""

        def begin(number: int) -> None:
            if self._spares is not None:
                self._spares.scale(number, count, force)

        return self._request(f"scale to {count} spare slot{'s'[: count != 1]}", begin)

    def _request(self, description: str, begin: Callable[[int], None]) -> PlannedMove:
        move, is_open = self.requests.add(description)
        if is_open:
            self._calls.ask(lambda: self._begin(move.number, begin))
        return move

    def _begin(self, number: int, begin: Callable[[int], None]) -> None:
        """In the coordinator's thread."""
        if self._machines.failover is None:
            why = "the job recovers by rollback, so it has no standbys that could take over; use recovery='standby'"
            self.requests.report(ReportMove(number, "refused", why))
        elif self._machines.local_failover is None:
            state = self._machines.job.state.value
            self.requests.report(ReportMove(number, "refused", f"the job is {state}; try again when it runs"))
        else:
            begin(number)

    def report(self, report: ReportMove) -> None:
        """The machine of local failover reports the progress of a request."""
        if self._spares is None or not self._spares.take(report):
            self.requests.report(report)
