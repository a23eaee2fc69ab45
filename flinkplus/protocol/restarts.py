"""How often a job may still be recovered, and how long to wait before that.

Rules: failures of user code are counted in total, since they tend to come back; losses of slots only as long as no
checkpoint becomes complete in between, since machines do die in a long run. The first recovery in a row has no delay,
the following ones double it. A corrupt checkpoint costs nothing: each one is tried once.
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
        self._user_failures = 0
        self._slot_failures = 0
        self._in_a_row = 0

    def spend(self, kind: FailureKind) -> str | None:
        """Count a failure; says why there may be no further recovery, or None."""
        if kind in USER_FAILURES:
            self._user_failures += 1
            self._in_a_row += 1
        elif kind in SLOT_FAILURES:
            self._slot_failures += 1
            self._in_a_row += 1
        if self._user_failures > self._config.max_restarts:
            return f"failure {self._user_failures}, and max_restarts is {self._config.max_restarts}"
        if self._slot_failures > self._config.max_slot_losses:
            return (
                f"slot loss {self._slot_failures} without a complete checkpoint in between, "
                f"and max_slot_losses is {self._config.max_slot_losses}"
            )
        return None

    def on_progress(self) -> None:
        """A checkpoint became complete."""
        self._slot_failures = self._in_a_row = 0

    def delay_ms(self) -> int:
        """How long to wait before the recovery from the failure counted last."""
        if self._in_a_row <= 1:
            return 0
        return int(min(self._config.backoff_first_ms * 2 ** min(self._in_a_row - 2, 30), self._config.backoff_max_ms))
