"""The two sides of a join, what it gives, and how rows are kept.

Rules:

- a null in a key is equal to nothing;
- ``how`` says which rows come out also when nothing matches them, with nulls for the other side: those of the ``left``,
  the ``right``, of both (``full``) or of none (``inner``);
- key columns that both sides call the same are one column of the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import cut, plain, plain_array
from flinkplus.operators.base.keys import check_key_columns, encode_keys
from flinkplus.operators.base.schema import repeated
from flinkplus.operators.event_time.event_time import check_time_column
from flinkplus.operators.joins.paged import HASH, TIME, Integers
from flinkplus.operators.joins.pairing import KEY
from flinkplus.state.hashing import hash_keys

How = Literal["inner", "left", "right", "full"]
KEEPS: dict[str, tuple[bool, bool]] = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
}
"""Whether rows of the left and of the right come out when nothing matches them."""
SIDES = ("left", "right")
LEAD = (pa.field(HASH, pa.uint64()), pa.field(KEY, pa.binary()), pa.field(TIME, pa.int64()))
"""What stored rows begin with."""


@dataclass(frozen=True)
class JoinSide:
    """One input: its schema, key columns, and the column of its event time; ``None``: it needs none."""

    schema: pa.Schema
    keys: tuple[str, ...]
    column: str | None
    prefix: str

    @property
    def kept_columns(self) -> list[pa.Field]:
        """The columns of its rows, as they are stored."""
        return [field.with_name(f"row {field.name}") for field in self.schema]


def check_sides(operator: str, left: JoinSide, right: JoinSide, how: str) -> None:
    """Raises ``ConfigurationError`` when the two sides cannot be joined so."""
    if not isinstance(how, str) or how not in KEEPS:
        raise ConfigurationError(f"operator {operator!r}: how must be one of {', '.join(KEEPS)}, not {how!r}")
    for side in (left, right):
        if not isinstance(side.prefix, str):
            raise ConfigurationError(f"operator {operator!r}: a prefix of columns is text, not {side.prefix!r}")
        check_key_columns(side.schema, side.keys)
        if side.column is not None:
            check_time_column(operator, side.schema, side.column)
    types = [[side.schema.field(key).type for key in side.keys] for side in (left, right)]
    if types[0] != types[1]:
        raise ConfigurationError(
            f"operator {operator!r}: the keys {left.keys} and {right.keys} are of different types: "
            f"{', '.join(map(str, types[0]))} and {', '.join(map(str, types[1]))}"
        )


class PairedRows:
    """The output of a join: the columns of the left, those of the right, and ``further`` ones.

    Raises ``ConfigurationError`` for columns of one name.
    """

    def __init__(
        self, operator: str, left: JoinSide, right: JoinSide, how: str, further: Sequence[pa.Field] = ()
    ) -> None:
        pairs = list(zip(left.keys, right.keys, strict=True))
        same = {name for name, other in pairs if name == other}
        self._names = left.schema.names, [name for name in right.schema.names if name not in same]
        self._at = [
            [side.schema.get_field_index(name) for name in names]
            for side, names in zip((left, right), self._names, strict=True)
        ]
        self._same = {left.schema.get_field_index(name): right.schema.get_field_index(name) for name in same}
        self._further = len(further)
        both = set(self._names[0]) & set(self._names[1])
        keeps = KEEPS[how]
        fields = []
        for which, side in enumerate((left, right)):
            for name in self._names[which]:
                field = side.schema.field(name)
                shown = side.prefix + name if name in both else name
                nullable = field.nullable or (keeps[1 - which] and name not in same)
                nullable = nullable or (name in same and right.schema.field(name).nullable)
                fields.append(field.with_name(shown).with_nullable(nullable))
        self.schema = pa.schema([*fields, *further])
        twice = repeated(self.schema.names)
        if twice is not None:
            raise ConfigurationError(
                f"operator {operator!r}: its output would have the column {twice!r} twice; give other prefixes"
            )

    def pairs(
        self, left: Sequence[pa.Array], right: Sequence[pa.Array], further: Sequence[pa.Array] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The output of pairs, of the columns of both sides."""
        columns = [side[at] for side, places in zip((left, right), self._at, strict=True) for at in places]
        yield from cut(pa.RecordBatch.from_arrays([*columns, *further], schema=self.schema))

    def padded(
        self, which: int, rows: Sequence[pa.Array], further: Sequence[pa.Array] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The output of rows of one side that nothing matches."""
        count = len(rows[0])
        own = {at: rows[at] for at in self._at[which]}
        if which == 1:
            own = {at: rows[other] for at, other in self._same.items()}
        columns: list[Any] = []
        for side, places in enumerate(self._at):
            for at in places:
                dtype = self.schema.field(len(columns)).type
                if side == which:
                    columns.append(rows[at])
                elif which == 1 and at in own:
                    columns.append(own[at])
                else:
                    columns.append(pa.nulls(count, dtype))
        if count:
            yield from cut(pa.RecordBatch.from_arrays([*columns, *further], schema=self.schema))


def without_null_keys(batch: pa.RecordBatch, side: JoinSide) -> npt.NDArray[np.bool_]:
    """Which rows have no null in their key."""
    found = np.ones(batch.num_rows, np.bool_)
    for key in side.keys:
        column = plain_array(batch.column(key), side.schema.field(key).type)
        if column.null_count:
            found = found & column.is_valid().to_numpy(zero_copy_only=False)
    return found


def stored_columns(batch: pa.RecordBatch, times: Integers, side: JoinSide, more: Sequence[pa.Array] = ()) -> list[Any]:
    """The columns of rows as they are stored: hash, key, time, ``more``, and those of the row."""
    key = encode_keys(batch, side.keys)
    lead = [pa.array(hash_keys(key.encoded)[key.codes]), key.encoded.take(pa.array(key.codes)), pa.array(times)]
    return [*lead, *more, *plain(batch, side.schema).columns]
