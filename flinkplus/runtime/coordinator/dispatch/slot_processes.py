"""The coordinator's table of slots: which process of each is registered, and on which connection.

Rules: a newer registration of a slot replaces an older one, whose connection is closed. Messages on a connection that
is not current are ignored. The numbers of spare slots are never reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flinkplus.errors import PeerProtocolError
from flinkplus.runtime.control import messages as control


@dataclass
class SlotProcess:
    """The registered process of a slot.

    ``heard_s``: when its last message arrived (monotonic clock).
    ``lifeline``, ``pulse``, ``created_s``: see ``control.Register``.
    """

    slot: int
    incarnation: int
    connection: int
    pid: int
    host: str
    address: str
    heard_s: float
    lifeline: str = ""
    pulse: str = ""
    created_s: float = 0.0


class SlotProcesses:
    """All slots of the job, and their registered processes. ``slots``: number of needed slots at the start."""

    def __init__(self, slots: int) -> None:
        self.own = tuple(range(slots))
        """The needed slots, ascending: those that a deployment uses."""
        self._over: set[int] = set()
        self._reserved: set[int] = set()
        self._leaving: set[int] = set()
        self._processes: dict[int, SlotProcess] = {}
        self._by_connection: dict[int, int] = {}
        self._incarnations: dict[int, int] = dict.fromkeys(range(slots), 0)
        self._attempts: dict[int, int] = {}

    def add(self, reserved: bool = False) -> int:
        """A new spare slot: its number. ``reserved``: it takes no part in the job until it is needed."""
        slot = max(self._incarnations) + 1
        self._incarnations[slot] = 0
        if reserved:
            self._reserved.add(slot)
        return slot

    def need(self, slots: tuple[int, ...]) -> None:
        """From now on ``slots`` are needed. Those that are no longer needed are about to end; all others are spare."""
        self._leaving.update(set(self.own).difference(slots))
        self.own = slots
        self._reserved.difference_update(slots)

    def end(self, slot: int) -> None:
        """End a spare slot: no further process of it may register."""
        self._over.add(slot)
        self._reserved.discard(slot)
        self._leaving.discard(slot)

    def is_apart(self, slot: int) -> bool:
        """Whether ``slot`` takes no part in the job: it has ended, is ending, or is reserved."""
        return slot in self._over or slot in self._reserved

    def is_over(self, slot: int) -> bool:
        """Whether ``slot`` is a spare slot that has ended or is ending."""
        return slot in self._over

    def is_superseded(self, register: control.Register) -> bool:
        """Whether a later attempt of the slot's Spark task has already registered."""
        return register.spark_attempt < self._attempts.get(register.slot, 0)

    @property
    def is_alone(self) -> bool:
        """Whether a deployment has one slot, and there is no spare one beside it, nor one that is starting."""
        return len(self.own) == 1 and not set(self.numbers).difference(self.own, self._reserved, self._leaving)

    def is_spare(self, slot: int) -> bool:
        return slot not in self.own

    @property
    def numbers(self) -> list[int]:
        """All slots that have not ended, ascending."""
        return [slot for slot in sorted(self._incarnations) if slot not in self._over]

    def register(self, connection: int, register: control.Register, now_s: float) -> SlotProcess:
        """Add the new process of a slot. Raises ``PeerProtocolError`` for a slot that the job does not have."""
        slot = register.slot
        if slot not in self._incarnations or slot in self._over:
            known = ", ".join(map(str, self.numbers))
            raise PeerProtocolError(f"slot {slot} registered, but the job has only slots {known}")
        self.remove(slot)
        self._incarnations[slot] += 1
        self._attempts[slot] = register.spark_attempt
        process = self._processes[slot] = SlotProcess(
            slot=slot,
            incarnation=self._incarnations[slot],
            connection=connection,
            pid=register.pid,
            host=register.host,
            address=register.address,
            heard_s=now_s,
            lifeline=register.lifeline,
            pulse=register.pulse,
            created_s=register.created_s,
        )
        self._by_connection[connection] = slot
        return process

    def remove(self, slot: int) -> SlotProcess | None:
        """Remove the process of a slot; ``None`` if none is registered."""
        process = self._processes.pop(slot, None)
        if process is not None:
            del self._by_connection[process.connection]
        return process

    def on(self, connection: int) -> SlotProcess | None:
        """The process on a connection; ``None`` for a connection that is not current."""
        slot = self._by_connection.get(connection)
        return None if slot is None else self._processes[slot]

    def with_lifeline(self, name: str) -> SlotProcess | None:
        return next((process for process in self._processes.values() if process.lifeline == name), None)

    def get(self, slot: int) -> SlotProcess | None:
        return self._processes.get(slot)

    def all(self) -> list[SlotProcess]:
        """The registered processes, by slot. Any thread may call."""
        return sorted(list(self._processes.values()), key=lambda process: process.slot)

    def needed(self) -> list[SlotProcess]:
        """The registered processes that a deployment uses: all except for spare ones."""
        return [process for process in self.all() if not self.is_spare(process.slot)]

    def addresses(self) -> dict[str, list[Any]]:
        """Slot -> [incarnation, address] of ``needed``, as in control messages."""
        return {str(process.slot): [process.incarnation, process.address] for process in self.needed()}

    @property
    def incarnations(self) -> dict[int, int]:
        """How many processes of each slot have registered."""
        return dict(self._incarnations)

    @property
    def restarts(self) -> int:
        """Registrations beyond the first of each slot."""
        return sum(max(0, count - 1) for count in list(self._incarnations.values()))
