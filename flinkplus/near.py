"""The known name that a user may have meant by one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CLOSENESS = 0.6


def did_you_mean(text: str, known: Iterable[str], otherwise: str = "", closeness: float = CLOSENESS) -> str:
    """``'; did you mean 'count'?'`` for a near match of ``text`` among ``known``; ``otherwise`` without one.
    ``closeness``: how alike the two must be; 1 is equal."""
    found = difflib.get_close_matches(text, list(known), n=1, cutoff=closeness)
    return f"; did you mean {found[0]!r}?" if found else otherwise
