"""What lets a process take part in a job: made by the driver, shipped to every slot with Spark's own task.

Rules: it is never sent over FlinkPlus's own connections, never written to a file of FlinkPlus, never on a command line,
and its ``repr`` does not show it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkplus.runtime.handshake import make_secret


@dataclass(frozen=True)
class Credentials:
    """Of one run of a job. ``secret``: what the handshake proves knowledge of."""

    secret: bytes = field(repr=False)

    @classmethod
    def made(cls) -> Credentials:
        """New ones."""
        return cls(make_secret())
