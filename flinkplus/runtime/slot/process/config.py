"""What the driver ships to every slot, and where a slot binds."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from flinkplus.config import Options
from flinkplus.runtime.transport.auth.credentials import Credentials


@dataclass(frozen=True)
class SlotConfig:
    """What the driver ships to every slot, through Spark. ``plan`` is the job graph, cloudpickled.

    ``coordinator``, ``lifelines``, ``pulses``: ``host:port`` of the servers of the driver.
    ``zookeeper``: its hosts; ``None``: the job does without, or slots are sent the address later.
    ``application``: the job's name there.
    ``scratch``: a directory on every slot's host for working files (``None``: the system's).
    ``directory``: the job's own, if it is on the slots' host as well: a slot sees there that the job has ended, and
    removes it if the ``driver`` (process id, creation time) is dead.
    ``log``: how slots write their logs (``flinkplus.runtime.base.logs``).
    """

    job_id: str
    job_name: str
    slots: int
    first_generation: int
    coordinator: str
    lifelines: str
    credentials: Credentials
    plan: bytes
    options: Options
    checkpoint_dir: str
    scratch: str | None
    directory: str | None
    driver: tuple[int, float]
    local: bool
    zookeeper: str | None = None
    pulses: str | None = None
    application: str = ""
    log: str | None = None


def slot_host(config: SlotConfig) -> str:
    """The address that this slot's data server binds: loopback in local mode, else the one towards the coordinator."""
    if config.local:
        return "127.0.0.1"
    host, port = config.coordinator.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # a UDP connect sends nothing, it only looks up the route
        address: str = probe.getsockname()[0]
    return address
