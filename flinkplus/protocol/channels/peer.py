"""A consumer as its producer sees it.

Rules: pure data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flinkplus.protocol.vocabulary.ids import Generation


@dataclass(frozen=True, slots=True)
class Peer:
    """A consumer as its producer sees it.

    ``slot``: ``None`` when it is the producer's own.
    ``received``: the next ``seq`` that it expected of a promoted producer when that was fenced. ``None``: it was not
    sent any message yet, or it had failed by then.
    ``resuming``: it is being promoted itself, and will report where to resume. With ``received``, it has failed since,
    and resumes there or before.
    ``had``: digests of what it has received, by ``seq`` (``None``: nothing is compared).
    ``renumbered``: messages sent to it again get new numbers, after those that it has received.
    """

    slot: int | None
    generation: Generation
    received: int | None = None
    resuming: bool = False
    had: Mapping[int, int] | None = None
    renumbered: bool = False
