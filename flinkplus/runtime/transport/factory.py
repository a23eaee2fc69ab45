"""Which transport carries a job's two planes: ``tcp`` (sockets in the loops of slot and coordinator) or ``grpc``.

A transport is imported when it is used: gRPC takes a while to load.
"""

from __future__ import annotations

from typing import Any

from flinkplus.config import Options
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.wire.ports import ControlLink, DataPlane, Rendezvous


def data_plane(slot: int, options: Options, credentials: Credentials, host: str, inbox: Inbox[Any]) -> DataPlane:
    """A slot's end of the data plane, listening at ``host``."""
    if options.transport == "grpc":
        from flinkplus.runtime.transport.grpc.data import GrpcDataPlane

        return GrpcDataPlane(slot, credentials, host, inbox.put)
    from flinkplus.runtime.transport.tcp.data import TcpDataPlane

    return TcpDataPlane(slot, credentials, host, inbox, inbox.put)


def control_link(
    slot: int, options: Options, credentials: Credentials, coordinator: str, inbox: Inbox[Any]
) -> ControlLink:
    """A slot's end of the control plane; ``coordinator``: ``host:port``."""
    if options.transport == "grpc":
        from flinkplus.runtime.transport.grpc.control import GrpcControlLink

        return GrpcControlLink(slot, coordinator, credentials, options.heartbeat_interval, inbox.put)
    from flinkplus.runtime.transport.tcp.control import TcpControlLink

    return TcpControlLink(slot, coordinator, credentials, options.heartbeat_interval, inbox, inbox.put)


def rendezvous(options: Options, credentials: Credentials, host: str, inbox: Inbox[Any]) -> Rendezvous:
    """The coordinator's end of the control plane, to listen at ``host``."""
    if options.transport == "grpc":
        from flinkplus.runtime.transport.grpc.control import GrpcRendezvous

        return GrpcRendezvous(host, credentials, inbox.put)
    from flinkplus.runtime.transport.tcp.control import TcpRendezvous

    return TcpRendezvous(host, credentials, inbox, inbox.put)
