"""What can go wrong with ZooKeeper, each with a name of its own."""

from __future__ import annotations

from flinkplus.errors import FlinkPlusError


class ZooKeeperStartError(FlinkPlusError):
    """The embedded server could not be started; the message ends with the server's last log lines."""


class RegistryUnavailable(FlinkPlusError):
    """ZooKeeper did not answer in time. After a write it is open whether it was done; the next write finds out."""


class StaleRecord(FlinkPlusError):
    """A chain record was changed by someone else since this coordinator last wrote or read it; nothing was written."""


class CoordinatorElsewhere(FlinkPlusError):
    """Another driver coordinates this application."""


class BadRecord(FlinkPlusError):
    """A node of the application holds what no record of a known format looks like."""
