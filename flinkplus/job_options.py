"""The types of a job's options, for editors and type checkers.

Each key is a field of ``flinkplus.config.Options``, which has defaults, ranges and texts; a test compares the two.
"""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

from typing_extensions import TypedDict

Location: TypeAlias = str | os.PathLike[str]


class RunOptions(TypedDict, total=False):
    """Keyword arguments of ``StreamEnvironment.resume``: all options except for the checkpoint directory."""

    parallelism: int
    max_parallelism: int
    checkpoint_interval: float | None
    checkpoint_timeout: float
    checkpoint_min_pause: float
    max_concurrent_checkpoints: int
    retained_checkpoints: int
    checkpoint_mode: Literal["aligned", "unaligned", "synchronous"]
    aligned_timeout: float | None
    in_flight_mb: int
    guarantee: Literal["exactly-once", "at-least-once", "at-most-once"]
    recovery: Literal["standby", "partial", "rollback"]
    replicas: int
    sharing_depth: int | None
    placement: str
    failback: Literal["auto", "never"]
    zookeeper: str | None
    zookeeper_acl: str | None
    session_timeout: float
    cache_memory_mb: int
    dedup_error_rate: float
    max_restarts: int
    restart_window: float | None
    max_slot_losses: int
    slot_timeout: float
    deploy_timeout: float
    heartbeat_interval: float
    heartbeat_timeout: float
    hang_timeout: float | None
    batch_rows: int
    flush_interval: float | None
    window: int
    window_kb: int
    transport: Literal["tcp", "grpc"]
    tls: bool | Location
    memtable_entries: int
    encoding_errors: Literal["replace", "strict"]
    work_dir: Location | None
    trace_output: Location | None
    record_machines: Location | None
    allow_inject: bool
    ui: bool | str
    ui_linger: float
    log: str | None
    faults: tuple[str, ...]
    signing_key: Location | None


class JobOptions(RunOptions, total=False):
    """Keyword arguments of ``StreamEnvironment``."""

    checkpoint_dir: Location | None
