"""What a slot asks of the streams between slots, and what it hears from them.

Frames of messages travel with a stream, from a producer's slot to its consumers'; credit travels against it. There is
one stream for each ordered pair of slots, opened when the job is deployed and kept over rollbacks, as long as both
processes live. Two transports do this: ``tcp`` (sockets in the slot's own loop) and ``grpc``.

Rules: nothing here knows what a message means. A broken stream to a living peer is opened again when the slot asks for
it; the slot then sends again from its output logs, so whatever was on its way may be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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

    The slot's loop calls all of it; ``send`` may be called in any thread.
    """

    def start(self) -> str:
        """Begin to listen on a port the system picks; returns ``host:port``."""

    def connect(self, peers: dict[int, tuple[int, str]]) -> None:
        """Have a stream to each peer (slot -> (incarnation, address)) and to no other; ``PeerConnected`` tells when."""

    def send(self, peer: int, buffers: Sequence[Any]) -> None:
        """Queue buffers of whole messages for ``peer``. Dropped when there is no stream: the logs hold them."""

    def send_back(self, peer: int, buffers: Sequence[Any]) -> None:
        """Queue credit for a producer's slot. Dropped when its stream is gone: a new one starts from the cursors."""

    def flush(self) -> None:
        """Write what is queued, as far as it goes without waiting; called at the end of each turn of the loop."""

    def renew(self, peer: int, reason: str) -> None:
        """Break the streams from and to ``peer``: something that came on one is lost, and is to be sent again."""

    def expire(self, now_s: float) -> None:
        """Give up what has not been connected in time (``now_s``: monotonic clock); called now and then."""

    def close(self) -> None:
        """Close all streams and the server, bounded."""
