"""Whether rows of one schema can be read as rows of another: columns that may be null are added, numbers widened."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flinkplus.protocol.program.description import Column

_WHOLE = re.compile(r"(u?)int(8|16|32|64)\Z")
_FLOATS = ("halffloat", "float", "double")
_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (-?\d+)\)\Z")


def is_wider(old: str, new: str) -> bool:
    """Whether every number of type ``old`` is one of type ``new``, which is another one; both as Arrow writes them."""
    before, after = _WHOLE.match(old), _WHOLE.match(new)
    if before and after:
        sign = bool(after[1]) <= bool(before[1])  # whole numbers without a sign may become those with one
        return sign and int(after[2]) > int(before[2])
    if old in _FLOATS and new in _FLOATS:
        return _FLOATS.index(new) > _FLOATS.index(old)
    before, after = _DECIMAL.match(old), _DECIMAL.match(new)
    return bool(before and after and before[2] == after[2] and int(after[1]) > int(before[1]))


def why_unreadable(old: Sequence[Column], new: Sequence[Column]) -> str:
    """Why rows of ``old`` cannot be read as rows of ``new``; ``""`` if they can."""
    before = {column.name: column for column in old}
    names = {column.name for column in new}
    for column in new:
        known = before.get(column.name)
        if known is None:
            if not column.nullable:
                return f"column {column.name!r} is new and may not be null, so that old rows have no value for it"
        elif known.type != column.type and not is_wider(known.type, column.type):
            return f"column {column.name!r} was {known.type} and is {column.type}"
        elif known.nullable and not column.nullable:
            return f"column {column.name!r} may have been null, and may not be null now"
    gone = [column.name for column in old if column.name not in names]
    return f"column {gone[0]!r} is gone" if gone else ""
