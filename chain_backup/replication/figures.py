"""Counters of the standby copies of one slot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicationFigures:
    """Totals of one agent, for metrics.

    ``bytes_received``: of state, from predecessors.
    ``bytes_from_storage``, ``files_from_storage``, ``bases_fetched`` (not among the files): from durable storage.
    ``bytes_kept``: left on the host by a dead process of the slot; ``left_refused``: such files, torn or altered.
    """

    bytes_received: int = 0
    bytes_from_storage: int = 0
    bytes_kept: int = 0
    versions_applied: int = 0
    frames_malformed: int = 0
    files_refused: int = 0
    files_from_storage: int = 0
    left_refused: int = 0
    bases_fetched: int = 0
    offers_fenced: int = 0

    @property
    def copied_bytes(self) -> dict[str, int]:
        """Bytes of state files that the copies took in, by where they came from."""
        return {"received": self.bytes_received, "from_storage": self.bytes_from_storage, "kept": self.bytes_kept}
