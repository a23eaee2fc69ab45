"""The bounds of an interval join: how far apart the times of a pair may be, and which times the columns of a row allow.

Bounds are those of one side, the *owner*: a row of the owner at *t* matches rows of the other side from *t + lower* to
*t + upper*. In the place of a duration, an expression of the owner's columns gives the first or the last time itself.
With ``within``, the times of a pair are at most so far apart besides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.event_time.event_time import check_time_column, event_times
from flinkplus.operators.expressions.binding import bind
from flinkplus.operators.expressions.column import expression
from flinkplus.operators.expressions.tree import Alias, Call, Case, Cast, Name, Part, check_size, children
from flinkplus.operators.joins.paged import Integers
from flinkplus.operators.joins.sides import SIDES
from flinkplus.operators.rows.expressions import Computed

_DURATION = re.compile(r"\s*[+-]?\s*[0-9.]")
_BOUND = "bound"


@dataclass(frozen=True)
class Bounds:
    """``lower_ms``, ``upper_ms``: of the right time less the left time; ``None``: none.

    ``owner``: the side (0, 1) whose columns ``lower`` and ``upper`` are expressions of; ``None``: there is none.
    """

    lower_ms: int | None = None
    upper_ms: int | None = None
    owner: int = 0
    lower: Part | None = None
    upper: Part | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What must be equal for stored rows to keep their meaning; JSON."""
        settings: dict[str, Any] = {"lower_ms": self.lower_ms, "upper_ms": self.upper_ms}
        for name, part in (("lower", self.lower), ("upper", self.upper)):
            if part is not None:
                settings[name] = f"{SIDES[self.owner]}: {part}"
        return settings

    def ahead_ms(self, which: int) -> int | None:
        """How far after a row of a side the last row of the other one may be that it matches; ``None``: no limit."""
        if which == 0:
            return self.upper_ms
        return None if self.lower_ms is None else -self.lower_ms

    def behind_ms(self, which: int) -> int | None:
        """The same, of the first row and before."""
        return self.ahead_ms(1 - which)

    def of(self, which: int) -> tuple[Part | None, Part | None]:
        """The expressions of one side."""
        return (self.lower, self.upper) if which == self.owner else (None, None)

    def check(self, operator: str, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        """Raises ``ConfigurationError`` for bounds that no pair is within, or under which rows are kept for ever."""
        for name, part in (("lower", self.lower), ("upper", self.upper)):
            if part is not None:
                _check_instant(operator, name, part, schemas[self.owner])
        if self.lower_ms is not None and self.upper_ms is not None and self.lower_ms > self.upper_ms:
            low, high = (self.lower_ms, self.upper_ms) if self.owner == 0 else (-self.upper_ms, -self.lower_ms)
            raise ConfigurationError(f"operator {operator!r}: lower ({low} ms) is above upper ({high} ms)")
        if self.lower is not None and self.ahead_ms(1 - self.owner) is None:
            raise ConfigurationError(
                f"operator {operator!r}: a lower bound from columns says of no row of the other side when it can be "
                "dropped; give within, the maximum distance of the times of a pair"
            )


def _check_instant(operator: str, name: str, part: Part, schema: pa.Schema) -> None:
    try:
        check_size(part)
        dtype = bind(part, schema).dtype
    except ConfigurationError as error:
        raise ConfigurationError(f"operator {operator!r}: {name}: {error}") from error.__cause__
    try:
        check_time_column(operator, pa.schema([pa.field(str(part), dtype)]), str(part))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"operator {operator!r}: {name}: {part} is {dtype}; a bound is a duration, or a time as a timestamp or an "
            "integer of milliseconds"
        ) from error


