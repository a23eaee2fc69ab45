"""Who holds which slot: registrations, by incarnation.

Rules and invariants: the incarnations of a slot only rise; at most one holds it; what an older one does or suffers
after that has no effect.
"""

from __future__ import annotations

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.ids import invariant


class SlotTable:
    """The slots 0 .. ``slots`` - 1 of one job."""

    def __init__(self, slots: int) -> None:
        invariant(slots >= 1, "a job needs at least one slot", slots=slots)
        self._holders: list[int | None] = [None] * slots
        self._newest = [0] * slots

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, slot: int) -> int | None:
        """The incarnation that holds ``slot``. Raises ``PeerProtocolError`` for a slot that does not exist."""
        if not 0 <= slot < len(self._holders):
            raise PeerProtocolError(f"slot {slot} does not exist; there are {len(self._holders)}")
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
        return tuple(slot for slot, holder in enumerate(self._holders) if holder is None)

    @property
    def held(self) -> bool:
        """Whether any slot is held."""
        return any(holder is not None for holder in self._holders)
