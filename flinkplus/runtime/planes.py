"""The two planes: messages between slots, and orders and reports between slots and coordinator.

Data plane: one stream for each ordered pair of slots, opened when the job is deployed and kept over rollbacks, as long
as both processes live. Frames of messages travel with it, from a producer's slot to its consumers'; credit travels
against it. A broken stream to a living peer is opened again when the slot asks for it; the slot then sends again from
its output logs, so whatever was on its way may be dropped.

Control plane: one stream from each slot to the coordinator, that lives as long as the slot's process. Both ends take a
stream that breaks for the end of the peer.

Two transports carry both: ``tcp`` (sockets in the loops of slot and coordinator) and ``grpc``.

Rules: ``deliver`` only enqueues. Whoever cannot present the job's token is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flinkplus.config import Options
from flinkplus.runtime import control
from flinkplus.runtime.inbox import Inbox


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """Messages of ``peer``, which is not changed any more."""

    peer: int
    frame: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The stream to ``peer`` is there."""

    peer: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class PeerAttached:
    """``peer`` has opened a new stream to this slot."""

    peer: int


@dataclass(frozen=True, slots=True)
class PeerBroken:
    """The stream to ``peer`` broke, or could not be opened."""

    peer: int
    incarnation: int
    reason: str


TransportEvent = FrameArrived | PeerConnected | PeerAttached | PeerBroken


class DataPlane(Protocol):
    """A slot's end of all its streams. ``start`` first, then ``connect`` at each deployment, ``close`` at the end.

    The slot's loop calls all of it, other threads only ``send_beside``.
    """

    def start(self) -> str:
        """Begin to listen on a port the system picks; returns ``host:port``."""

    def connect(self, peers: dict[int, tuple[int, str]]) -> None:
        """Have a stream to each peer (slot -> (incarnation, address)) and to no other; ``PeerConnected`` tells when."""

    def send(self, peer: int, buffers: Sequence[Any]) -> None:
        """Queue buffers of whole messages for ``peer``. Dropped when there is no stream: the logs hold them."""

    def send_back(self, peer: int, buffers: Sequence[Any]) -> None:
        """Queue credit for a producer's slot. Dropped when its stream is gone: a new one starts from the cursors."""

    def send_beside(self, peer: int, buffers: Sequence[Any]) -> None:
        """``send`` for any thread; written at once."""

    def flush(self) -> None:
        """Write what is queued, as far as it goes without waiting; called at the end of each turn of the loop."""

    def renew(self, peer: int, reason: str) -> None:
        """Break the streams from and to ``peer``: something that came on one is lost, and is to be sent again."""

    def expire(self, now_s: float) -> None:
        """Give up what has not been connected in time (``now_s``: monotonic clock); called now and then."""

    def close(self) -> None:
        """Close all streams and the server, bounded."""


@dataclass(frozen=True, slots=True)
class ControlArrived:
    """A control message, with the connection it came on (a number at the coordinator, 0 at a slot), and when."""

    connection: int
    message: control.ControlMessage
    time_s: float


@dataclass(frozen=True, slots=True)
class ControlLost:
    """A connection of the control plane broke."""

    connection: int
    reason: str
    time_s: float


LinkEvent = ControlArrived | ControlLost


class ControlLink(Protocol):
    """A slot's stream to the coordinator.

    ``heartbeat``: what to send every ``heartbeat_interval`` seconds, set by the slot's loop; another thread sends it,
    so a long step of a user function does not look like a dead process.
    """

    heartbeat: control.Heartbeat | None

    def open(self) -> None:
        """Start connecting; a failure is a ``ControlLost``."""

    def send(self, message: control.ControlMessage) -> None:
        """Send a message; may be called in any thread, and before the connection is there."""

    def close(self) -> None:
        """Close the stream, after what was queued is written; bounded."""


class Rendezvous(Protocol):
    """The coordinator's server. Each connection has a number."""

    def start(self) -> str:
        """Begin to listen on a port the system picks; returns ``host:port``."""

    def send(self, connection: int, message: control.ControlMessage) -> None:
        """Send to a slot; nothing happens when its connection is gone (``ControlLost`` tells)."""

    def drop(self, connection: int) -> None:
        """Close a connection from this side: the slot ends its task when it sees that."""

    def close(self) -> None:
        """Stop the server and close all connections, bounded."""


def data_plane(slot: int, options: Options, token: str, host: str, inbox: Inbox[Any]) -> DataPlane:
    """A slot's end of the data plane, listening at ``host``."""
    if options.transport == "grpc":
        from flinkplus.runtime.grpc_data import GrpcDataPlane

        return GrpcDataPlane(slot, token, host, inbox.put)
    from flinkplus.runtime.tcp_data import TcpDataPlane

    return TcpDataPlane(slot, token, host, inbox, inbox.put)


def control_link(slot: int, options: Options, token: str, coordinator: str, inbox: Inbox[Any]) -> ControlLink:
    """A slot's end of the control plane; ``coordinator``: ``host:port``."""
    if options.transport == "grpc":
        from flinkplus.runtime.grpc_control import GrpcControlLink

        return GrpcControlLink(coordinator, token, options.heartbeat_interval, inbox.put)
    from flinkplus.runtime.tcp_control import TcpControlLink

    return TcpControlLink(slot, coordinator, token, options.heartbeat_interval, inbox, inbox.put)


def rendezvous(options: Options, token: str, host: str, inbox: Inbox[Any]) -> Rendezvous:
    """The coordinator's end of the control plane, to listen at ``host``."""
    if options.transport == "grpc":
        from flinkplus.runtime.grpc_control import GrpcRendezvous

        return GrpcRendezvous(host, token, inbox.put)
    from flinkplus.runtime.tcp_control import TcpRendezvous

    return TcpRendezvous(host, token, inbox, inbox.put)
