"""The coordinator's table of slots: which process of each is registered, and on which connection.

Beside the slots that the job began with there are *spare* ones, which come and go; one that is over does not come back.

Rules: a slot has at most one living incarnation here; a newer registration replaces an older one, whose connection is
closed. What comes on a connection that is not current is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flinkplus.errors import PeerProtocolError
from flinkplus.runtime.control import messages as control


@dataclass
class SlotProcess:
    """The registered process of a slot, one incarnation of it. ``heard_s``: when its last message came (monotonic
    clock); ``created_s``: see ``control.Register``."""

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
    """All slots of the job, and the process of each that is registered."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._over: set[int] = set()
        self._processes: dict[int, SlotProcess] = {}
        self._by_connection: dict[int, int] = {}
        self._incarnations: dict[int, int] = dict.fromkeys(range(slots), 0)
        self._attempts: dict[int, int] = {}

    def add(self, slot: int) -> None:
        """The job has another spare slot."""
        self._incarnations[slot] = 0

    def end(self, slot: int) -> None:
        """A spare slot is over: no further process of it may register."""
        self._over.add(slot)

    def is_over(self, slot: int) -> bool:
        """Whether ``slot`` was a spare one that is over, or about to be."""
        return slot in self._over

    def is_superseded(self, register: control.Register) -> bool:
        """Whether a later attempt of the slot's Spark task than the one that registers has registered before."""
        return register.spark_attempt < self._attempts.get(register.slot, 0)

    def is_spare(self, slot: int) -> bool:
        return slot >= self.slots

    @property
    def numbers(self) -> list[int]:
        """All slots, ascending; without spare ones that are over."""
        return [slot for slot in sorted(self._incarnations) if slot not in self._over]

    def register(self, connection: int, register: control.Register, now_s: float) -> SlotProcess:
        """The new process of a slot. Raises ``PeerProtocolError`` for a slot that the job does not have."""
        if register.slot not in self._incarnations or register.slot in self._over:
            spare = "".join(f", {slot}" for slot in self.numbers[self.slots :])
            raise PeerProtocolError(
                f"slot {register.slot} registered, but the job has slots 0 to {self.slots - 1}{spare}"
            )
        self.remove(register.slot)
        self._incarnations[register.slot] += 1
        self._attempts[register.slot] = register.spark_attempt
        process = SlotProcess(
            register.slot,
            self._incarnations[register.slot],
            connection,
            register.pid,
            register.host,
            register.address,
            now_s,
            register.lifeline,
            register.pulse,
            register.created_s,
        )
        self._processes[register.slot] = process
        self._by_connection[connection] = register.slot
        return process

    def remove(self, slot: int) -> SlotProcess | None:
        """Take a slot off the table."""
        process = self._processes.pop(slot, None)
        if process is not None:
            del self._by_connection[process.connection]
        return process

    def on(self, connection: int) -> SlotProcess | None:
        """The process on a connection, ``None`` for one that is not current."""
        slot = self._by_connection.get(connection)
        return None if slot is None else self._processes[slot]

    def with_lifeline(self, name: str) -> SlotProcess | None:
        """The process whose lifeline has this name."""
        return next((process for process in self._processes.values() if process.lifeline == name), None)

    def get(self, slot: int) -> SlotProcess | None:
        return self._processes.get(slot)

    def all(self) -> list[SlotProcess]:
        """The registered processes, by slot. Any thread may ask."""
        return [process for _, process in sorted(list(self._processes.items()), key=lambda item: item[0])]

    def needed(self) -> list[SlotProcess]:
        """The registered processes that a deployment is made on: all but the spare ones."""
        return [process for process in self.all() if not self.is_spare(process.slot)]

    def addresses(self) -> dict[str, list[Any]]:
        """Slot -> [incarnation, address], as control messages have it, of ``needed``."""
        return {str(process.slot): [process.incarnation, process.address] for process in self.needed()}

    def silent_since(self, before_s: float) -> list[SlotProcess]:
        """The processes that have not been heard of since ``before_s``."""
        silent = [process for process in self._processes.values() if process.heard_s < before_s]
        return sorted(silent, key=lambda process: process.slot)

    def all_heard(self, now_s: float) -> None:
        """Count every process as heard of now."""
        for process in self._processes.values():
            process.heard_s = now_s

    @property
    def incarnations(self) -> dict[int, int]:
        """How many processes of each slot have registered."""
        return dict(self._incarnations)

    @property
    def restarts(self) -> int:
        """Registrations beyond the first of each slot."""
        return sum(max(0, count - 1) for count in list(self._incarnations.values()))
