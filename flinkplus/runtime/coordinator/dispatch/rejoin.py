"""Rejoin: a restarted slot is connected to all others before it gets work.

The coordinator sends it the current assignment (``Join``), and all slots the list of slots (``Connect``). It has joined
when all have answered the newest ``Connect``; there is a new one, without a slot that is lost or set aside meanwhile.
"""

from __future__ import annotations

from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess


class Joining:
    """The slots that are joining the running job."""

    def __init__(self, dispatch: Dispatch, deployment: Deployment) -> None:
        self._dispatch, self._deployment = dispatch, deployment
        self._serial = 0
        self._joining: dict[int, SlotProcess] = {}
        self._waiting: set[int] = set()
        self._aside: set[int] = set()  # never iterated

    def reset(self) -> None:
        """Forget all joining slots: a deployment connects all slots."""
        self._joining, self._waiting, self._aside = {}, set(), set()

    def set_aside(self, slot: int) -> None:
        """Exclude ``slot`` from the list of slots until ``begin``."""
        self._aside.add(slot)
        if self._joining.pop(slot, None) is not None:
            self._call()

    def begin(self, process: SlotProcess) -> None:
        """A slot has registered, or is no longer set aside: let it join."""
        self._aside.discard(process.slot)
        self._joining[process.slot] = process
        self.send(process)
        self._call()

    def send(self, process: SlotProcess) -> None:
        deployment = self._deployment
        order = control.Join(
            deployment.generation,
            {str(subtask): slot for subtask, slot in deployment.assignment.items()},
            {str(subtask): generation for subtask, generation in deployment.generations.items()},
            deployment.held,
        )
        self._dispatch.send(process.slot, order)

    def lost(self, slot: int, over: bool = False) -> None:
        """A slot was lost: join the others without it. ``over``: it is a spare slot that ends."""
        self._joining.pop(slot, None)
        self._aside.discard(slot)
        if self._joining or over:
            self._call()

    def ready(self, process: SlotProcess, serial: int) -> list[SlotProcess]:
        """A slot has answered ``Connect`` number ``serial``; returns the slots that have joined by that."""
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
        processes = [one for one in table.all() if not table.is_apart(one.slot) and one.slot not in self._aside]
        self._waiting = {process.slot for process in processes}
        peers = control.Connect(self._serial, {str(one.slot): [one.incarnation, one.address] for one in processes})
        for process in processes:
            self._dispatch.send(process.slot, peers)
