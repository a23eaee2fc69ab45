"""Where an output log stands: its cursors, and for each the bytes before it, so that every distance is known at once.

``trimmed <= acknowledged <= sent <= appended`` and ``trimmed <= kept <= appended``, each the ``seq`` of the *next*
message to be trimmed, acknowledged, sent, appended, or written to disk. A position (``..._at``) counts the bytes of all
messages of the log before that one.
"""

from __future__ import annotations


class LogCursors:
    """The cursors of a log that begins at ``first``; the log moves them."""

    __slots__ = (
        "_acknowledged",
        "_acknowledged_at",
        "_appended",
        "_appended_at",
        "_kept",
        "_kept_at",
        "_received",
        "_resend_end",
        "_resend_end_at",
        "_sent",
        "_sent_at",
        "_trimmed",
        "_trimmed_at",
    )

    def __init__(self, first: int, received: int) -> None:
        self._trimmed = self._kept = self._acknowledged = self._sent = self._resend_end = self._appended = first
        self._trimmed_at = self._kept_at = self._acknowledged_at = self._sent_at = self._resend_end_at = (
            self._appended_at
        ) = 0
        self._received = received

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
    def sent_once(self) -> int:
        """The highest that ``sent`` has ever been: messages from here on were never sent."""
        return max(self._sent, self._resend_end)

    @property
    def appended(self) -> int:
        """The ``seq`` that the next appended message will get."""
        return self._appended

    @property
    def unsent_messages(self) -> int:
        """Messages appended and not sent, or to be sent again."""
        return self._appended - self._sent

    @property
    def unsent_bytes(self) -> int:
        """Bytes appended and not sent, or to be sent again."""
        return self._appended_at - self._sent_at

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not yet acknowledged."""
        return self._sent_at - self._acknowledged_at

    @property
    def retained_messages(self) -> int:
        """Messages that are kept, in memory or on disk."""
        return self._appended - self._trimmed

    @property
    def retained_bytes(self) -> int:
        """Bytes of every message that is kept, in memory or on disk."""
        return self._appended_at - self._trimmed_at
