"""The limits of local failover, checked when the configuration is made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flinkplus.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """Number of replicas, and the timeouts of a failover. Raises ``ConfigurationError``."""

    partial: bool = False
    """Whether to recover without standbys: failed subtasks and all their upstreams restart from a version in the
    durable store, since producers keep no output logs."""
    replicas: int = 3
    """Members of a chain, the head included; fewer when the job has fewer slots."""
    failback: bool = True
    """Whether subtasks return to their home slot when it is back."""
    handover: bool = True
    """Whether work may be handed over at all."""
    fence_timeout_ms: int = 2_000
    """Timeout for a living slot to fence, or for the next part of its answer; late slots are evicted."""
    promote_timeout_ms: int = 5_000
    """Timeout for standbys to run; after it, the next member of their chains is tried."""
    registry_timeout_ms: int = 15_000
    """Timeout for ZooKeeper to write the records; after it, the job rolls back."""
    max_concurrent_checkpoints: int = 1
    """Maximum number of pending checkpoints."""
    max_versions_behind: int = 8
    """Maximum number of complete checkpoints that a standby may lack and still delay trimming."""
    sharing_depth: int | None = None
    """Over how many channels a subtask's determinants are passed on downstream; ``None``: no limit."""
    pending_versions: bool = False
    """Whether to start from a version whose checkpoint is not complete yet. That shortens the replay of a failure just
    before a checkpoint becomes complete. Until then, neighbours that also fail cannot start from an older version, and
    must roll back."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is None and limit.default is None:
                continue
            if limit.type != "bool" and (type(value) is not int or value < 1):
                raise ConfigurationError(f"{limit.name} is {value!r}; give a whole number of at least 1")
