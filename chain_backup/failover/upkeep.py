"""Upkeep of the chains while no subtask fails: members join and leave until each chain is as planned, and what no
recovery line can need is trimmed.

Rules:

- A slot that joins, new or again, becomes the tail of the chains that it is planned for, when no failover is under way.
- *Spare* slots, which are unknown at the start, join in the same way; no subtask waits for them. A spare slot that is
  to retire is drained like a host, and leaves the job when it holds nothing.
- Surplus members leave when the planned ones have what is complete.

Invariant: after ``settle`` every chain has all members that ``plans`` ask for and that live.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from chain_backup.failover.chains import ChainTable
from chain_backup.failover.effects import FailoverEffect, MoveReported, TrimLogs
from chain_backup.failover.placement import PlacementError
from chain_backup.failover.plans import Plans


class ChainUpkeep:
    """Brings the chains of ``table`` to what ``plans`` say."""

    def __init__(self, table: ChainTable, plans: Plans) -> None:
        self._table = table
        self._plans = plans

    def join(self, slot: int, host: str) -> bool:
        """``slot`` is alive on ``host``; False when it was already, or has retired."""
        if self._table.is_alive(slot) or self._plans.is_retired(slot):
            return False
        with contextlib.suppress(PlacementError):  # the user's own strategy: the next deployment raises it
            self._plans.hosted({slot: host})
        self.replan(())
        self._table.join(slot)
        return True

    def replan(self, reports: Iterable[MoveReported]) -> list[FailoverEffect]:
        """The plans have changed, as ``reports`` say; members move when ``settle`` is called."""
        self._table.replan(self._plans.of)
        return [*reports]

    def settle(self) -> list[FailoverEffect]:
        """No failover is under way: bring all chains to full strength, and to the plans."""
        self._table.replenish()
        self._table.thin_out(self._plans.hasty)
        return self._table.publish() + self.trim()

    def trim(self) -> list[FailoverEffect]:
        """Trim what no line can need. Not during a failover that slots know of: its line may be any version since the
        last trim."""
        trimmed = self._table.trim()
        return [] if trimmed is None else [TrimLogs(trimmed)]

    def report(self) -> list[MoveReported]:
        """No failover is under way: the requests that are done, or have news. Slots that have retired leave."""
        reports = self._plans.progress(self._table)
        self._table.keep(self._plans.slots)
        return reports
