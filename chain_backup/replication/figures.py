"""What the standby copies of one slot count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicationFigures:
    """Totals of one agent, for metrics.

    Bytes and files of state: ``bytes_received``: from predecessors; ``bytes_from_storage``, ``files_from_storage`` and
    ``bases_fetched`` (not among the files): from durable storage; ``bytes_kept``: found on the host, left by a dead
    process of the slot; ``left_refused``: files that it had left, and that were torn or altered.
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
