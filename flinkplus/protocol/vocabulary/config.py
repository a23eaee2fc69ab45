"""The limits of the machines, checked when the configuration is made.

Rules: every wait, retry and queue of the core has a named limit here; times are whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from flinkplus.errors import ConfigurationError


def earliest_ms(*times_ms: int | None) -> int | None:
    """The earliest of these times; ``None`` means never."""
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def _check_at_least(config: object, names: tuple[str, ...], least: int) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int) or value < least):
            raise ConfigurationError(f"{name} is {value!r}; give a whole number of at least {least}")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When checkpoints begin, and the timeouts and retries of their parts."""

    interval_ms: int | None = 1_000
    """From one periodic trigger to the next; None: only requested checkpoints and the last one."""
    timeout_ms: int = 60_000
    """From the trigger until every subtask has acknowledged."""
    aligned_timeout_ms: int | None = None
    """From the trigger until barriers overtake what they wait for (0: at once); None: never."""
    min_pause_ms: int = 0
    """Minimum from the end of one checkpoint to the next periodic trigger, or the next attempt at a last one."""
    max_concurrent: int = 1
    """Maximum number of pending checkpoints, not counting the last one."""
    retained: int = 3
    """Number of complete checkpoints that are kept."""
    max_uncommitted: int = 8
    """Maximum number of complete checkpoints with uncommitted output; only the last one is triggered beyond it."""
    commit_attempts: int = 5
    commit_retry_ms: int = 200
    """From a failed commit to its next attempt."""
    storage_timeout_ms: int = 120_000
    """Timeout for storing one manifest, after which it is abandoned. A commit that takes longer is reported, and does
    not end a running job."""
    sweep_every: int = 8
    """Complete checkpoints from one removal of unused state files to the next."""
    final_attempts: int = 10
    """Maximum number of consecutive failures of the last checkpoint in one generation."""
    final_retry_ms: int = 500
    """From a failed last checkpoint to the next attempt, so that a short outage does not use up all attempts."""
    in_flight_slot_bytes: int = 64 << 20
    """Maximum channel state in the snapshots of one subtask index, which a deployment puts on one slot."""
    in_flight_job_bytes: int = 256 << 20
    """Maximum channel state in all snapshots of a checkpoint."""
    recipes: bool = False
    """Whether the job has sinks whose rows are visible at once."""

    def __post_init__(self) -> None:
        _check_at_least(self, tuple(field.name for field in fields(self) if field.name != "recipes"), 0)
        counts = ("max_concurrent", "retained", "max_uncommitted", "commit_attempts", "final_attempts", "sweep_every")
        _check_at_least(self, ("interval_ms", "timeout_ms", "storage_timeout_ms", *counts), 1)


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """How often recovery is tried before the job fails, and its delays and timeouts."""

    max_restarts: int = 3
    """Maximum number of failures of user code (and of last checkpoints) in ``restart_window_ms``; one more ends the
    job."""
    restart_window_ms: int | None = 600_000
    """How long a failure counts at least; it also counts until a later checkpoint is complete. None: forever."""
    max_slot_losses: int = 10
    """Maximum number of slots lost or evicted without a complete checkpoint in between; one more ends the job."""
    same_moment_ms: int = 1_000
    """From the start of a local recovery (plus the delay that a rollback would have): a subtask that was running then
    and fails within this time is part of that recovery."""
    max_start_failures: int = 2
    """Maximum number of consecutive failed starts of one slot before the job has begun; one more ends the job."""
    slot_timeout_ms: int = 60_000
    """Timeout for all slots to register at the start."""
    restart_slot_timeout_ms: int = 60_000
    """Timeout for all slots to register again in a recovery."""
    deploy_timeout_ms: int = 120_000
    """Timeout for all slots to restore; late slots are evicted."""
    backoff_first_ms: int = 500
    """Delay of the second consecutive recovery without a complete checkpoint in between (the first has none)."""
    backoff_max_ms: int = 30_000
    """Maximum of the delay, which doubles each time."""
    quiesce_timeout_ms: int = 300_000
    """In a rollback or at the end of the job: timeout for manifests and commits in flight, and to retract output."""
    stop_timeout_ms: int = 10_000
    """Timeout for slots to stop at the end."""

    def __post_init__(self) -> None:
        _check_at_least(self, tuple(field.name for field in fields(self)), 0)
        _check_at_least(self, ("restart_window_ms",), 1)
        times = ("slot_timeout_ms", "restart_slot_timeout_ms", "deploy_timeout_ms", "quiesce_timeout_ms")
        _check_at_least(self, (*times, "stop_timeout_ms"), 1)
