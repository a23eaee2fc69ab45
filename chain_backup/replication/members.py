"""What one slot knows of each chain that it is in."""

from __future__ import annotations

from dataclasses import dataclass

from chain_backup.replication.replica import Replica
from chain_backup.replication.transfers import Inbound, Partial
from flinkplus.protocol.snapshot.files import StateFile

Formation = tuple[int, tuple[int, ...]]
"""Generation, and members, head first."""


@dataclass(slots=True, eq=False)
class Member:
    """This slot as a member of the chain of one subtask: what it knows and has of it.

    The agent writes ``generation`` and ``members`` of the chain; ``active``: the generation in which the subtask runs
    here; ``fenced``: the newest generation that was retired here.

    The sender writes ``successor_staged`` and ``refused``: the newest versions that the successor holds or cannot take.

    The receiver writes ``reported``: generation and number of the last version reported as staged; ``inbound`` and
    ``partial``: the version and the file that are arriving; ``fetching``: the file that is being fetched or checked.
    """

    subtask: str
    slot: int
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

    @property
    def successor(self) -> int | None:
        return self._neighbour(1)

    @property
    def predecessor(self) -> int | None:
        return self._neighbour(-1)

    def _neighbour(self, distance: int) -> int | None:
        if self.slot not in self.members:
            return None
        place = self.members.index(self.slot) + distance
        return self.members[place] if 0 <= place < len(self.members) else None

    @property
    def arriving(self) -> tuple[StateFile, ...]:
        """The files of the version that is arriving."""
        return () if self.inbound is None else self.inbound.needed
