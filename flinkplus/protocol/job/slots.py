"""Who holds which slot: registrations, by incarnation.

There are the slots that a deployment needs, and *spare* ones, which come and go, and which nobody waits for.

Rules and invariants: the incarnations of a slot only rise; at most one holds it; what an older one does or suffers
after that has no effect.
"""

from __future__ import annotations

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.ids import invariant


class SlotTable:
    """The slots 0 .. ``slots`` - 1 of one job."""

    def __init__(self, slots: int) -> None:
        invariant(slots >= 1, "a job needs at least one slot", slots=slots)
        self._slots = slots
        self._holders: dict[int, int | None] = dict.fromkeys(range(slots))
        self._newest = dict.fromkeys(range(slots), 0)

    def __len__(self) -> int:
        """The spare ones not counted."""
        return self._slots

    def add(self, slot: int) -> None:
        """There is a spare slot more."""
        invariant(slot >= self._slots, "a spare slot has a number of its own", slot=slot)
        self._holders.setdefault(slot, None)
        self._newest.setdefault(slot, 0)

    def take_away(self, slot: int) -> None:
        """A spare slot is none any more."""
        invariant(slot >= self._slots, "only spare slots are taken away", slot=slot)
        self._holders.pop(slot, None)
        self._newest.pop(slot, None)

    def is_spare(self, slot: int) -> bool:
        """Whether nobody waits for ``slot``."""
        return slot >= self._slots

    def holder(self, slot: int) -> int | None:
        """The incarnation that holds ``slot``. Raises ``PeerProtocolError`` for a slot that does not exist."""
        if slot not in self._holders:
            raise PeerProtocolError(f"slot {slot} does not exist; the job has {len(self._holders)}")
        return self._holders[slot]

    def register(self, slot: int, incarnation: int) -> bool:
        """Give ``slot`` to ``incarnation``, whoever held it; false when it is not newer than all before."""
        self.holder(slot)
        if incarnation <= self._newest[slot]:
            return False
        self._holders[slot] = self._newest[slot] = incarnation
        return True

    def release(self, slot: int) -> None:
        self._holders[slot] = None

    @property
    def missing(self) -> tuple[int, ...]:
        """The spare ones not counted."""
        return tuple(slot for slot in range(self._slots) if self._holders[slot] is None)

    @property
    def held(self) -> bool:
        """Whether any slot is held."""
        return any(holder is not None for holder in self._holders.values())
