"""The limits of the machines, from the user's options."""

from __future__ import annotations

from flinkplus.config import Options
from flinkplus.protocol.liveness.reachability import ReachabilityConfig
from flinkplus.protocol.vocabulary.config import CheckpointConfig, RecoveryConfig
from flinkplus.protocol.vocabulary.in_flight import JOB_SLOTS

RESTART_PATIENCE = 3  # Spark takes up to spark.network.timeout, 120 s, to notice that a host is lost


def reachability_config(options: Options) -> ReachabilityConfig:
    """The timeouts for slots that cannot reach each other."""
    gather_s = options.heartbeat_interval if options.hang_timeout is None else options.hang_timeout / 4
    return ReachabilityConfig(max(1, round(gather_s * 1000)), round(options.heartbeat_timeout * 1000))


def configs(options: Options) -> tuple[CheckpointConfig, RecoveryConfig]:
    """The configurations of the machines of checkpoints and of the job."""

    def ms(seconds: float) -> int:
        return round(seconds * 1000)

    checkpoints = CheckpointConfig(
        interval_ms=None if options.checkpoint_interval is None else max(1, ms(options.checkpoint_interval)),
        timeout_ms=ms(options.checkpoint_timeout),
        aligned_timeout_ms=None if options.until_unaligned is None else ms(options.until_unaligned),
        min_pause_ms=ms(options.checkpoint_min_pause),
        max_concurrent=options.max_concurrent_checkpoints,
        retained=options.retained_checkpoints,
        in_flight_slot_bytes=options.in_flight_bytes,
        in_flight_job_bytes=JOB_SLOTS * options.in_flight_bytes,
    )
    recovery = RecoveryConfig(
        max_restarts=options.max_restarts,
        restart_window_ms=None if options.restart_window is None else max(1, ms(options.restart_window)),
        max_slot_losses=options.max_slot_losses,
        slot_timeout_ms=ms(options.slot_timeout),
        restart_slot_timeout_ms=ms(RESTART_PATIENCE * options.slot_timeout),
        deploy_timeout_ms=ms(options.deploy_timeout),
    )
    return checkpoints, recovery
