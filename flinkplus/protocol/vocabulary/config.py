"""The limits of the machines, checked when they are given.

Rules: every wait, retry and queue of the core has its limit here, by name; times are whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from flinkplus.errors import ConfigurationError


def earliest_ms(*times_ms: int | None) -> int | None:
    """The first of these times; ``None`` stands for never."""
    found = None
    for time_ms in times_ms:
        if time_ms is not None and (found is None or time_ms < found):
            found = time_ms
    return found


def _check_at_least(config: object, names: tuple[str, ...], least: int) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int) or value < least):
            raise ConfigurationError(f"{name} is {value!r}; give a whole number of at least {least}")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When checkpoints begin, and how long and how often anything about them is tried."""

    interval_ms: int | None = 1_000
    """From one periodic trigger to the next; None: none but requested ones and the last one."""
    timeout_ms: int = 60_000
    """From the trigger until every subtask has acknowledged."""
    aligned_timeout_ms: int | None = None
    """From the trigger until barriers overtake what they wait for (0: at once); None: never."""
    min_pause_ms: int = 0
    """From the end of one checkpoint to the next periodic trigger, and to the next attempt at a last one."""
    max_concurrent: int = 1
    """Pending checkpoints beyond which no other is triggered (but the last one)."""
    retained: int = 3
    """Complete checkpoints that are kept."""
    max_uncommitted: int = 8
    """Complete checkpoints with uncommitted output beyond which no other is triggered (but the last one)."""
    commit_attempts: int = 5
    commit_retry_ms: int = 200
    """From a failed commit to its next attempt."""
    storage_timeout_ms: int = 120_000
    """Timeout for storing one manifest; after it the manifest is abandoned. A commit that takes longer is reported, and
    does not end a job that runs."""
    sweep_every: int = 8
    """Complete checkpoints from one removal of unused state files to the next."""
    final_attempts: int = 10
    """Last checkpoints that may fail, one after the other, in one generation."""
    final_retry_ms: int = 500
    """From a failed last checkpoint to the next attempt at one: a short outage must not use them up."""
    in_flight_slot_bytes: int = 64 << 20
    """Of messages that were in flight, in the snapshots of one index, which a deployment brings into one slot."""
    in_flight_job_bytes: int = 256 << 20
    """Of them, in all snapshots of a checkpoint."""

    def __post_init__(self) -> None:
        _check_at_least(self, tuple(field.name for field in fields(self)), 0)
        counts = ("max_concurrent", "retained", "max_uncommitted", "commit_attempts", "final_attempts", "sweep_every")
        _check_at_least(self, ("interval_ms", "timeout_ms", "storage_timeout_ms", *counts), 1)


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """How often, how soon and how long recovery is tried before the job fails."""

    max_restarts: int = 3
    """Failures of user code (and of last checkpoints) that count at a time; one more ends the job."""
    restart_window_ms: int | None = 600_000
    """For so long each counts, and until a checkpoint has become complete after it; None: for good."""
    max_slot_losses: int = 10
    """Slots lost or evicted without a complete checkpoint in between; one more ends the job."""
    same_moment_ms: int = 1_000
    """From the begin of a recovery beside the stream (and the delay that a rollback would have): what was running then
    and fails within this time is part of that recovery."""
    max_start_failures: int = 2
    """Failed starts of one slot, one after the other, before the job has begun; one more ends it."""
    slot_timeout_ms: int = 60_000
    """For all slots to register at the start."""
    restart_slot_timeout_ms: int = 60_000
    """For all slots to be registered again in a recovery."""
    deploy_timeout_ms: int = 120_000
    """For all slots to restore; those that have not are evicted."""
    backoff_first_ms: int = 500
    """Delay of the second recovery in a row without a complete checkpoint in between (the first has none)."""
    backoff_max_ms: int = 30_000
    """The delay doubles up to this."""
    quiesce_timeout_ms: int = 300_000
    """In a rollback, or at the end of the job, for manifests and commits in flight to end; and for output to be
    retracted."""
    stop_timeout_ms: int = 10_000
    """For slots to stop at the end."""

    def __post_init__(self) -> None:
        _check_at_least(self, tuple(field.name for field in fields(self)), 0)
        _check_at_least(self, ("restart_window_ms",), 1)
        times = ("slot_timeout_ms", "restart_slot_timeout_ms", "deploy_timeout_ms", "quiesce_timeout_ms")
        _check_at_least(self, (*times, "stop_timeout_ms"), 1)
