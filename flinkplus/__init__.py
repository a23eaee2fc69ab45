"""FlinkPlus: fast failover for stateful streaming, in Python, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flinkplus.api.environment import StreamEnvironment
    from flinkplus.api.job import JobHandle

__version__ = "0.1.0"
__all__ = ["JobHandle", "StreamEnvironment", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the API with its first use: a slot's process needs parts of it only, and starts faster without the rest."""
    if name == "StreamEnvironment":
        from flinkplus.api.environment import StreamEnvironment

        return StreamEnvironment
    if name == "JobHandle":
        from flinkplus.api.job import JobHandle

        return JobHandle
    raise AttributeError(f"module 'flinkplus' has no attribute {name!r}")
