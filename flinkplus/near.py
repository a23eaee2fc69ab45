"""The known name that a user may have meant by one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """``'; did you mean 'count'?'`` for a near match of ``text`` among ``known``, else nothing."""
    found = difflib.get_close_matches(text, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
