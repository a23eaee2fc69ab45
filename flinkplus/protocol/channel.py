"""The two ends of a channel: which message is next, and how many more may come.

Rules:

- Messages are numbered ``seq`` = 0, 1, 2, ... without gaps, within one generation of the channel.
- All that travels back is cumulative: ``acknowledged`` and ``limit`` count from the start of the channel. So a report
  that comes late, twice or out of order does no harm, and a lost one is made good by the next.
- ``limit`` is the first ``seq`` that may not be sent: what the consumer has consumed, plus its window. A consumer that
  stops consuming (slow, or blocked by alignment) thereby stops its producer, and only on this channel.

Invariants: ``consumed <= received <= limit`` at the consumer's end, ``acknowledged <= sent <= appended`` and
``sent <= limit`` at the producer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.ids import ChannelId, Generation, Seq, invariant


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


class InputCursor:
    """The consumer's end. ``window``: messages that may be received and not consumed; ``start``: the first ``seq``."""

    __slots__ = ("_announced", "_channel", "_consumed", "_generation", "_received", "_window")

    def __init__(self, channel: ChannelId, generation: Generation, window: int, start: Seq = FIRST) -> None:
        invariant(window >= 1, "a channel's window must hold a message", channel=channel, window=window)
        invariant(start >= 0, "a channel begins at 0 or later", channel=channel, start=start)
        self._channel = channel
        self._generation = generation
        self._window = window
        self._received = self._consumed = self._announced = start

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
        """First ``seq`` that may not be sent now."""
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
        if seq >= self.limit:
            raise PeerProtocolError(f"channel {self._channel}: message {seq} was sent beyond the limit {self.limit}")
        self._received = Seq(seq + 1)
        return ACCEPT

    def consume(self, count: int = 1) -> None:
        """The subtask took the next ``count`` received messages."""
        consumed = Seq(self._consumed + count)
        invariant(
            count > 0 and consumed <= self._received,
            "consumed what was not received",
            channel=self._channel,
            consumed=consumed,
            received=self._received,
        )
        self._consumed = consumed

    def announce(self) -> Seq | None:
        """The ``limit`` to report now with ``consumed``, or None when too little has changed to be worth a report.

        Half a window at least: the producer can never starve, since it has nothing left to send only after the whole
        window was consumed. The first call always reports.
        """
        limit = self.limit
        if limit - self._announced < max(1, self._window // 2):
            return None
        self._announced = limit
        return limit


class OutputCursor:
    """The producer's end. ``start``: the first ``seq``; ``credit``: messages that may go before the first report."""

    __slots__ = ("_acknowledged", "_appended", "_channel", "_generation", "_limit", "_newest_sent", "_sent")

    def __init__(self, channel: ChannelId, generation: Generation, start: Seq = FIRST, credit: int = 0) -> None:
        invariant(
            start >= 0 and credit >= 0, "a channel begins at 0 or later", channel=channel, start=start, credit=credit
        )
        self._channel = channel
        self._generation = generation
        self._acknowledged = self._sent = self._newest_sent = self._appended = start
        self._limit = Seq(start + credit)

    @property
    def acknowledged(self) -> Seq:
        """Messages before this ``seq`` are consumed."""
        return self._acknowledged

    @property
    def sent(self) -> Seq:
        """``seq`` of the next message to be sent."""
        return self._sent

    @property
    def appended(self) -> Seq:
        """``seq`` of the next message to be appended; what a snapshot notes as this channel's cursor."""
        return self._appended

    @property
    def limit(self) -> Seq:
        return self._limit

    @property
    def unsent(self) -> int:
        return self._appended - self._sent

    def append(self) -> Seq:
        """A message was added to the log; its ``seq``."""
        seq = self._appended
        self._appended = Seq(seq + 1)
        return seq

    def may_send(self) -> bool:
        return self._sent < min(self._appended, self._limit)

    def send(self) -> Seq:
        """The next message goes out; its ``seq``."""
        invariant(
            self.may_send(),
            "nothing may be sent",
            channel=self._channel,
            sent=self._sent,
            appended=self._appended,
            limit=self._limit,
        )
        seq = self._sent
        self._sent = Seq(seq + 1)
        self._newest_sent = max(self._newest_sent, self._sent)
        return seq

    def credit(self, generation: Generation, acknowledged: Seq, limit: Seq) -> bool:
        """Take the consumer's report; true when it brought something new. Older generations are ignored.

        Raises ``PeerProtocolError``, changing nothing, when the consumer reports what was never sent.
        """
        if generation < self._generation:
            return False
        if generation > self._generation:
            raise PeerProtocolError(
                f"channel {self._channel}: a report of generation {generation} reached generation {self._generation}, "
                "which has been replaced"
            )
        if acknowledged > self._newest_sent or limit < acknowledged:
            raise PeerProtocolError(
                f"channel {self._channel}: {acknowledged} consumed and limit {limit} reported, "
                f"but only {self._newest_sent} were sent"
            )
        news = acknowledged > self._acknowledged or limit > self._limit
        self._acknowledged = max(self._acknowledged, acknowledged)
        self._sent = max(self._sent, self._acknowledged)  # rewound, but it had arrived all the same
        self._limit = max(self._limit, limit)
        return news

    def rewind(self, seq: Seq) -> None:
        """Go on sending from ``seq``: what the consumer expects (it reported a gap, or the connection is a new one)."""
        if not self._acknowledged <= seq <= self._newest_sent:
            raise PeerProtocolError(
                f"channel {self._channel}: asked to send again from {seq}, which is not within "
                f"{self._acknowledged} (consumed) and {self._newest_sent} (sent)"
            )
        self._sent = seq
