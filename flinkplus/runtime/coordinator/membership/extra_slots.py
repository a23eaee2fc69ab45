"""Slots that no deployment needs: how one is started and ended while the job runs, for whichever purpose.

Rules: only the coordinator's thread calls this. A slot that ends must be in no chain. It is told to stop; its Spark job
is cancelled only if it does not end by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flinkplus.protocol.vocabulary import events
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.rejoin import Joining

ENDING_S = 10.0  # for a slot to end by itself, before its Spark job is cancelled
log = logging.getLogger("flinkplus.coordinator")


class SlotProcessJobs(Protocol):
    """Starts and ends the processes of slots."""

    def check(self, slots: int) -> None:
        """Raises ``InsufficientSlots`` if the cluster is known to run fewer than ``slots`` slots at once."""

    def start(self, slot: int) -> None:
        """Start a process of ``slot``, and a new one whenever it dies."""

    def end(self, slot: int, graceful_s: float, then: Callable[[], None]) -> None:
        """Let ``slot`` end by itself within ``graceful_s``, otherwise end it; then call ``then``, in any thread."""


@dataclass(eq=False, repr=False)
class ExtraSlots:
    """Starts and ends such slots of one job."""

    _dispatch: Dispatch
    _machines: JobMachines
    _joining: Joining
    _calls: Calls
    _jobs: SlotProcessJobs

    def check(self, slots: int) -> None:
        """Raises ``InsufficientSlots`` if the cluster is known to run fewer than ``slots`` slots at once."""
        self._jobs.check(slots)

    def start(self, reserved: bool = False) -> int:
        """Start a slot: its number. ``reserved``: it takes no part in the job until it is needed."""
        slot = self._dispatch.processes.add(reserved)
        self._machines.step_job(events.SpareAdded(slot))
        log.info("starting slot %d", slot)
        self._jobs.start(slot)
        return slot

    def end(self, slot: int, gone: Callable[[], None]) -> None:
        """End ``slot``. ``gone``: called when the job has it no more."""
        processes = self._dispatch.processes
        took_part = not processes.is_apart(slot)
        log.info("ending slot %d", slot)
        processes.end(slot)
        if took_part and self._machines.local_failover is not None:
            self._joining.lost(slot, over=True)  # slots that are joining do not wait for it
        self._dispatch.send(slot, control.Stop())
        graceful_s = 0.0 if processes.get(slot) is None else ENDING_S
        self._jobs.end(slot, graceful_s, lambda: self._calls.ask(lambda: self._ended(slot, gone)))

    def _ended(self, slot: int, gone: Callable[[], None]) -> None:
        process = self._dispatch.processes.remove(slot)
        if process is not None:
            self._dispatch.drop(process)
        self._machines.step_job(events.SpareRemoved(slot))
        gone()
