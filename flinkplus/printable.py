"""Text that another process or a file supplied, before it enters an error, a log line or a terminal.

Rules: an error or a log line contains text from outside only as ``printable(...)`` or ``{...!r:.N}``: with a limited
length, and without line breaks, escape sequences of a terminal and bidirectional controls. A character that is not
printable (``str.isprintable``) is written as in JSON: ``\\n``, ``\\u001b``. So the result within a JSON string is JSON.
A backslash stays as it is: text that was escaped already does not change.
"""

from __future__ import annotations

import json

LONGEST = 200


def escaped(text: str, keep: str = "") -> str:
    """``text`` with every character escaped that is neither printable nor in ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else json.dumps(c)[1:-1] for c in text)


def printable(value: object, longest: int = LONGEST, keep: str = "") -> str:
    """``value`` as text, escaped: its first ``longest`` characters. Text that is cut ends with its length."""
    text = str(value)
    shown = escaped(text[:longest], keep)
    if len(text) <= longest and len(shown) <= longest:
        return shown
    return f"{shown[:longest]}... ({len(text):,} characters)"
