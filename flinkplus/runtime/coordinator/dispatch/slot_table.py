"""The coordinator's table of slots: who is registered, on which connection, in which incarnation.

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
class Member:
    """One registered slot. ``heard_s``: when its last message came (monotonic clock); ``created_s``: see
    ``control.Register``."""

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


class Members:
    """All slots of the job."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._over: set[int] = set()
        self._members: dict[int, Member] = {}
        self._by_connection: dict[int, int] = {}
        self._incarnations: dict[int, int] = dict.fromkeys(range(slots), 0)
        self._attempts: dict[int, int] = {}

    def add(self, slot: int) -> None:
        """There is a spare slot more."""
        self._incarnations[slot] = 0

    def end(self, slot: int) -> None:
        """A spare slot is over: no other process of it is let in."""
        self._over.add(slot)

    def is_over(self, slot: int) -> bool:
        """Whether ``slot`` was a spare one that is over, or about to be."""
        return slot in self._over

    def is_superseded(self, register: control.Register) -> bool:
        """Whether the slot is in the hands of a later attempt of its Spark task than the one that registers."""
        return register.spark_attempt < self._attempts.get(register.slot, 0)

    def is_spare(self, slot: int) -> bool:
        return slot >= self.slots

    @property
    def numbers(self) -> list[int]:
        """All slots, ascending; without spare ones that are over."""
        return [slot for slot in sorted(self._incarnations) if slot not in self._over]

    def register(self, connection: int, register: control.Register, now_s: float) -> tuple[Member, Member | None]:
        """The new member, and the one it replaces (which is to be dropped), if any.

        Raises ``PeerProtocolError`` for a slot that the job does not have.
        """
        if register.slot not in self._incarnations or register.slot in self._over:
            spare = "".join(f", {slot}" for slot in self.numbers[self.slots :])
            raise PeerProtocolError(
                f"slot {register.slot} registered, but the job has slots 0 to {self.slots - 1}{spare}"
            )
        old = self.remove(register.slot)
        self._incarnations[register.slot] += 1
        self._attempts[register.slot] = register.spark_attempt
        member = Member(
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
        self._members[register.slot] = member
        self._by_connection[connection] = register.slot
        return member, old

    def remove(self, slot: int) -> Member | None:
        """Take a slot off the table."""
        member = self._members.pop(slot, None)
        if member is not None:
            del self._by_connection[member.connection]
        return member

    def on(self, connection: int) -> Member | None:
        """The member on a connection, ``None`` for one that is not current."""
        slot = self._by_connection.get(connection)
        return None if slot is None else self._members[slot]

    def with_lifeline(self, name: str) -> Member | None:
        """The member whose lifeline has this name."""
        return next((member for member in self._members.values() if member.lifeline == name), None)

    def get(self, slot: int) -> Member | None:
        return self._members.get(slot)

    def all(self) -> list[Member]:
        """The registered members, by slot. Any thread may ask."""
        return [member for _, member in sorted(list(self._members.items()), key=lambda item: item[0])]

    def needed(self) -> list[Member]:
        """The registered members that a deployment is made on: all but the spare ones."""
        return [member for member in self.all() if not self.is_spare(member.slot)]

    def addresses(self) -> dict[str, list[Any]]:
        """Slot -> [incarnation, address], as control messages have it, of ``needed``."""
        return {str(member.slot): [member.incarnation, member.address] for member in self.needed()}

    def silent_since(self, before_s: float) -> list[Member]:
        """Members that have not been heard of since ``before_s``."""
        silent = [member for member in self._members.values() if member.heard_s < before_s]
        return sorted(silent, key=lambda member: member.slot)

    def all_heard(self, now_s: float) -> None:
        """Take every member as heard of just now."""
        for member in self._members.values():
            member.heard_s = now_s

    @property
    def incarnations(self) -> dict[int, int]:
        """How many processes of each slot have registered."""
        return dict(self._incarnations)

    @property
    def restarts(self) -> int:
        """Registrations beyond the first of each slot."""
        return sum(max(0, count - 1) for count in list(self._incarnations.values()))
