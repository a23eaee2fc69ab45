"""How long TCP has received no acknowledgement of data sent on a connection.

The *system* at the other end acknowledges data at once, even if the process there computes for a long time, is stopped,
or does not read. So silence means that the network loses packets in one direction, or that the host hangs.

Rules: a connection without unacknowledged data is not silent. Progress is any delivered segment, also out of order;
with a window of zero, any received segment. The time between two calls counts at most as half the limit, so that a host
which was frozen itself does not take that for the silence of others. Only Linux reports this.
"""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass

from flinkplus.runtime.transport.auth.tls import TlsSocket

TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform.startswith("linux") else None
INFO_BYTES = 256
PROBES = struct.Struct("=3xB")
UNACKED = struct.Struct("=24xI")
BYTES_ACKED = struct.Struct("=120xQ")
SEGMENTS_IN = struct.Struct("=140xI")
DELIVERED = struct.Struct("=192xI")
"""Where they are in the kernel's ``struct tcp_info``, which only ever grows at its end."""
UNANSWERED = 2
"""Probes of a closed window that prove that one was not answered: on a loopback device, the answer to a probe arrives
before the system counts that probe."""


def waits_for(info: bytes) -> tuple[int, ...] | None:
    """What changes with every sign of the other end, while one is due; ``None``: none is."""
    if len(info) < SEGMENTS_IN.size:
        return None
    (unacked,), (probes,) = UNACKED.unpack_from(info), PROBES.unpack_from(info)
    if unacked:
        delivered = DELIVERED.unpack_from(info) if len(info) >= DELIVERED.size else ()
        return (*BYTES_ACKED.unpack_from(info), *delivered)
    return (-1, *SEGMENTS_IN.unpack_from(info)) if probes >= UNANSWERED else None


@dataclass(slots=True, eq=False)
class Silence:
    """The silence of one connection."""

    _mark: tuple[int, ...] | None = None
    _looked_s: float = 0.0
    _silent_s: float = 0.0

    def lasts_s(self, sock: socket.socket | TlsSocket, now_s: float, limit_s: float) -> float:
        """For how many seconds sent data was not acknowledged. Raises ``OSError``."""
        if TCP_INFO is None:
            return 0.0
        return self.after(waits_for(sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, INFO_BYTES)), now_s, limit_s)

    def after(self, mark: tuple[int, ...] | None, now_s: float, limit_s: float) -> float:
        """``lasts_s``, where the system has given ``mark``."""
        if mark is None or mark != self._mark:
            self._silent_s = 0.0
        else:
            self._silent_s += min(now_s - self._looked_s, limit_s / 2)
        self._mark, self._looked_s = mark, now_s
        return self._silent_s
