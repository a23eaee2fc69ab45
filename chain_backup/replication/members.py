"""What one slot knows of each chain that it is in."""

from __future__ import annotations

from dataclasses import dataclass

from chain_backup.replication.replica import Replica
from chain_backup.replication.transfers import Inbound, Partial
from flinkplus.state.delta import StateFile

Formation = tuple[int, tuple[int, ...]]
"""Generation, and members, head first."""


@dataclass(slots=True, eq=False)
class Member:
    """This slot as a member of the chain of one subtask: what it knows and has of it.

    ``active``: generation in which the subtask runs here. ``successor_staged``: the newest version that the successor
    is known to hold; ``refused``: one that it cannot take. ``fenced``: the newest generation that was retired here.
    ``fetching``: what is on its way from durable storage, or being checked after a dead process left it.
    """

    subtask: str
    replica: Replica
    generation: int = 0
    members: tuple[int, ...] = ()
    active: int | None = None
    fenced: int = -1
    successor_staged: int = 0
    refused: int = 0
    reported: tuple[int, int] = (0, 0)
    inbound: Inbound | None = None
    partial: Partial | None = None
    fetching: StateFile | None = None

    def neighbour(self, slot: int, distance: int) -> int | None:
        """The member ``distance`` places behind ``slot`` in the chain."""
        if slot not in self.members:
            return None
        place = self.members.index(slot) + distance
        return self.members[place] if 0 <= place < len(self.members) else None
