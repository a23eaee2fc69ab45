"""Registrations of slots, by incarnation. A deployment waits for its *needed* slots, and not for *spare* ones.

Rules and invariants: the incarnations of a slot only rise; at most one holds it; events of an older one have no effect.
"""

from __future__ import annotations

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.ids import invariant


class SlotTable:
    """The slots of one job: the needed ones, at first 0 .. ``slots`` - 1, and its spare slots."""

    def __init__(self, slots: int) -> None:
        invariant(slots >= 1, "a job needs at least one slot", slots=slots)
        self._needed = tuple(range(slots))
        self._holders: dict[int, int | None] = dict.fromkeys(self._needed)
        self._newest = dict.fromkeys(self._needed, 0)

    @property
    def needed(self) -> tuple[int, ...]:
        """All slots, without spare ones."""
        return self._needed

    def need(self, slots: tuple[int, ...]) -> None:
        """From now on ``slots`` are needed, and all others spare."""
        self.check_needed(slots)
        self._needed = slots

    def check_needed(self, slots: tuple[int, ...]) -> None:
        known = bool(slots) and len(set(slots)) == len(slots) and all(slot in self._holders for slot in slots)
        invariant(known, "a job needs slots that it has, each once", slots=slots)

    def add(self, slot: int) -> None:
        """Add a spare slot."""
        invariant(slot >= 0 and slot not in self._needed, "a spare slot has a number of its own", slot=slot)
        self._holders.setdefault(slot, None)
        self._newest.setdefault(slot, 0)

    def take_away(self, slot: int) -> None:
        """Remove a spare slot."""
        invariant(slot not in self._needed, "only spare slots are removed", slot=slot)
        self._holders.pop(slot, None)
        self._newest.pop(slot, None)

    def is_spare(self, slot: int) -> bool:
        return slot not in self._needed

    def holder(self, slot: int) -> int | None:
        """The incarnation that holds ``slot``. Raises ``PeerProtocolError`` for a slot that does not exist."""
        if slot not in self._holders:
            raise PeerProtocolError(f"slot {slot} does not exist; the job has {len(self._holders)}")
        return self._holders[slot]

    def register(self, slot: int, incarnation: int) -> bool:
        """Assign ``slot`` to ``incarnation``; false, with no effect, if that is not newer than all before."""
        self.holder(slot)
        if incarnation <= self._newest[slot]:
            return False
        self._holders[slot] = self._newest[slot] = incarnation
        return True

    def release(self, slot: int) -> None:
        self._holders[slot] = None

    @property
    def missing(self) -> tuple[int, ...]:
        """The slots without a process, spare ones not counted."""
        return tuple(slot for slot in self._needed if self._holders[slot] is None)

    @property
    def held(self) -> bool:
        """Whether any slot has a process."""
        return any(holder is not None for holder in self._holders.values())
