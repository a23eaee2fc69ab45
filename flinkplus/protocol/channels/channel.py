"""The consumer's end of a channel: which message is next, and how many more may come.

The producer's end is the output log (``upstream_cache``): what is consumed here it takes as acknowledged, and it sends
up to the ``limit`` announced here.

Rules:

- Messages are numbered ``seq`` = 0, 1, 2, ... without gaps, within one generation of the channel.
- All that travels back is cumulative: ``consumed`` and ``limit`` count from the start of the channel. So a report that
  comes late, twice or out of order does no harm, and a lost one is made good by the next.
- ``limit`` is the first ``seq`` that may not be sent: what the consumer has consumed, plus its window. Only what a
  producer sends again to a promoted consumer may go several windows beyond, and a barrier that overtakes goes beyond
  it with what is before it: its producer bounds that (``OutputChannels.overdraw``). A consumer that
  stops consuming (slow, or blocked by alignment) thereby stops its producer, and only on this channel.
- The window is in messages and in bytes. The producer counts the bytes that it has sent and the consumer has not
  reported as consumed. The consumer reports each half of either window, so neither waits for the other.

Invariant: ``consumed <= received <= consumed + window`` (several windows, or more, see above).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, Seq, invariant


@dataclass(frozen=True, slots=True)
class Accept:
    """The next message: it is counted as received."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Received before: drop it."""


@dataclass(frozen=True, slots=True)
class Stale:
    """From an older generation of the producer: drop it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Ahead of ``expected``: drop it and ask the producer to send again from there."""

    expected: Seq


Decision: TypeAlias = Accept | Duplicate | Stale | Gap

ACCEPT, DUPLICATE, STALE = Accept(), Duplicate(), Stale()
FIRST = Seq(0)
NO_LIMIT = 1 << 62
REPLAY_WINDOWS = 4
"""What a promoted consumer takes, in windows: a replay shall not wait for credit half-way."""


@dataclass(frozen=True, slots=True)
class Window:
    """How much of one channel may be sent and not consumed: so many messages, and bytes until another is sent."""

    messages: int
    size_bytes: int = NO_LIMIT


class InputCursor:
    """``start``: the first ``seq``.
    ``replayed``: the consumer is a promoted one, and takes ``REPLAY_WINDOWS`` windows of messages from a producer that
    sends again.
    ``overdrawn``: the producer may send beyond its credit.
    """

    __slots__ = (
        "_channel",
        "_consumed",
        "_generation",
        "_most",
        "_received",
        "_reported",
        "_unreported_bytes",
        "_window",
        "_window_bytes",
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
        self._window, self._window_bytes = messages, window.size_bytes
        self._most = NO_LIMIT if overdrawn else messages * (REPLAY_WINDOWS if replayed else 1)
        self._received = self._consumed = start
        self._reported = start - messages
        self._unreported_bytes = 0

    @property
    def generation(self) -> Generation:
        """The producer's, as far as this end knows."""
        return self._generation

    @property
    def expected(self) -> Seq:
        """``seq`` of the next message to be received."""
        return self._received

    @property
    def consumed(self) -> Seq:
        """``seq`` of the next message to be consumed; what a snapshot notes as this channel's cursor."""
        return self._consumed

    @property
    def limit(self) -> Seq:
        """First ``seq`` that may not be sent now, but for a replay."""
        return Seq(self._consumed + self._window)

    def accept(self, generation: Generation, seq: Seq) -> Decision:
        """Judge an arrived message.

        Raises ``PeerProtocolError``, changing nothing, when the producer ignored the credit, or when this end is the
        outdated one.
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
        """The producer has a new generation from now on: it goes on where the old one was; what is received stays."""
        invariant(
            generation >= self._generation,
            "a channel's producer goes back in generation",
            channel=self._channel,
            known=self._generation,
            given=generation,
        )
        self._generation = generation

    def consume(self, count: int = 1, size_bytes: int = 0) -> None:
        """The subtask took the next ``count`` received messages, of so many bytes."""
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

        Half a window at least, of messages or of bytes: the producer can never starve, since it has nothing left to
        send only after the whole window was consumed. The first call always reports.
        """
        few = self._consumed - self._reported < max(1, self._window // 2)
        if few and self._unreported_bytes < max(1, self._window_bytes // 2):
            return None
        self._reported, self._unreported_bytes = self._consumed, 0
        return self.limit
