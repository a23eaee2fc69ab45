"""What must hold of the text of every error that a decoder raises, whatever it was given.

Rule: an error with a control character, a line break or a bidirectional control, or one that is too long, is an
``AssertionError``, which no target expects.
"""

from __future__ import annotations

MOST_CHARACTERS = 1_000
"""An error may quote several values from outside, and each has a limit of some hundred characters."""


def assert_readable(error: Exception) -> None:
    """The text of ``error`` is one printable line of limited length."""
    text = str(error)
    if not text.isprintable():
        raise AssertionError(f"{type(error).__name__} has a text that is not printable: {text!r:.300}") from error
    if len(text) > MOST_CHARACTERS:
        raise AssertionError(f"{type(error).__name__} has a text of {len(text)} characters: {text:.300}") from error
