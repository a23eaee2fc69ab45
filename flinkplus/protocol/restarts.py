"""How often a job may still be recovered, and how long to wait before that.

Rules: failures of user code tend to come back, so each counts for ``restart_window_ms`` at least, and until a
checkpoint has become complete after it: an input that throws again and again lets none become complete, however long it
takes to come round; exceptions that are rare, and that the job got over, do not add up over the weeks. Losses of slots
count only as long as no checkpoint becomes complete in between, since machines do die in a long run. The first recovery
in a row has no delay, the following ones double it. A corrupt checkpoint costs nothing: each one is tried once.
"""

from __future__ import annotations

from flinkplus.protocol.config import RecoveryConfig
from flinkplus.protocol.effects import FailureKind

USER_FAILURES: tuple[FailureKind, ...] = ("exception", "checkpoint")
SLOT_FAILURES: tuple[FailureKind, ...] = ("slot", "deploy")


class RestartBudget:
    """Counts the failures of one job."""

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self._user_failures_ms: list[int] = []  # those that count; one more than ``max_restarts`` ends the job
        self._got_over = 0  # so many of them, the oldest, have seen a checkpoint become complete
        self._slot_failures = 0
        self._in_a_row = 0

    def spend(self, now_ms: int, kind: FailureKind) -> str | None:
        """Count a failure; says why there may be no further recovery, or None."""
        if kind in USER_FAILURES:
            self._forget_old(now_ms)
            self._user_failures_ms.append(now_ms)
            self._in_a_row += 1
        elif kind in SLOT_FAILURES:
            self._slot_failures += 1
            self._in_a_row += 1
        failures = len(self._user_failures_ms)
        if failures > self._config.max_restarts:
            return f"failure {failures}, and max_restarts is {self._config.max_restarts}"
        if self._slot_failures > self._config.max_slot_losses:
            return (
                f"slot loss {self._slot_failures} without a complete checkpoint in between, "
                f"and max_slot_losses is {self._config.max_slot_losses}"
            )
        return None

    def _forget_old(self, now_ms: int) -> None:
        window_ms = self._config.restart_window_ms
        if window_ms is None:
            return
        over = self._user_failures_ms[: self._got_over]
        old = sum(1 for failed_ms in over if now_ms - failed_ms >= window_ms)
        del self._user_failures_ms[:old]
        self._got_over -= old

    def on_progress(self) -> None:
        """A checkpoint became complete."""
        self._slot_failures = self._in_a_row = 0
        self._got_over = len(self._user_failures_ms)

    def delay_ms(self) -> int:
        """How long to wait before the recovery from the failure counted last."""
        if self._in_a_row <= 1:
            return 0
        return int(min(self._config.backoff_first_ms * 2 ** min(self._in_a_row - 2, 30), self._config.backoff_max_ms))
