"""Which peers of a slot send nothing back, and whether the driver does.

Without ``hang_timeout`` nothing is looked for: only a connection that breaks counts.

Rules: one thread, the slot's loop. A slot whose driver is silent says so in its pulses, which may still arrive. When it
has been silent for ``GIVEN_UP_SHARE`` heartbeat timeouts, the driver has given the slot up long ago: the slot ends.
"""

from __future__ import annotations

from collections.abc import Callable

from flinkplus.config import Options
from flinkplus.runtime.liveness.pulse import Pulse
from flinkplus.runtime.transport.wire.ports import ControlLink, DataPlane

LOOKS_IN_TIMEOUT = 4
GIVEN_UP_SHARE = 2
"""Multiple of ``heartbeat_timeout`` after which the driver has certainly evicted a slot that got no answers."""
SILENT_SHARE = 0.75
"""Share of ``hang_timeout`` for which a peer may leave messages unanswered. The driver needs the rest to decide."""


class SilenceWatch:
    """Looks for silence with each heartbeat. ``lost``: called with the reason when the driver is considered lost.

    ``interval_s``: between two heartbeats. ``refused_s``: how long a peer may refuse connections.
    """

    def __init__(
        self, options: Options, data: DataPlane, link: ControlLink, pulse: Pulse, lost: Callable[[str], None]
    ) -> None:
        hang_s = options.hang_timeout
        self._limit_s = None if hang_s is None else hang_s * SILENT_SHARE
        self._patience_s = GIVEN_UP_SHARE * options.heartbeat_timeout
        self.refused_s = options.heartbeat_timeout * SILENT_SHARE if self._limit_s is None else self._limit_s
        looks_s = options.heartbeat_interval if hang_s is None else hang_s / LOOKS_IN_TIMEOUT
        self.interval_s = min(options.heartbeat_interval, looks_s)
        self._data = data
        self._link = link
        self._pulse = pulse
        self._lost = lost
        self._deaf_since: float | None = None

    def look(self, now: float) -> dict[int, int]:
        """The silent peers (slot -> incarnation). ``now``: seconds of the monotonic clock."""
        if self._limit_s is None:
            return {}
        deaf = self._link.is_silent(now, self._limit_s)
        if deaf != (self._deaf_since is not None):
            self._deaf_since = now if deaf else None
            self._pulse.tell(deaf)
        silent = self._data.silent(now, self._limit_s)
        if self._deaf_since is not None and now - self._deaf_since > self._patience_s:
            self._lost(f"no answer from it for {self._patience_s} s")
        return silent
