"""The limits of local failover, checked when they are given."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flinkplus.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """How many replicas there are, and how long each wait of a failover may take. Raises ``ConfigurationError``."""

    partial: bool = False
    """Whether there are no standbys: what failed goes back to a version in the durable store, and so do all its
    upstreams, since nobody keeps what was sent."""
    replicas: int = 3
    """Members of a chain, the head included; fewer when there are fewer slots."""
    failback: bool = True
    """Whether subtasks go back to their home slot when it is back."""
    handover: bool = True
    """Whether work may be handed over at all."""
    fence_timeout_ms: int = 2_000
    """For a living slot to fence, or for the next part of its answer; those that are late are evicted."""
    promote_timeout_ms: int = 5_000
    """For standbys to be at work; else the next member of their chains is tried."""
    registry_timeout_ms: int = 15_000
    """For ZooKeeper to take the records; else the job rolls back."""
    max_concurrent_checkpoints: int = 1
    """As many as may be pending at once."""
    max_versions_behind: int = 8
    """Complete checkpoints that a standby may lack before it no longer counts for what may be trimmed."""
    sharing_depth: int | None = None
    """How far downstream messages tell of a subtask's determinants; ``None``: all the way."""
    pending_versions: bool = False
    """Whether to begin from a version of a checkpoint that is not complete yet. That shortens the replay of a failure
    just before a checkpoint becomes complete; but until it is, neighbours that fail as well cannot begin from an older
    one, and must roll back."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is None and limit.default is None:
                continue
            if limit.type != "bool" and (type(value) is not int or value < 1):
                raise ConfigurationError(f"{limit.name} is {value!r}; give a whole number of at least 1")
