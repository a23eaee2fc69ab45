"""The output log of one channel: send buffer, back-pressure, replay and retention in one ordered log.

Rules:

- Messages are opaque; they are numbered ``seq`` = first, first + 1, ... without gaps, in the order of ``append``.
  Messages ``[trimmed, appended)`` are kept (``LogCursors``).
- Bounded: ``append`` is refused (``LogFull``) while as many messages or bytes were never sent as the limits allow; one
  message may overshoot the byte limit. What waits to be sent *again* after ``rewind`` does not count, so that a replay
  to one slow consumer does not stop the producer at once. The consumer's credit (``limit``) bounds what is sent and not
  yet acknowledged.
- A log whose limits were lifted (``lift_limits``) refuses nothing; what was never sent may be on disk then.
- With a ``Retention`` the oldest messages may be on disk: ``[trimmed, kept)``. They are read back one at a time.
- An illegal call raises and changes nothing.
- Not locked: producer and sender share one lock, or one thread.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from upstream_cache.cursors import LogCursors
from upstream_cache.retention import MESSAGE_OVERHEAD_BYTES, Retention
from upstream_cache.segments import CorruptSegment
from upstream_cache.spilled import SpilledMessages

M = TypeVar("M")

ENDLESS = 1 << 62


class LogFull(Exception):
    """A message was appended although the log had no room; ask ``has_room`` first and wait."""


class OutputLog(LogCursors, Generic[M]):
    """The log of one channel.

    ``channel``: any value that names the channel in errors.
    ``first``: the first ``seq``.
    ``received``: messages before it count as sent and acknowledged when they are appended; they are kept until trimmed.
    ``retention``: what the log shares with the other logs of its slot; without it all is held in memory.

    Raises ``ValueError`` for limits below 1, or for ``received`` below ``first``.
    """

    __slots__ = (
        "_limited",
        "_messages",
        "_retention",
        "_spilled",
        "channel",
        "max_unsent_bytes",
        "max_unsent_messages",
    )

    def __init__(
        self,
        channel: object,
        max_unsent_messages: int,
        max_unsent_bytes: int,
        first: int = 0,
        *,
        received: int | None = None,
        retention: Retention[M] | None = None,
    ) -> None:
        if max_unsent_messages < 1 or max_unsent_bytes < 1 or first < 0:
            raise ValueError(
                f"output log of {channel}: limits must be at least 1 and the first seq at least 0, "
                f"got {max_unsent_messages} messages, {max_unsent_bytes} bytes, first {first}"
            )
        if received is not None and received < first:
            raise ValueError(
                f"output log of {channel}: begins at {first}, but the consumer received only to {received}"
            )
        super().__init__(first, first, first, first, first, first, first if received is None else received)
        self.channel = channel
        self.max_unsent_messages = max_unsent_messages
        self.max_unsent_bytes = max_unsent_bytes
        self._limited = True
        self._messages: dict[int, tuple[M, int, int]] = {}  # seq -> message, size, position
        self._retention = retention
        self._spilled: SpilledMessages[M] | None = None
        if retention is not None:
            self._spilled = SpilledMessages(channel, retention)
            retention.logs.append(self)

    def lift_limits(self) -> None:
        """Never refuse a message from now on. With a ``Retention``, what was never sent goes to disk last."""
        self._limited = False
        self.max_unsent_messages = self.max_unsent_bytes = ENDLESS

    @property
    def accepts(self) -> bool:
        """Whether ``append`` would accept a message: what was never sent is below the limits."""
        return (
            self.appended - self.sent < self.max_unsent_messages
            and self.appended_at - self.sent_at < self.max_unsent_bytes
        ) or self._accepts_beside_replay()

    @property
    def has_room(self) -> bool:
        """Whether a message should be appended now: ``accepts``, and the memory budget holds or the disk takes more.

        A caller that has found room in several logs may append one message to each. A checkpoint barrier, which lets
        trimming continue and so may free a blocked spill volume, needs ``accepts`` only.
        """
        retention = self._retention
        return self.accepts and (retention is None or retention.blocked is None or retention.relieve())

    def _accepts_beside_replay(self) -> bool:
        """``accepts`` when what waits to be sent again is not counted; apart, since it is seldom asked."""
        return (
            self.sent < self.resend_end
            and self.appended - self.resend_end < self.max_unsent_messages
            and self.appended_at - self.resend_end_at < self.max_unsent_bytes
        )

    def append(self, message: M, size_bytes: int) -> int:
        """Add a message; returns its ``seq``. Raises ``LogFull`` without room, ``ValueError`` for a negative size."""
        seq, position = self.appended, self.appended_at
        if (
            seq - self.sent >= self.max_unsent_messages or position - self.sent_at >= self.max_unsent_bytes
        ) and not self._accepts_beside_replay():
            raise LogFull(
                f"output log of {self.channel}: {seq - self.sent} messages, {self.unsent_bytes} bytes unsent; "
                f"the limits are {self.max_unsent_messages} and {self.max_unsent_bytes}"
            )
        if size_bytes < 0:
            raise ValueError(f"output log of {self.channel}: a message cannot have {size_bytes} bytes")
        self._messages[seq] = (message, size_bytes, position)
        self.appended = seq + 1
        self.appended_at = position + size_bytes
        if seq < self.received:
            self.sent = self.acknowledged = seq + 1
            self.sent_at = self.acknowledged_at = position + size_bytes
        retention = self._retention
        if retention is not None:
            retention.memory_bytes += size_bytes + MESSAGE_OVERHEAD_BYTES
            if retention.memory_bytes > retention.budget_bytes:
                retention.make_room(size_bytes + MESSAGE_OVERHEAD_BYTES)
        return seq

    def next_to_send(self, limit: int) -> tuple[int, M] | None:
        """The next message, as ``(seq, message)``, now counted as sent; ``None`` when all before ``limit`` are sent.

        ``limit``: the consumer's credit, the first ``seq`` that it will not take yet. Raises ``CorruptSegment``.
        """
        seq = self.sent
        if seq >= self.appended or seq >= limit:
            return None
        if seq < self.kept:
            message, size_bytes = self._read_back(seq)
        else:
            message, size_bytes, _ = self._messages[seq]
        self.sent = seq + 1
        self.sent_at += size_bytes
        return seq, message

    def take_to_send(self, limit: int, max_messages: int, max_bytes: int) -> list[tuple[int, M]]:
        """Several next messages: up to ``max_messages``, and to ``max_bytes`` after the first. See ``next_to_send``."""
        taken: list[tuple[int, M]] = []
        end_at = self.sent_at + max_bytes
        while len(taken) < max_messages and self.sent < min(limit, self.appended):
            if taken and self._position(self.sent + 1) > end_at:
                break
            try:
                entry = self.next_to_send(limit)
            except CorruptSegment:
                if taken:
                    break  # what was taken goes out first; the next call raises
                raise
            assert entry is not None
            taken.append(entry)
        return taken

    def acknowledge(self, seq: int) -> None:
        """The consumer has consumed every message before ``seq``; no effect when it is older than the last call's.

        Raises ``ValueError`` for a message that was neither sent (since the last ``rewind``) nor received before.
        """
        if seq > self.sent and seq > self.received:
            raise ValueError(f"output log of {self.channel}: {seq} acknowledged, but only {self.sent} sent")
        seq = min(seq, self.sent)
        if seq > self.acknowledged:
            self.acknowledged, self.acknowledged_at = seq, self._position(seq)

    def trim(self, seq: int) -> None:
        """Forget every message before ``seq``. Raises ``ValueError`` for a message that is not acknowledged."""
        if seq > self.acknowledged:
            raise ValueError(f"output log of {self.channel}: cannot trim to {seq}, acknowledged is {self.acknowledged}")
        if seq <= self.trimmed:
            return
        at = self._position(seq)
        for old in range(self.kept, seq):
            del self._messages[old]
        some_on_disk = self.trimmed < self.kept
        self.trimmed = seq
        freed = 0
        if seq > self.kept:
            freed = self._memory_bytes(self.kept, self.kept_at, seq, at)
            self.kept, self.kept_at = seq, at
        if self._spilled is not None and self._retention is not None:
            if some_on_disk:
                self._spilled.trim(seq)
            self._retention.trimmed(freed)

    def rewind(self, seq: int) -> None:
        """Send again from ``seq`` on: replay, to the same or another consumer, which has nothing from ``seq`` on.

        ``acknowledged`` and ``received`` go back with it. ``seq`` may be ahead of what is sent, up to ``received``:
        messages before it still count as sent when they are appended.
        Raises ``ValueError`` for a message that is trimmed, or was neither sent nor received before.
        """
        if not self.trimmed <= seq <= max(self.sent, self.received):
            raise ValueError(
                f"output log of {self.channel}: cannot rewind to {seq}, only within {self.trimmed} and "
                f"{max(self.sent, self.received)}"
            )
        if seq > self.sent:
            self._go_to(min(seq, self.appended))
            self.acknowledged, self.acknowledged_at, self.received = self.sent, self.sent_at, seq
            return
        if self.sent > self.resend_end:
            self.resend_end, self.resend_end_at = self.sent, self.sent_at
        self._go_to(seq)
        if seq < self.acknowledged:
            self.acknowledged, self.acknowledged_at = self.sent, self.sent_at
        self.received = min(self.received, seq)

    def close(self) -> None:
        """Forget everything, on disk too. A closed log is empty and takes no message."""
        if self._spilled is not None and self._retention is not None:
            freed = self._memory_bytes(self.kept, self.kept_at, self.appended, self.appended_at)
            self._spilled.close()
            self._retention.logs.remove(self)
            self._retention.trimmed(freed)
            self._retention = self._spilled = None
        self._messages.clear()
        self.trimmed = self.kept = self.acknowledged = self.sent = self.appended
        self.kept_at = self.acknowledged_at = self.sent_at = self.appended_at
        self.max_unsent_messages = 0

    def spillable_bytes(self, again: bool) -> int:
        """See ``Spillable``."""
        end, end_at = self.sent, self.sent_at
        if again and not self._limited:
            end, end_at = self.appended, self.appended_at
        elif again and self.resend_end > self.sent:
            end, end_at = self.resend_end, self.resend_end_at
        return self._memory_bytes(self.kept, self.kept_at, end, end_at)

    def spill(self, target_bytes: int, again: bool) -> int:
        """See ``Spillable``."""
        if self._spilled is None or self._retention is None:
            return 0
        seq, end = self.kept, self.sent
        if again:
            end = self.sent_once if self._limited else self.appended
        at = self.kept_at
        encode = self._retention.codec.encode
        records = []
        freed = 0
        while seq < end and freed < target_bytes:
            message, size_bytes, _ = self._messages[seq]
            records.append((size_bytes, encode(message)))
            freed += size_bytes + MESSAGE_OVERHEAD_BYTES
            seq += 1
            at += size_bytes
        self._spilled.write(self.kept, self.kept_at, records)
        for old in range(self.kept, seq):
            del self._messages[old]
        self.kept, self.kept_at = seq, at
        self._retention.memory_bytes -= freed
        return freed

    @staticmethod
    def _memory_bytes(first: int, first_at: int, end: int, end_at: int) -> int:
        """What messages ``[first, end)`` count in the memory budget; below 0 when that is backwards."""
        return end_at - first_at + MESSAGE_OVERHEAD_BYTES * (end - first)

    def _position(self, seq: int) -> int:
        """Bytes of all messages before ``seq``, which is kept or ``appended``."""
        if seq == self.appended:
            return self.appended_at
        if seq < self.kept and self._spilled is not None:
            return self._spilled.position(seq)
        return self._messages[seq][2]

    def _go_to(self, seq: int) -> None:
        """Send ``seq`` next."""
        at = self._position(seq)
        if self._spilled is not None:
            self._spilled.stop_reading()
        self.sent, self.sent_at = seq, at

    def _read_back(self, seq: int) -> tuple[M, int]:
        """Message ``seq`` from disk, and its size."""
        if self._spilled is None:
            raise KeyError(seq)
        size_bytes = self._spilled.size_bytes(seq)
        message = self._spilled.read(seq)
        if seq + 1 == self.kept:
            self._spilled.stop_reading()
        return message, size_bytes
