"""The output log of one channel: send buffer, back-pressure, replay and retention in one ordered log, held in memory.

Rules:

- Messages are opaque; they are numbered ``seq`` = first, first + 1, ... without gaps, in the order of ``append``.
- Four cursors, each the ``seq`` of the *next* message to be trimmed, acknowledged, sent, appended:
  ``trimmed <= acknowledged <= sent <= appended``. Messages ``[trimmed, appended)`` are kept.
- Bounded: ``append`` is refused (``LogFull``) while as many messages or bytes are unsent as the limits allow. One
  message may overshoot the byte limit, so that a message larger than the limit can pass at all. What is sent but not
  yet acknowledged is bounded by the consumer's credit (``limit``), and what is acknowledged by whoever calls
  ``trim``.
- An illegal call raises and changes nothing.
- Not locked: producer and sender share one lock, which they need anyway to wait for room and for something to send.

Imports nothing of the project. Spilling to disk is not in here yet.
"""

from __future__ import annotations

from typing import Generic, TypeVar

M = TypeVar("M")


class LogFull(Exception):
    """A message was appended although the log had no room; ask ``has_room`` first and wait."""


class OutputLog(Generic[M]):
    """The log of one channel.

    ``channel`` is any value that names the channel in errors. Raises ``ValueError`` for limits below 1.
    """

    __slots__ = (
        "_acknowledged",
        "_appended",
        "_messages",
        "_retained_bytes",
        "_sent",
        "_trimmed",
        "_unsent_bytes",
        "channel",
        "max_unsent_bytes",
        "max_unsent_messages",
    )

    def __init__(self, channel: object, max_unsent_messages: int, max_unsent_bytes: int, first: int = 0) -> None:
        if max_unsent_messages < 1 or max_unsent_bytes < 1 or first < 0:
            raise ValueError(
                f"output log of {channel}: limits must be at least 1 and the first seq at least 0, "
                f"got {max_unsent_messages} messages, {max_unsent_bytes} bytes, first {first}"
            )
        self.channel = channel
        self.max_unsent_messages = max_unsent_messages
        self.max_unsent_bytes = max_unsent_bytes
        self._messages: dict[int, tuple[M, int]] = {}
        self._trimmed = self._acknowledged = self._sent = self._appended = first
        self._unsent_bytes = 0
        self._retained_bytes = 0

    @property
    def trimmed(self) -> int:
        """The oldest ``seq`` that is still kept."""
        return self._trimmed

    @property
    def acknowledged(self) -> int:
        """The consumer has consumed every message before this one."""
        return self._acknowledged

    @property
    def sent(self) -> int:
        """The next ``seq`` to send."""
        return self._sent

    @property
    def appended(self) -> int:
        """The ``seq`` that the next appended message will get."""
        return self._appended

    @property
    def unsent_messages(self) -> int:
        """Messages appended and not sent."""
        return self._appended - self._sent

    @property
    def unsent_bytes(self) -> int:
        """Bytes appended and not sent."""
        return self._unsent_bytes

    @property
    def retained_bytes(self) -> int:
        """Bytes of every message that is kept."""
        return self._retained_bytes

    @property
    def has_room(self) -> bool:
        """Whether ``append`` would accept a message."""
        return self.unsent_messages < self.max_unsent_messages and self._unsent_bytes < self.max_unsent_bytes

    def append(self, message: M, size_bytes: int) -> int:
        """Add a message and return its ``seq``. Raises ``LogFull`` when there is no room, ``ValueError`` for a
        negative size.
        """
        if not self.has_room:
            raise LogFull(
                f"output log of {self.channel}: {self.unsent_messages} messages, {self._unsent_bytes} bytes unsent; "
                f"the limits are {self.max_unsent_messages} and {self.max_unsent_bytes}"
            )
        if size_bytes < 0:
            raise ValueError(f"output log of {self.channel}: a message cannot have {size_bytes} bytes")
        seq = self._appended
        self._messages[seq] = (message, size_bytes)
        self._appended = seq + 1
        self._unsent_bytes += size_bytes
        self._retained_bytes += size_bytes
        return seq

    def next_to_send(self, limit: int) -> tuple[int, M] | None:
        """The next message, as ``(seq, message)``, now counted as sent; ``None`` when all are sent or ``seq`` reaches
        ``limit``.

        ``limit`` is the consumer's credit: the first ``seq`` that it will not take yet.
        """
        seq = self._sent
        if seq >= self._appended or seq >= limit:
            return None
        message, size_bytes = self._messages[seq]
        self._sent = seq + 1
        self._unsent_bytes -= size_bytes
        return seq, message

    def take_to_send(self, limit: int, max_messages: int, max_bytes: int) -> list[tuple[int, M]]:
        """Several next messages for one transport frame, now counted as sent.

        As ``next_to_send``, until ``max_messages``, or until one more would exceed ``max_bytes``; but one, if any,
        whatever its size.
        """
        taken: list[tuple[int, M]] = []
        left = max_bytes
        while len(taken) < max_messages and self._sent < min(limit, self._appended):
            message, size_bytes = self._messages[self._sent]
            if taken and size_bytes > left:
                break
            taken.append((self._sent, message))
            left -= size_bytes
            self._sent += 1
            self._unsent_bytes -= size_bytes
        return taken

    def acknowledge(self, seq: int) -> None:
        """The consumer has consumed every message before ``seq``. An older acknowledgement than the last changes
        nothing.

        Raises ``ValueError`` for a message that was never sent.
        """
        if seq > self._sent:
            raise ValueError(f"output log of {self.channel}: {seq} acknowledged, but only {self._sent} sent")
        self._acknowledged = max(self._acknowledged, seq)

    def trim(self, seq: int) -> None:
        """Forget every message before ``seq``; less than what is trimmed already changes nothing.

        Raises ``ValueError`` for a message that is not acknowledged.
        """
        if seq > self._acknowledged:
            raise ValueError(
                f"output log of {self.channel}: cannot trim to {seq}, acknowledged is {self._acknowledged}"
            )
        for old in range(self._trimmed, seq):
            self._retained_bytes -= self._messages.pop(old)[1]
        self._trimmed = max(self._trimmed, seq)

    def rewind(self, seq: int) -> None:
        """Send again from ``seq`` on: replay. ``acknowledged`` goes back with it where it was further.

        Raises ``ValueError`` for a message that is trimmed or was never sent.
        """
        if not self._trimmed <= seq <= self._sent:
            raise ValueError(
                f"output log of {self.channel}: cannot rewind to {seq}, only within {self._trimmed} and {self._sent}"
            )
        self._unsent_bytes += sum(self._messages[again][1] for again in range(seq, self._sent))
        self._sent = seq
        self._acknowledged = min(self._acknowledged, seq)
