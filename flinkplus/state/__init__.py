"""Keyed state on RocksDB, its snapshots, and durable checkpoint storage.

Ring 2: touches RocksDB and file systems. Process: slots (``durable``: the driver). Thread: see each module.
"""

from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.memtable import NumberState
from flinkplus.state.objects import ObjectState
from flinkplus.state.versions import BasePolicy, PendingSnapshot

__all__ = ["BasePolicy", "CheckpointStorage", "NumberState", "ObjectState", "PendingSnapshot", "SubtaskState"]