def bounds_of(
    operator: str, lower: Any, upper: Any, within: Duration | None, schemas: tuple[pa.Schema, pa.Schema]
) -> Bounds:
    """The bounds that a program names: durations, SQL text or columns of ``flinkplus.functions``.

    Raises ``ConfigurationError``.
    """
    durations: list[int | None] = []
    parts: list[Part | None] = []
    owners: set[int] = set()
    for name, value in (("lower", lower), ("upper", upper)):
        if isinstance(value, int | float) or (isinstance(value, str) and _DURATION.match(value)):
            durations.append(duration_ms(value, f"operator {operator!r}: {name}", least=None))
            parts.append(None)
        else:
            owner, part = _owned(operator, name, value, schemas)
            durations.append(None)
            parts.append(part)
            owners.add(owner)
    if len(owners) > 1:
        raise ConfigurationError(f"operator {operator!r}: lower and upper are of columns of different sides; take one")
    owner = owners.pop() if owners else 0
    first, last = durations
    if owner == 1:
        first, last = (None if bound is None else -bound for bound in (last, first))
    if within is not None:
        most = duration_ms(within, f"operator {operator!r}: within")
        if (first or 0) > most or (last or 0) < -most:
            raise ConfigurationError(f"operator {operator!r}: lower and upper allow no pair that is within {most} ms")
        first = -most if first is None else max(first, -most)
        last = most if last is None else min(last, most)
    return Bounds(first, last, owner, *parts)


def _owned(operator: str, what: str, value: Any, schemas: tuple[pa.Schema, pa.Schema]) -> tuple[int, Part]:
    """The side whose columns an expression has, and the expression with their names there."""
    try:
        part = expression(value)
        check_size(part)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"operator {operator!r}: {what}: {value!r} is neither a duration such as '10 seconds' nor an expression: "
            f"{error}"
        ) from error.__cause__
    possible = {0, 1}
    for name in _names(part):
        first = name.parts[0]
        if first in SIDES and len(name.parts) > 1:
            possible &= {SIDES.index(first)}
        else:
            known = {which for which in (0, 1) if first in schemas[which].names}
            possible &= known or {0, 1}  # an unknown column is named when the expression is bound
    if len(possible) != 1:
        problem = "may be of either side" if possible else "has columns of both sides"
        raise ConfigurationError(
            f"operator {operator!r}: {what}: {part} {problem}; take columns of one side, as left.x or right.x"
        )
    (owner,) = possible
    return owner, _plain_names(part, SIDES[owner])


def _names(part: Part) -> Iterator[Name]:
    if isinstance(part, Name):
        yield part
    for inner in children(part):
        yield from _names(inner)


def _plain_names(part: Part, side: str) -> Part:
    """The expression without the name of the side in front of columns."""
    match part:
        case Name() if part.parts[0] == side and len(part.parts) > 1:
            return Name(part.parts[1:])
        case Call():
            return replace(part, arguments=tuple(_plain_names(each, side) for each in part.arguments))
        case Cast() | Alias():
            return replace(part, value=_plain_names(part.value, side))
        case Case():
            branches = tuple((_plain_names(when, side), _plain_names(then, side)) for when, then in part.branches)
            otherwise = None if part.otherwise is None else _plain_names(part.otherwise, side)
            return Case(branches, otherwise)
        case _:
            return part


class OwnTimes:
    """The first and last times that the columns of one side's rows allow, in one subtask."""

    def __init__(self, parts: tuple[Part | None, Part | None], ctx: OperatorContext, schema: pa.Schema) -> None:
        own = replace(ctx, input_schema=schema)
        self._computed = [None if part is None else Computed(part, own) for part in parts]

    def of(
        self, batch: pa.RecordBatch, earliest: Integers, latest: Integers
    ) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
        """``earliest`` and ``latest``, cut by what each row allows; and which rows have no null there.

        Raises ``UserFunctionError`` for a row on which an expression fails.
        """
        known = np.ones(batch.num_rows, np.bool_)
        cut_to = [earliest, latest]
        for at, (computed, tighter) in enumerate(zip(self._computed, (np.maximum, np.minimum), strict=True)):
            if computed is not None:
                values = pa.RecordBatch.from_arrays([computed.of(batch)], names=[_BOUND])
                instants = event_times(values, _BOUND)
                cut_to[at], known = tighter(cut_to[at], instants.ms), known & instants.known
        return cut_to[0], cut_to[1], known
