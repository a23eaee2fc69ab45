"""The other slots, as one slot is connected to them: which streams there should be, are, and are to be tried again.

Rules:

- a stream counts when it goes to the incarnation that is wanted. One that breaks is opened again after a pause, as
  often as it takes: whether to wait for a peer or evict it is the coordinator's decision (``reachability``);
- a peer is not reached when it refuses every connection for a while, or keeps sending frames that cannot be read over
  new streams;
- nothing that a peer does is a failure of this slot, or of its subtasks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from flinkplus.runtime.base.clock import Clock

OpenStreams = Callable[[dict[int, tuple[int, str]]], None]
"""See ``transport.wire.ports.DataPlane.connect``."""
RECONNECT_PAUSE_S = 0.1
REFUSED_S = 0.3
"""Default: a peer that has refused every connection for so long is not reached."""
MALFORMED_FRAMES = 5
MALFORMED_SPAN_S = 10.0
"""So many malformed frames within this span, and the peer is to blame; older ones are forgotten. Of those that come
within ``RECONNECT_PAUSE_S`` one counts: they may have been on the same stream."""


class Peers:
    """The streams of slot ``index``. ``refused_s``: a peer that refuses connections for so long is not reached."""

    def __init__(
        self, index: int, open_streams: OpenStreams, clock: Clock = time, refused_s: float = REFUSED_S
    ) -> None:
        self._index = index
        self._open_streams = open_streams
        self._clock = clock
        self._refused_s = refused_s
        self._targets: dict[int, tuple[int, str]] = {}
        self._connected: dict[int, int] = {}
        self._broken_since: dict[int, float] = {}
        self._refusing: set[int] = set()
        self._malformed: dict[int, deque[float]] = {}
        self.next_reconnect: float | None = None

    def connect(self, addresses: dict[str, list[Any]]) -> None:
        """Have a stream to each of these (slot -> [incarnation, address]) except for this one, and to no other. One
        that broke before is still to be replaced: what was lost with it is sent again then."""
        before = self._targets
        self._targets = {int(s): (int(a[0]), str(a[1])) for s, a in addresses.items() if int(s) != self._index}
        known = self._connected.items()
        self._connected = {peer: incarnation for peer, incarnation in known if self._is_wanted(peer, incarnation)}
        same = {peer for peer, target in self._targets.items() if before.get(peer) == target}
        self._broken_since = {peer: since for peer, since in self._broken_since.items() if peer in same}
        self._malformed = {peer: times for peer, times in self._malformed.items() if peer in same}
        self._refusing &= same
        self.next_reconnect = None
        self._open_streams(self._targets)

    def _is_wanted(self, peer: int, incarnation: int) -> bool:
        return peer in self._targets and self._targets[peer][0] == incarnation

    def forget(self) -> None:
        """Wait again for every stream to connect; nothing was lost on any, since all subtasks start again."""
        self._connected.clear()
        self._broken_since.clear()
        self._refusing.clear()

    @property
    def complete(self) -> bool:
        return all(self._connected.get(peer) == target[0] for peer, target in self._targets.items())

    def connected(self, peer: int, incarnation: int) -> bool:
        """A stream is connected; returns whether it replaces one that broke."""
        self._connected[peer] = incarnation
        self._refusing.discard(peer)
        return self._broken_since.pop(peer, None) is not None

    def broken(self, peer: int, incarnation: int) -> None:
        """A stream broke, or could not be opened; it is tried again after a pause."""
        now = self._clock.monotonic()
        if self._connected.get(peer) == incarnation:
            del self._connected[peer]
        if now - self._broken_since.setdefault(peer, now) >= self._refused_s and self._is_wanted(peer, incarnation):
            self._refusing.add(peer)
        self.next_reconnect = now + RECONNECT_PAUSE_S

    def reconnect(self, now: float) -> None:
        """Open again the streams that are due."""
        if self.next_reconnect is not None and now >= self.next_reconnect:
            self.next_reconnect = None
            self._open_streams(self._targets)

    def malformed(self, peer: int) -> None:
        """A frame of ``peer`` could not be read."""
        now = self._clock.monotonic()
        times = self._malformed.setdefault(peer, deque(maxlen=MALFORMED_FRAMES))
        if not times or now - times[-1] >= RECONNECT_PAUSE_S:
            times.append(now)

    @property
    def to_blame(self) -> dict[int, int]:
        """The peers (slot -> incarnation) that refuse connections, or keep sending malformed frames."""
        since = self._clock.monotonic() - MALFORMED_SPAN_S
        garbling = {p for p, times in self._malformed.items() if len(times) == MALFORMED_FRAMES and times[0] > since}
        return {p: self._targets[p][0] for p in sorted(self._refusing | garbling) if p in self._targets}
