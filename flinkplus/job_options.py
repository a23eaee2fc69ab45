"""The options of a job as typed keyword arguments: what an editor completes, and a type checker checks.

Each key is a field of ``flinkplus.config.Options``, which has the defaults; a test compares the two. Any option may be
left out. Times are in seconds. ``docs/options.md`` says more about each.
"""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

from typing_extensions import TypedDict

Location: TypeAlias = str | os.PathLike[str]


class RunOptions(TypedDict, total=False):
    """Keyword arguments of ``StreamEnvironment.resume``: all options except for the checkpoint directory."""

    parallelism: int
    """Subtasks of each operator, and slots (Spark tasks)."""
    checkpoint_interval: float | None
    """Seconds from one checkpoint to the next; ``None``: only the one that ends a bounded job."""
    checkpoint_timeout: float
    """Seconds after which a checkpoint is given up; the stream keeps running."""
    checkpoint_min_pause: float
    """Seconds between the end of one checkpoint and the start of the next, at least."""
    max_concurrent_checkpoints: int
    """How many checkpoints may be in progress at the same time."""
    retained_checkpoints: int
    """How many complete checkpoints are kept."""
    checkpoint_mode: Literal["aligned", "unaligned", "synchronous"]
    """How barriers and records meet: see ``docs/options.md``."""
    aligned_timeout: float | None
    """With ``unaligned``: seconds for which a checkpoint is an aligned one."""
    in_flight_mb: int
    """MiB of in-flight messages that the snapshots of one slot may hold."""
    guarantee: Literal["exactly-once", "at-least-once", "at-most-once"]
    """How often an input row takes effect in the committed output."""
    recovery: Literal["standby", "partial", "rollback"]
    """``standby``: only what failed moves; ``partial``: it goes back with its upstreams; ``rollback``: all go back."""
    replicas: int
    """Copies of each subtask's state, the working one included."""
    sharing_depth: int | None
    """How many channels downstream determinants travel; ``None``: all the way."""
    placement: str
    """Where copies are: ``spread``, ``near``, or a function of yours as ``module:function``."""
    failback: Literal["auto", "never"]
    """Whether work returns to a slot that has come back."""
    zookeeper: str | None
    """``HOST:PORT,...`` of an ensemble; ``None``: the job starts a server of its own."""
    zookeeper_acl: str | None
    """Who may change the job's nodes in ZooKeeper: ``open``, ``job``, or a file with ``user:password``."""
    session_timeout: float
    """Seconds without contact after which ZooKeeper takes a slot for dead."""
    cache_memory_mb: int
    """MiB of sent output that a slot keeps in memory for replay; the rest is on disk."""
    dedup_error_rate: float
    """Error rate of the Bloom filter of message IDs: above 0 and below 1."""
    max_restarts: int
    """Recoveries after exceptions before the job fails."""
    restart_window: float | None
    """Seconds for which an exception counts against ``max_restarts``; ``None``: for the life of the job."""
    max_slot_losses: int
    """Slots lost in a row without a complete checkpoint before the job fails."""
    slot_timeout: float
    """Seconds to wait for all slots at the start."""
    deploy_timeout: float
    """Seconds that slots may take to restore."""
    heartbeat_interval: float
    """Seconds between two reports of a slot."""
    heartbeat_timeout: float
    """Seconds without a report after which a slot is replaced."""
    hang_timeout: float | None
    """Seconds without a sign of life after which a slot's host hangs; ``None``: only ``heartbeat_timeout`` counts."""
    batch_rows: int
    """Rows per message aimed at."""
    flush_interval: float
    """Maximum in seconds for which a few rows wait at two exchanges."""
    window: int
    """Messages in flight per channel."""
    window_kb: int
    """KiB in flight to one subtask over all channels of an exchange."""
    transport: Literal["tcp", "grpc"]
    """What carries messages between slots, and between slots and driver."""
    tls: bool | Location
    """Mutual TLS: ``True``, with certificates made for the job, or a directory of certificates on every host."""
    memtable_entries: int
    """Keys of each keyed state held in memory; the rest is in RocksDB."""
    encoding_errors: Literal["replace", "strict"]
    """Text that is not UTF-8: replace it and count, or fail."""
    work_dir: Location | None
    """Where the job's temporary directory is made."""
    trace_output: Location | None
    """A directory for the time and number of rows of every output, for measurements."""
    record_machines: Location | None
    """A file for what the coordinator's state machines do, to be repeated in the simulator."""
    allow_inject: bool
    """Whether the job accepts ``flinkplus inject``."""
    log: str | None
    """How driver and slots log: ``json``, ``text``, ``json:debug``, ..."""
    faults: tuple[str, ...]
    """Fault injection at named points: see ``flinkplus/runtime/faults/points.py``."""
    signing_key: Location | None
    """The key that checkpoints are signed with, a file on the driver's host; ``None``: the user's own."""


class JobOptions(RunOptions, total=False):
    """Keyword arguments of ``StreamEnvironment``."""

    checkpoint_dir: Location | None
    """Path or ``pyarrow.fs`` URI that driver and slots can reach; ``None``: checkpoints are deleted with the job."""
