"""A restarted slot is connected to all others before it is given anything to do.

It is sent what the others know (``Join``), and all slots are sent the list of slots (``Connect``). When all have
answered the newest such call, it has joined.

Rules: a slot that is lost meanwhile is not waited for; the others are called again, without it. The same holds for one
that is set aside, because some slots do not reach it, until it begins to join again.
"""

from __future__ import annotations

from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess


class Joining:
    """The slots that are about to join a running job."""

    def __init__(self, dispatch: Dispatch, deployment: Deployment) -> None:
        self._dispatch = dispatch
        self._deployment = deployment
        self._serial = 0
        self._joining: dict[int, SlotProcess] = {}
        self._waiting: set[int] = set()
        self._aside: set[int] = set()  # never iterated

    def reset(self) -> None:
        """A deployment connects all slots anyway."""
        self._joining, self._waiting, self._aside = {}, set(), set()

    def set_aside(self, slot: int) -> None:
        """Other slots do not connect to a slot that has not joined."""
        self._aside.add(slot)
        if self._joining.pop(slot, None) is not None:
            self._call()

    def begin(self, process: SlotProcess) -> None:
        """A slot has registered, or is no longer set aside."""
        self._aside.discard(process.slot)
        self._joining[process.slot] = process
        self.send(process)
        self._call()

    def send(self, process: SlotProcess) -> None:
        """Send a slot where every subtask is."""
        deployment = self._deployment
        order = control.Join(
            deployment.generation,
            {str(subtask): slot for subtask, slot in deployment.assignment.items()},
            {str(subtask): generation for subtask, generation in deployment.generations.items()},
        )
        self._dispatch.tell(process.slot, order)

    def lost(self, slot: int) -> None:
        """A slot is gone, and is not waited for."""
        self._joining.pop(slot, None)
        self._aside.discard(slot)
        if self._joining:
            self._call()

    def over(self, slot: int) -> None:
        """A slot ends for good: the others are not to connect to it."""
        self._joining.pop(slot, None)
        self._aside.discard(slot)
        self._call()

    def ready(self, process: SlotProcess, serial: int) -> list[SlotProcess]:
        """A slot is connected to all of call ``serial``; returns the slots that have joined by that."""
        if serial != self._serial:
            return []
        self._waiting.discard(process.slot)
        if self._waiting:
            return []
        joined = [self._joining[slot] for slot in sorted(self._joining)]
        self._joining = {}
        return joined

    def _call(self) -> None:
        self._serial += 1
        table = self._dispatch.processes
        here = [process for process in table.all() if not table.is_over(process.slot)]
        processes = [process for process in here if process.slot not in self._aside]
        self._waiting = {process.slot for process in processes}
        peers = control.Connect(self._serial, {str(one.slot): [one.incarnation, one.address] for one in processes})
        for process in processes:
            self._dispatch.tell(process.slot, peers)
