"""Where a reader of a data source's batches is. Pure.

A *batch* is what lies between two offsets. Its end is known only when the data source has been asked; from then on it
belongs to the position.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from flinkplus.errors import InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.python.choices import MAX_OFFSET_BYTES

POSITION_FORMAT = 1


@dataclass(frozen=True)
class OffsetPosition:
    """Offsets are JSON texts.

    ``start``: of the batch in hand, or of the next one; ``None``: the data source was not asked for its first offset.
    ``end``: of the batch in hand; ``None``: the next batch was not begun. ``taken``: rows of the batch in hand that
    were read. ``pieces``: bytes of the next offset that are logged so far. ``batches``, ``rows``: read in all.
    """

    start: str | None = None
    end: str | None = None
    taken: int = 0
    pieces: bytes = b""
    batches: int = 0
    rows: int = 0

    def to_json(self) -> JsonValue:
        return {"format": POSITION_FORMAT, **vars(self), "pieces": self.pieces.hex()}

    @classmethod
    def from_json(cls, source: str, value: Any) -> OffsetPosition:
        """``None`` is the start. Raises ``InputError`` for what is no position."""
        if value is None:
            return cls()
        try:
            assert value["format"] == POSITION_FORMAT
            start, end = value["start"], value["end"]
            assert all(offset is None or isinstance(offset, str) for offset in (start, end))
            assert end is None or start is not None
            numbers = [value[name] for name in ("taken", "batches", "rows")]
            assert all(type(number) is int and number >= 0 for number in numbers)
            return cls(start, end, numbers[0], bytes.fromhex(value["pieces"]), numbers[1], numbers[2])
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"source {source!r}: not a position of this version: {value!r:.200}") from error


def offset_text(source: str, offset: object, max_bytes: int = MAX_OFFSET_BYTES) -> str:
    """An offset as JSON. Raises ``InputError`` for what a data source must not use as one."""
    try:
        text = json.dumps(offset, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"source {source!r}: an offset must be JSON: {error}") from error
    if not isinstance(offset, dict):
        raise InputError(f"source {source!r}: an offset must be a dict, not {type(offset).__name__}")
    if len(text) > max_bytes:
        raise InputError(
            f"source {source!r}: an offset has {len(text)} bytes as JSON, more than {max_bytes}: let it say "
            "where reading continues, not what was read"
        )
    return text
