"""Where an output log stands: its cursors, and the bytes before each, so that every distance is known at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class LogCursors:
    """The cursors of a log, which alone moves them.

    ``trimmed <= acknowledged <= sent <= appended`` and ``trimmed <= kept <= appended``, each the ``seq`` of the *next*
    message to be trimmed, acknowledged, sent, appended, or written to disk. A position (``..._at``) counts the bytes of
    all messages of the log before that one.

    ``resend_end``: the end of what is to be sent again.
    ``received``: the consumer has every message before it from an earlier incarnation of the producer.
    """

    trimmed: int
    kept: int
    acknowledged: int
    sent: int
    resend_end: int
    appended: int
    received: int
    kept_at: int = 0
    acknowledged_at: int = 0
    sent_at: int = 0
    resend_end_at: int = 0
    appended_at: int = 0

    @property
    def sent_once(self) -> int:
        """The highest that ``sent`` has ever been: messages from here on were never sent."""
        return max(self.sent, self.resend_end)

    @property
    def unsent_bytes(self) -> int:
        """Bytes appended and not sent, or to be sent again."""
        return self.appended_at - self.sent_at

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not yet acknowledged."""
        return self.sent_at - self.acknowledged_at

    @property
    def retained_messages(self) -> int:
        """Messages that are kept, in memory or on disk."""
        return self.appended - self.trimmed
