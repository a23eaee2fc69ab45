"""The two planes: messages between slots, and orders and reports between slots and coordinator.

Data plane: one stream for each ordered pair of slots, opened when the job is deployed and kept over rollbacks, as long
as both processes live. Frames of messages travel with it, from a producer's slot to its consumers'; credit travels
against it. A broken stream to a living peer is opened again when the slot requests it. The slot then sends again from
its output logs, so messages in transit may be dropped.

Control plane: one stream from each slot to the coordinator, that lives as long as the slot's process. For both ends, a
broken stream means that the peer has ended.

Two transports carry both: ``tcp`` and ``grpc``; ``transport.factory`` chooses.

Rules: ``deliver`` only enqueues. A peer that cannot prove to belong to the job is refused and counted, and not reported
further (``handshake``). A process may send only for its own slot, and not after a newer process of that slot. A slot's
listener accepts no peer before the slot knows its incarnation, which is a part of the listener's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flinkplus.errors import PeerProtocolError, PeerRefused
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.handshake import Listening, Refusals, parse_slot_name, slot_name

COORDINATOR = "coordinator"
"""What the driver's listeners are called in a handshake: of control streams, of lifelines, and of commands."""


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

    The slot's loop calls all of it, other threads only ``send_beside``. ``incarnation``: the slot's own, 0 until it is
    known.
    """

    incarnation: int
    refusals: Refusals

    def start(self) -> str:
        """Begin to listen on a port the system picks; returns ``host:port``."""

    def connect(self, peers: dict[int, tuple[int, str]]) -> None:
        """Have a stream to each peer (slot -> (incarnation, address)) and to no other; ``PeerConnected`` tells when."""

    def send(self, peer: int, message: Sequence[Any]) -> None:
        """Queue one whole message for ``peer``, given as buffers: no frame ends within it. Dropped when there is no
        stream: the logs hold it.
        """

    def send_back(self, peer: int, message: Sequence[Any]) -> None:
        """Queue credit, one whole message, for a producer's slot. Dropped when its stream is gone: a new one starts
        from the cursors.
        """

    def send_beside(self, peer: int, message: Sequence[Any]) -> None:
        """``send`` for any thread; written at once."""

    def flush(self) -> None:
        """Write what is queued, as far as it goes without waiting; called at the end of each turn of the loop."""

    def renew(self, peer: int, reason: str) -> None:
        """Break the streams from and to ``peer``: something that came on one is lost, and is to be sent again."""

    def expire(self, now_s: float) -> None:
        """Drop attempts to connect that timed out (``now_s``: monotonic clock); called periodically."""

    def silent(self, now_s: float, limit_s: float) -> dict[int, int]:
        """The peers (slot -> incarnation) that have not acknowledged sent data for ``limit_s``; see ``silence``. Must
        be called several times within that span.
        """

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
        """Send a message; may be called in any thread, and before the connection is established."""

    def is_silent(self, now_s: float, limit_s: float) -> bool:
        """Whether sent data was not acknowledged, as in ``DataPlane.silent``."""

    def close(self) -> None:
        """Close the stream, after what was queued is written; bounded."""


class Rendezvous(Protocol):
    """The coordinator's server. Each connection has a number. ``malformed``: messages that could not be read."""

    refusals: Refusals
    malformed: int

    def start(self) -> str:
        """Begin to listen on a port the system picks; returns ``host:port``."""

    def send(self, connection: int, message: control.ControlMessage) -> None:
        """Send to a slot; nothing happens when its connection is gone (``ControlLost`` tells)."""

    def drop(self, connection: int) -> None:
        """Close a connection from this side: the slot ends its task when it sees that."""

    def close(self) -> None:
        """Stop the server and close all connections, bounded."""


class Attachments(ABC):
    """A data plane's own part in who may attach to slot ``slot``: those who look for it, in this incarnation, unless a
    newer process of theirs has attached before. Until the incarnation is known, they wait.
    """

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._newest: dict[int, int] = {}
        self._incarnation = 0

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @incarnation.setter
    def incarnation(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._be_found()

    @property
    def name(self) -> str | None:
        """What the listener is called in handshakes; ``None``: that is not known yet."""
        return slot_name(self._slot, self._incarnation) if self._incarnation else None

    @abstractmethod
    def _be_found(self) -> None:
        """The name is known, or another one: have the listener be that, if there is one."""

    def check(self, found: Listening) -> int:
        """The slot at the other end, which has proved what it says. Raises ``PeerRefused``."""
        peer, theirs = parse_slot_name(found.name)
        if theirs < self._newest.get(peer, 0):
            raise PeerRefused(handshake.IDENTITY, f"{found.name} is not the newest process of that slot")
        self._newest[peer] = theirs
        return peer


def registered_slot(message: control.ControlMessage, slot: int) -> control.ControlMessage:
    """``message``, which came from ``slot``. Raises ``PeerProtocolError`` when it speaks for another one."""
    if isinstance(message, (control.Register, control.StartFailed)) and message.slot != slot:
        raise PeerProtocolError(f"slot {slot} registered as slot {message.slot}")
    return message
