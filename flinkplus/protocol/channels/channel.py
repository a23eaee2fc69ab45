"""The consumer's end of a channel: which message is next, and how many more the producer may send.

The producer's end is the output log (``upstream_cache``). It takes what is consumed here as acknowledged, and sends up
to the ``limit`` announced here.

Rules:

- Messages are numbered ``seq`` = 0, 1, 2, ... without gaps, within one generation of the channel.
- All that travels back is cumulative: ``consumed`` and ``limit`` count from the start of the channel. So a late,
  repeated or reordered report does no harm, and the next report replaces a lost one.
- ``limit`` is the first ``seq`` that may not be sent: what the consumer has consumed, plus its window. Two cases go
  beyond it: a producer that sends again to a promoted consumer may send several windows; a barrier that overtakes is
  sent with all that precedes it, bounded by the producer (``OutputChannels.overdraw``).
- A consumer that stops consuming (slow, or blocked by alignment) thereby stops its producer, only on this channel.
- The window is in messages and in bytes. The producer counts the bytes that it has sent and the consumer has not
  reported as consumed. The consumer reports each half of either window, so neither waits for the other.

Invariant: ``consumed <= received <= consumed + window`` (several windows, or more, see above).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.frozen import Frozen
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, Seq, invariant


class Accept(Frozen):
    """The next message: the cursor counts it as received."""


class Duplicate(Frozen):
    """Received before: drop it."""


class Stale(Frozen):
    """From an older generation of the producer: drop it."""


class Gap(Frozen):
    """Ahead of ``expected``: drop it and ask the producer to send again from there."""

    expected: Seq


Decision: TypeAlias = Accept | Duplicate | Stale | Gap

ACCEPT, DUPLICATE, STALE = Accept(), Duplicate(), Stale()
FIRST = Seq(0)
NO_LIMIT = 1 << 62
REPLAY_WINDOWS = 4
"""Windows that a promoted consumer accepts, so that a replay does not wait for credit in the middle."""


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be sent and not consumed on one channel: a maximum of messages, and bytes before the next one."""

    messages: int
    size_bytes: int = NO_LIMIT

    @property
    def reported_at(self) -> tuple[int, int]:
        """Messages or bytes consumed after which the consumer reports: half of either."""
        return max(1, self.messages // 2), max(1, self.size_bytes // 2)

    @property
    def always_open(self) -> tuple[int, int]:
        """Messages that the producer may send while all earlier ones are consumed but not reported; and the maximum
        size of these messages without the last.
        """
        messages, size_bytes = self.reported_at
        return self.messages - messages + 1, self.size_bytes - size_bytes


class InputCursor:
    """``start``: the first ``seq``.
    ``replayed``: the consumer is promoted, and accepts ``REPLAY_WINDOWS`` windows from a producer that sends again.
    ``overdrawn``: the producer may send beyond its credit.
    """

    __slots__ = (
        "_channel",
        "_consumed",
        "_generation",
        "_most",
        "_received",
        "_reported",
        "_reported_at",
        "_unreported_bytes",
        "_window",
    )

    def __init__(
        self,
        channel: ChannelId,
        generation: Generation,
        window: Window,
        start: Seq = FIRST,
        *,
        replayed: bool = False,
        overdrawn: bool = False,
    ) -> None:
        messages = window.messages
        invariant(messages >= 1, "a channel's window must hold a message", channel=channel, window=messages)
        invariant(start >= 0, "a channel begins at 0 or later", channel=channel, start=start)
        self._channel = channel
        self._generation = generation
        self._window, self._reported_at = messages, window.reported_at
        self._most = NO_LIMIT if overdrawn else messages * (REPLAY_WINDOWS if replayed else 1)
        self._received = self._consumed = start
        self._reported = start - messages
        self._unreported_bytes = 0

    @property
    def generation(self) -> Generation:
        """The producer's generation, as this end knows it."""
        return self._generation

    @property
    def expected(self) -> Seq:
        """``seq`` of the next message to be received."""
        return self._received

    @property
    def consumed(self) -> Seq:
        """``seq`` of the next message to be consumed; a snapshot stores it as this channel's cursor."""
        return self._consumed

    @property
    def limit(self) -> Seq:
        """First ``seq`` that may not be sent now, except in a replay."""
        return Seq(self._consumed + self._window)

    def accept(self, generation: Generation, seq: Seq) -> Decision:
        """Decide about a message that arrived.

        Raises ``PeerProtocolError``, changing nothing, when the producer ignored the credit, or when this end is
        outdated.
        """
        if generation < self._generation:
            return STALE
        if generation > self._generation:
            raise PeerProtocolError(
                f"channel {self._channel}: a message of generation {generation} reached generation {self._generation}, "
                "which has been replaced"
            )
        if seq < self._received:
            return DUPLICATE
        if seq > self._received:
            return Gap(self._received)
        if seq >= self._consumed + self._most:
            limit = self._consumed + self._most
            raise PeerProtocolError(f"channel {self._channel}: message {seq} was sent beyond the limit {limit}")
        self._received = Seq(seq + 1)
        return ACCEPT

    def replace_producer(self, generation: Generation) -> None:
        """The producer has a new generation, and resumes where the old one was; received messages stay."""
        known, why = self._generation, "the generation of a channel's producer went back"
        invariant(generation >= known, why, channel=self._channel, known=known, given=generation)
        self._generation = generation

    def consume(self, count: int = 1, size_bytes: int = 0) -> None:
        """The subtask took the next ``count`` received messages, of ``size_bytes`` together."""
        consumed = Seq(self._consumed + count)
        invariant(
            count > 0 and consumed <= self._received,
            "consumed what was not received",
            channel=self._channel,
            consumed=consumed,
            received=self._received,
        )
        self._consumed = consumed
        self._unreported_bytes += size_bytes

    def announce(self) -> Seq | None:
        """The ``limit`` to report now with ``consumed``, or None when too little has changed to be worth a report.

        Reports when half a window of messages or of bytes is consumed, and in the first call. So the producer never
        starves: it has used up its credit only after a whole window.
        """
        messages, size_bytes = self._reported_at
        if self._consumed - self._reported < messages and self._unreported_bytes < size_bytes:
            return None
        self._reported, self._unreported_bytes = self._consumed, 0
        return self.limit
