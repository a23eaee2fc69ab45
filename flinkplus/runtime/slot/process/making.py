"""What a slot's process is made with: the graph's secrets, the files of the job, the session in ZooKeeper."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chain_backup.zookeeper.records import SessionEvent, SlotRecord
from flinkplus.graph import JobGraph
from flinkplus.runtime.host.scratch import slot_directories
from flinkplus.runtime.host.shared_checks import SharedChecks
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.tls import context
from flinkplus.sinks.base import Sink
from flinkplus.sources.base import Source
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.durable.storage import CheckpointStorage

if TYPE_CHECKING:
    from chain_backup.zookeeper.session import SlotSession


def with_secrets(graph: JobGraph, credentials: Credentials) -> JobGraph:
    """Give the sources and sinks of ``graph``, which was unpickled, what they need to connect; returns it."""
    for node in graph.nodes:
        if isinstance(node.body, Source | Sink):
            node.body = node.body.with_secrets(credentials.connectors.get(node.name, {}))
    return graph


def state_files_of(config: SlotConfig, scratch: Path) -> StateFiles:
    """The files of the job, which the slots of one host check together."""
    files = CheckpointStorage(config.checkpoint_dir).state_files
    return files.checked_by(SharedChecks(scratch, partial(slot_directories, config.job_id, scratch.parent)))


def open_session(
    index: int, config: SlotConfig, address: str, incarnation: int, put: Callable[[SessionEvent], None]
) -> SlotSession:
    """The ZooKeeper session of this process of the slot, which listens at ``address``."""
    from chain_backup.zookeeper.session import SlotSession

    assert config.zookeeper is not None
    certificates = config.credentials.registry_certificates
    return SlotSession(
        config.zookeeper,
        config.application,
        index,
        SlotRecord(address, socket.gethostname(), os.getpid(), incarnation),
        config.options.session_timeout,
        put,
        config.credentials.zookeeper,
        None if certificates is None else context(certificates, False),
    )
