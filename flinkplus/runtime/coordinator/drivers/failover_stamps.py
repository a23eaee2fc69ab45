"""The phases of the current failover or handover, in the logs and in the recovery log; counts of all.

Rules: only the coordinator's thread calls this; any thread may read ``counts`` and ``fallback_reasons``.
"""

from __future__ import annotations

import logging
from collections import deque

from chain_backup.failover import effects
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.coordinator.dispatch.dispatch import Dispatch
from flinkplus.runtime.coordinator.record.recovery_times import HANDOVER, STANDBY, RecoveryLog

KEPT_REASONS = 100
log = logging.getLogger("flinkplus.coordinator")


class FailoverStamps:
    """Stamps the phases of failovers. ``mode``: their mode in the recovery log."""

    def __init__(self, dispatch: Dispatch, recoveries: RecoveryLog, mode: str = STANDBY) -> None:
        self.mode = mode
        self.counts = {"failovers": 0, "handovers": 0, "fallbacks": 0}
        self.fallback_reasons: deque[str] = deque(maxlen=KEPT_REASONS)
        self._dispatch = dispatch
        self._recoveries = recoveries
        self._promoted_s = 0.0
        self._under_way: effects.RecordFailoverPhase | None = None
        self._writing = (0, 0.0)  # the newest attempt whose records were ordered, and when

    def entered(self, effect: effects.RecordFailoverPhase, generation: Generation) -> None:
        """A failover or handover entered a phase."""
        self._under_way = effect
        entered_s = self._dispatch.clock.time()
        if effect.phase == "detect":
            entered_s = self._dispatch.event_s
        elif effect.phase == "replay" and self._promoted_s:
            entered_s = min(entered_s, self._promoted_s)
        names, moved = [str(subtask) for subtask in effect.subtasks], [str(subtask) for subtask in effect.moved]
        fields = about(subtask=", ".join(names), generation=generation, phase=effect.phase)
        what = "handover" if effect.kind == HANDOVER else "failover"
        log.info("%s %d, %s: %s", what, effect.number, effect.phase, effect.reason, extra=fields)
        self._recoveries.entered(
            self.mode, effect.number, effect.phase, effect.kind, names, effect.reason, entered_s, moved
        )

    def writing(self, attempt: int) -> None:
        self._writing = (attempt, self._dispatch.clock.monotonic())

    def written(self, attempt: int) -> None:
        newest, ordered_s = self._writing
        if self._under_way is not None and attempt == newest:
            self._recoveries.recorded(self._under_way.number, (self._dispatch.clock.monotonic() - ordered_s) * 1e3)

    def fencing(self) -> None:
        """A new attempt fences the slots: earlier promotions no longer count."""
        self._promoted_s = 0.0

    def restoring(self, effect: effects.PromoteStandbys) -> None:
        """A slot is ordered to promote its standbys."""
        self._recoveries.restored_from(min(version for _, version in effect.subtasks) or None)

    def promoted(self, restore_ms: float, time_s: float) -> None:
        self._recoveries.restored(restore_ms)
        self._promoted_s = max(self._promoted_s, time_s)

    def finished(self) -> None:
        last, self._under_way = self._under_way, None
        if last is None:
            return
        log.info("failover finished: all subtasks are running", extra=about(phase="replay"))
        if last.phase == "replay":
            self.counts["handovers" if last.kind == HANDOVER else "failovers"] += 1
        else:
            self._recoveries.called_off(last.number)

    def fell_back(self, reason: str) -> None:
        """The current failover falls back to a rollback of the whole job."""
        last, self._under_way = self._under_way, None
        self._recoveries.refused(None if last is None else last.number, reason)
        log.warning("the whole job rolls back: %s", reason, extra=about(phase="fallback"))
        self.counts["fallbacks"] += 1
        self.fallback_reasons.append(reason)

    def reset(self) -> None:
        """A rollback or the end of the job begins."""
        self._under_way = None

    def mark_of(self, subtask: SubtaskId) -> int | None:
        """Rows emitted before the failure: further ones are new. ``None`` for a standby, which knows by its input."""
        return None if self.mode == STANDBY else self._recoveries.marks.get(str(subtask), 0)
