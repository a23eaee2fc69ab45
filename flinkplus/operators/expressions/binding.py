"""From trees to expressions with types: columns are looked up, functions found, types checked.

Rules: names of columns are compared letter by letter; those of functions in any case. All problems are
``ConfigurationError``s that name the smallest part that is wrong, and come in the driver, before a job starts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean
from flinkplus.operators.base.schema import repeated
from flinkplus.operators.expressions.bound import Bound, attempted, column_at, constant
from flinkplus.operators.expressions.casts import cast
from flinkplus.operators.expressions.functions import arithmetic, logic, moments, nested, text
from flinkplus.operators.expressions.functions.registry import called
from flinkplus.operators.expressions.tree import (
    Alias,
    Call,
    Case,
    Cast,
    Literal,
    Name,
    Part,
    Star,
    check_size,
    literal_of,
    name_of,
)

ROOMS = (arithmetic, logic, moments, nested, text)
"""The modules that fill the table of functions."""


def bind(part: Part, schema: pa.Schema) -> Bound:
    """The expression for rows of ``schema``. Raises ``ConfigurationError``."""
    check_size(part)
    return _bound(part, schema)


def _bound(part: Part, schema: pa.Schema) -> Bound:
    match part:
        case Name():
            return _column(part, schema)
        case Literal():
            return constant(part.value, part.dtype)
        case Alias():
            return _bound(part.value, schema)
        case Cast():
            value = _bound(part.value, schema)
            with _named(part):
                found = cast(value, part.dtype, strict=part.strict)
                return found if part.strict else attempted(found)
        case Case():
            branches = [(_bound(condition, schema), _bound(value, schema)) for condition, value in part.branches]
            otherwise = None if part.otherwise is None else _bound(part.otherwise, schema)
            with _named(part):
                return logic.case(branches, otherwise)
        case Call():
            return _call(part, schema)
        case Star():
            raise ConfigurationError(f"{part} can only stand alone, as one of the columns of select")


class _named:
    """Names the part in which a ``ConfigurationError`` was found."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConfigurationError):
            raise ConfigurationError(f"{self._part}: {error}") from error.__cause__


def _call(part: Call, schema: pa.Schema) -> Bound:
    arguments = tuple(_bound(argument, schema) for argument in part.arguments)
    with _named(part):
        if part.function.lower() == "struct":
            return nested.struct_of([_field_name(*each) for each in enumerate(part.arguments, 1)], arguments)
        return called(part.function, arguments)


def _field_name(number: int, part: Part) -> str:
    """The name of a field of ``struct(...)``: that of the column or field that it is; otherwise its number."""
    named = isinstance(part, (Name, Alias)) or (isinstance(part, Call) and part.function == ".")
    return name_of(part) if named else f"col{number}"


def _column(part: Name, schema: pa.Schema) -> Bound:
    column, *fields = part.parts
    positions = [at for at, name in enumerate(schema.names) if name == column]
    if len(positions) != 1:
        near = did_you_mean(column, schema.names)
        raise ConfigurationError(f"no column {column!r} among {schema.names}{near}")
    found = column_at(positions[0], schema.field(positions[0]))
    with _named(part):
        for field in fields:
            name = literal_of(field)
            found = nested.field_of(found, constant(name.value, name.dtype))
    return found


def columns(parts: tuple[Part, ...], schema: pa.Schema) -> list[tuple[str, Bound]]:
    """The columns that a list of parts means, with their names. Raises ``ConfigurationError``."""
    for part in parts:
        check_size(part)
    found = [(name_of(each), _bound(each, schema)) for part in parts for each in _spread(part, schema)]
    if not found:
        raise ConfigurationError("at least one column must be left")
    if (twice := repeated([name for name, _ in found])) is not None:
        raise ConfigurationError(f"two columns are called {twice!r}: give one another name with AS")
    for name, bound in found:
        if pa.types.is_null(bound.dtype):
            raise ConfigurationError(f"column {name!r} is always null, and has no type: cast it")
        if pa.types.is_duration(bound.dtype) and bound.column is None:
            raise ConfigurationError(f"column {name!r} is an interval, which no row can hold")
    return found


def _spread(part: Part, schema: pa.Schema) -> Iterator[Part]:
    if not isinstance(part, Star):
        yield part
    elif part.of is None:
        yield from (Name((name,)) for name in schema.names)
    else:
        dtype = _column(part.of, schema).dtype
        if not pa.types.is_struct(dtype):
            raise ConfigurationError(f"{part}: {part.of} is no struct")
        yield from (Name((*part.of.parts, field.name)) for field in dtype)
