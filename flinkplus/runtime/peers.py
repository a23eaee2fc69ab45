"""The other slots, as one slot is connected to them: which streams there should be, are, and are to be tried again.

Rules: a stream counts when it goes to the incarnation that is wanted. One that breaks is opened again after a pause;
also when nobody works there, for deltas go there, and work may. Failed tries count while somebody does.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from flinkplus.runtime.clock import Clock

RECONNECT_PAUSE_S = 0.1


class Streams(Protocol):
    """What opens streams; see ``planes.DataPlane``."""

    def connect(self, peers: dict[int, tuple[int, str]], /) -> None: ...


class Peers:
    """The streams of slot ``index``."""

    def __init__(self, index: int, data: Streams, clock: Clock = time) -> None:
        self._index = index
        self._data = data
        self._clock = clock
        self._targets: dict[int, tuple[int, str]] = {}
        self._connected: dict[int, int] = {}
        self._tries: dict[int, int] = {}
        self.next_reconnect: float | None = None

    def connect(self, addresses: dict[str, list[Any]]) -> None:
        """Have a stream to each of these (slot -> [incarnation, address]) but this one, and to no other.

        One that broke before is still to be replaced: what was lost with it is sent again when it is.
        """
        before = self._targets
        self._targets = {int(s): (int(a[0]), str(a[1])) for s, a in addresses.items() if int(s) != self._index}
        known = self._connected.items()
        self._connected = {peer: incarnation for peer, incarnation in known if self._is_wanted(peer, incarnation)}
        self._tries = {p: tries for p, tries in self._tries.items() if before.get(p) == self._targets.get(p)}
        self.next_reconnect = None
        self._data.connect(self._targets)

    def _is_wanted(self, peer: int, incarnation: int) -> bool:
        return peer in self._targets and self._targets[peer][0] == incarnation

    def forget(self) -> None:
        """Wait for every stream to say again that it is there; nothing was lost on any, for all begins anew."""
        self._connected.clear()
        self._tries.clear()

    @property
    def complete(self) -> bool:
        """Whether all streams are there."""
        return all(self._connected.get(peer) == target[0] for peer, target in self._targets.items())

    def connected(self, peer: int, incarnation: int) -> bool:
        """There is a stream; true when it replaces one that broke."""
        self._connected[peer] = incarnation
        return self._tries.pop(peer, None) is not None

    def broken(self, peer: int, incarnation: int, wanted: bool) -> int:
        """A stream broke, or could not be opened; returns how often in a row. Not ``wanted``: nobody works there."""
        if self._connected.get(peer) == incarnation:
            del self._connected[peer]
        self._tries[peer] = self._tries.get(peer, 0) + 1 if wanted else 1
        self.next_reconnect = self._clock.monotonic() + RECONNECT_PAUSE_S
        return self._tries[peer]

    def reconnect(self, now: float) -> None:
        """Try again what is due."""
        if self.next_reconnect is not None and now >= self.next_reconnect:
            self.next_reconnect = None
            self._data.connect(self._targets)
