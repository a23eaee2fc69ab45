"""How many recoveries a job has left, and the delay before each.

One *recovery* counts once, with all failures in it. A failure is part of the last counted recovery when both hold:

- The failed subtask was running when that recovery began: its generation is not newer than the newest one then. A
  subtask that the recovery started, and that fails again, is a failure of its own.
- The recovery has not ended, or its *moment* has not. It ends when all subtasks run again and no slot is missing; it
  waits for a missing slot as long as a rollback does (``restart_slot_timeout_ms``). Its moment ends ``same_moment_ms``
  after the delay of a rollback.

So an outage in which many subtasks raise exceptions costs a job with local failover no more than one that rolls back,
which halts all subtasks at the first exception. A local failover that ends in a rollback is one recovery, too.

Other rules. Failures of user code tend to recur, so each counts for at least ``restart_window_ms``, and until a
checkpoint has become complete after it: an input that fails each time prevents that. Losses of slots count only until a
checkpoint becomes complete, since hosts do die in a long run. The first of several recoveries in a row has no delay;
each further one doubles it. A corrupt checkpoint costs nothing: each one is tried once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flinkplus.protocol.vocabulary.config import RecoveryConfig
from flinkplus.protocol.vocabulary.ids import Generation
from flinkplus.protocol.vocabulary.phases import FailureKind

USER_FAILURES: tuple[FailureKind, ...] = ("exception", "checkpoint")
SLOT_FAILURES: tuple[FailureKind, ...] = ("slot", "deploy")


@dataclass(frozen=True, slots=True)
class _Recovery:
    """A counted recovery.

    ``newest``: the newest generation when it began.
    ``moment_until_ms``: the end of its moment; ``None`` while the job rolls back.
    """

    began_ms: int
    kind: FailureKind
    newest: Generation
    moment_until_ms: int | None

    def has_moment(self, now_ms: int) -> bool:
        """Whether its moment has not ended."""
        return self.moment_until_ms is None or now_ms < self.moment_until_ms


class RestartBudget:
    """Counts the recoveries of one job."""

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self._user_failures_ms: list[int] = []  # those that count; one more than ``max_restarts`` ends the job
        self._got_over = 0  # number of them, the oldest, after which a checkpoint became complete
        self._slot_failures = 0
        self._in_a_row = 0
        self._last: _Recovery | None = None

    def is_counted(self, now_ms: int, generation: Generation, under_way: bool, slot_missing: bool) -> bool:
        """Whether a failure in ``generation`` is part of the last counted recovery.

        ``under_way``: whether subtasks of that recovery do not run yet.
        ``slot_missing``: whether a slot has not registered again.
        """
        last = self._last
        if last is None or generation > last.newest:
            return False
        is_waited_for = slot_missing and now_ms - last.began_ms < self._config.restart_slot_timeout_ms
        return under_way or is_waited_for or last.has_moment(now_ms)

    def spend(self, now_ms: int, kind: FailureKind, newest: Generation) -> str | None:
        """Count a recovery that begins now; ``newest``: the newest running generation. Returns why the limit is
        exceeded, or None."""
        if kind in USER_FAILURES:
            self._forget_old(now_ms)
            self._user_failures_ms.append(now_ms)
            self._in_a_row += 1
        elif kind in SLOT_FAILURES:
            self._slot_failures += 1
            self._in_a_row += 1
        self._last = _Recovery(now_ms, kind, newest, now_ms + self.delay_ms() + self._config.same_moment_ms)
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

    def rolls_back(self) -> None:
        """The job is interrupted: until it runs again, a complete checkpoint does not prove that the failure ended."""
        if self._last is not None:
            self._last = replace(self._last, moment_until_ms=None)

    def runs_again(self) -> None:
        """The job was deployed: later failures count separately, and complete checkpoints are progress."""
        self._last = None

    def on_progress(self, now_ms: int) -> None:
        """A checkpoint became complete. In the moment of an exception, it had begun before, and proves nothing."""
        self._slot_failures = 0
        last = self._last
        if last is None or last.kind in SLOT_FAILURES or not last.has_moment(now_ms):
            self._in_a_row = 0
            self._got_over = len(self._user_failures_ms)

    def delay_ms(self) -> int:
        """Delay of the recovery from the failure counted last."""
        if self._in_a_row <= 1:
            return 0
        return int(min(self._config.backoff_first_ms * 2 ** min(self._in_a_row - 2, 30), self._config.backoff_max_ms))
