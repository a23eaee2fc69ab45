"""FlinkPlus: fast failover for stateful streaming, in Python, on Spark.

Ring 2. Process: driver, slots and shells. Thread: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flinkplus.errors import (
    AnswersLost,
    CheckpointDirectoryError,
    CheckpointRemoved,
    CommandRefused,
    ConfigurationError,
    CorruptCheckpoint,
    CorruptState,
    FlinkPlusError,
    HistoryMismatch,
    InjectedFailure,
    InputError,
    InputLost,
    InsufficientSlots,
    JavaError,
    JobCancelled,
    JobFailed,
    JobRunsElsewhere,
    MessageIdConflict,
    MoveCancelled,
    MoveRefused,
    NondeterministicOperator,
    NoRunningJob,
    OutputDirectoryError,
    OutputError,
    OutputFunctionError,
    OutputTableError,
    OutputTopicError,
    OutputUnavailable,
    ProcessCrashed,
    RedundancyAtRisk,
    SavepointError,
    SavepointRefused,
    ShadowedPackage,
    SlotStartError,
    StateError,
    SubtaskNotRunning,
    UntrustedCheckpoint,
    UntrustedState,
    UserFunctionError,
)

if TYPE_CHECKING:
    from flinkplus.api.checkpoints import checkpoints
    from flinkplus.api.environment import StreamEnvironment
    from flinkplus.api.job import JobHandle
    from flinkplus.api.spark_settings import spark_settings
    from flinkplus.api.state import read_state
    from flinkplus.api.state_source import StateDataSource
    from flinkplus.api.streams.aggregates import agg
    from flinkplus.api.streams.keyed import KeyedStream
    from flinkplus.api.streams.stream import Stream
    from flinkplus.api.streams.windowed import WindowedStream
    from flinkplus.api.upgrades import Upgrade
    from flinkplus.job_options import JobOptions
    from flinkplus.state.durable.listing import StoredCheckpoint, StoredCheckpoints, StoredOperator

__version__ = "0.1.0"
__all__ = [
    "AnswersLost",
    "CheckpointDirectoryError",
    "CheckpointRemoved",
    "CommandRefused",
    "ConfigurationError",
    "CorruptCheckpoint",
    "CorruptState",
    "FlinkPlusError",
    "HistoryMismatch",
    "InjectedFailure",
    "InputError",
    "InputLost",
    "InsufficientSlots",
    "JavaError",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobOptions",
    "JobRunsElsewhere",
    "KeyedStream",
    "MessageIdConflict",
    "MoveCancelled",
    "MoveRefused",
    "NoRunningJob",
    "NondeterministicOperator",
    "OutputDirectoryError",
    "OutputError",
    "OutputFunctionError",
    "OutputTableError",
    "OutputTopicError",
    "OutputUnavailable",
    "ProcessCrashed",
    "RedundancyAtRisk",
    "SavepointError",
    "SavepointRefused",
    "ShadowedPackage",
    "SlotStartError",
    "StateDataSource",
    "StateError",
    "StoredCheckpoint",
    "StoredCheckpoints",
    "StoredOperator",
    "Stream",
    "StreamEnvironment",
    "SubtaskNotRunning",
    "UntrustedCheckpoint",
    "UntrustedState",
    "Upgrade",
    "UserFunctionError",
    "WindowedStream",
    "__version__",
    "agg",
    "checkpoints",
    "read_state",
    "spark_settings",
]
_API = {
    "JobHandle": "flinkplus.api.job",
    "JobOptions": "flinkplus.job_options",
    "KeyedStream": "flinkplus.api.streams.keyed",
    "StateDataSource": "flinkplus.api.state_source",
    "StoredCheckpoint": "flinkplus.state.durable.listing",
    "StoredCheckpoints": "flinkplus.state.durable.listing",
    "StoredOperator": "flinkplus.state.durable.listing",
    "Stream": "flinkplus.api.streams.stream",
    "StreamEnvironment": "flinkplus.api.environment",
    "Upgrade": "flinkplus.api.upgrades",
    "WindowedStream": "flinkplus.api.streams.windowed",
    "agg": "flinkplus.api.streams.aggregates",
    "checkpoints": "flinkplus.api.checkpoints",
    "read_state": "flinkplus.api.state",
    "spark_settings": "flinkplus.api.spark_settings",
}


def __getattr__(name: str) -> Any:
    """Load the API with its first use: a slot's process needs parts of it only, and starts faster without the rest."""
    if name not in _API:
        raise AttributeError(f"module 'flinkplus' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_API[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
