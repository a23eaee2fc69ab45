"""Rows as users' functions get them, and the way back: from the results of such a function to record batches.

Rules:

- A ``Row`` is a tuple that also knows its columns: ``row.word``, ``row["word"]``, ``row[0]``.
- A function may return for a row: a tuple or list (by position), a ``Row`` or another named tuple (by name when its
  names are the schema's, otherwise by position), a dict (by name; a missing name is null), and, for a schema of one
  column, the bare value.
- Silent conversions are refused: a float is no integer, a number is no text. Integers may stand for floating point.
- Times, maps and types that contain them are converted by ``values``, as in PySpark.
- Every failure is a ``UserFunctionError`` with the operator, the subtask and the *input* row.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
import os
import sysconfig
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flinkplus.errors import UserFunctionError
from flinkplus.near import did_you_mean
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.base.values import check_members, is_list, member_of, pairs_of, shown, taker
from flinkplus.printable import printable

MAX_REPR_CHARACTERS = 1000
MAX_CAUSE_CHARACTERS = 2_000
PACKAGE = f"{Path(__file__).resolve().parents[2]}{os.sep}"
LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platlib", "purelib"))
USER_EXCEPTIONS = (Exception, SystemExit)
"""Exceptions of a user's function; an uncaught ``sys.exit()`` would end the process that runs it."""
_CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Row(tuple):
    """A row; its concrete class, made by ``row_type``, knows the columns. Compares as a tuple of its values."""

    __slots__ = ()
    __columns__: tuple[str, ...] = ()
    __positions__: Mapping[str, int] = {}

    def __getitem__(self, item: Any) -> Any:
        if type(item) is str:
            try:
                return tuple.__getitem__(self, self.__positions__[item])
            except KeyError:
                raise KeyError(_no_column(item, self.__columns__)) from None
        return tuple.__getitem__(self, item)

    def __getattr__(self, name: str) -> Any:
        if name in self.__positions__:
            return tuple.__getitem__(self, self.__positions__[name])
        raise AttributeError(_no_column(name, self.__columns__))

    def as_dict(self) -> dict[str, Any]:
        """The row as a dict of column to value."""
        return dict(zip(self.__columns__, self, strict=True))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self.__columns__, self, strict=True))})"

    def __reduce__(self) -> Any:
        return _unpickled, (self.__columns__, tuple(self))


def _no_column(name: str, columns: tuple[str, ...]) -> str:
    return f"no column {name!r} among {list(columns)}{did_you_mean(name, columns)}"


def _unpickled(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return make_row(row_type(names), values)


@lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> type[Row]:
    """The class of rows with these columns. A column hides a tuple's method of the same name, such as ``count``."""
    fields = namedtuple("Fields", names, rename=True)  # type: ignore[misc]  # only for its fast accessors
    accessors = {name: fields.__dict__[name] for name in names if name in fields._fields and not name.startswith("__")}
    positions = {name: position for position, name in enumerate(names)}
    return type("Row", (Row,), {"__slots__": (), "__columns__": names, "__positions__": positions, **accessors})


def make_row(kind: type[Row], values: Iterable[Any]) -> Row:
    """A row of ``kind``; ``values`` in the order of its columns."""
    return tuple.__new__(kind, values)


def rows_of(batch: pa.RecordBatch, ctx: OperatorContext) -> list[Row]:
    """The rows of a batch. Raises ``UserFunctionError`` for what Python cannot represent, such as the year 10000."""
    kind = row_type(tuple(ctx.input_schema.names))
    new = tuple.__new__
    batch = plain(batch, ctx.input_schema)
    try:
        columns = [shown(column) for column in batch.columns]
    except (OverflowError, ValueError) as error:
        raise _not_shown(batch, ctx) or error from error
    return [new(kind, values) for values in zip(*columns, strict=True)]


def _not_shown(batch: pa.RecordBatch, ctx: OperatorContext) -> UserFunctionError | None:
    """The error for the first value of a batch that Python cannot represent."""
    for row in range(batch.num_rows):
        for field, column in zip(batch.schema, batch.columns, strict=True):
            try:
                shown(column.slice(row, 1))
            except (OverflowError, ValueError) as error:
                shown_by_arrow = [c.slice(row, 1).to_string(skip_new_lines=True)[1:-1].strip() for c in batch.columns]
                pairs = zip(batch.schema.names, shown_by_arrow, strict=True)
                text = Verbatim(", ".join(f"{name}={value}" for name, value in pairs))
                cause = (
                    f"column {field.name!r} of type {field.type} holds a value that Python cannot show ({error}); "
                    "keep such rows out, or cast the column to a number or text"
                )
                return user_error(ctx.operator, ctx.subtask, text, cause)
    return None


def short_repr(value: object) -> str:
    """``repr`` cut at 1,000 characters, for any value, even when its ``repr`` raises."""
    try:
        text = repr(value)
    except Exception as error:  # a user's class: its failure to show itself must not hide the real one
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= MAX_REPR_CHARACTERS else text[:MAX_REPR_CHARACTERS] + "..."


def user_error(operator: str, subtask: str, row: object, cause: BaseException | str) -> UserFunctionError:
    """The error for an input row on which the user's function failed, with the line of their code if that is known."""
    text = described_cause(cause) if isinstance(cause, BaseException) else cause
    return UserFunctionError(operator, subtask, short_repr(row), text)


def described_cause(cause: BaseException) -> str:
    """An exception of the user's code: its kind, its text, and the line that raised it."""
    place = "".join(f" ({file}:{line} in {name})" for file, line, name in _users_line(cause))
    text = cause.args[0] if isinstance(cause, KeyError) and cause.args else cause  # its text is a repr
    try:
        shown = printable(text, MAX_CAUSE_CHARACTERS)
    except Exception as error:  # of its ``__str__``
        shown = f"(no text: its __str__ raises {type(error).__name__})"
    return f"{type(cause).__name__}: {shown}{place}"


def _users_line(error: BaseException) -> list[tuple[str, int, str]]:
    """The last line of the user's own code in the traceback of ``error``, otherwise of a library's: its file, number
    and function. Files are not opened: many rows may fail."""
    walked = traceback.walk_tb(error.__traceback__)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
    theirs = [frame for frame in frames if not frame[0].startswith(PACKAGE)]
    own = [frame for frame in theirs if not frame[0].startswith(LIBRARIES)]
    return (own or theirs or frames)[-1:]


class Verbatim(str):
    """Text that appears in an error without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class RowConverter:
    """Makes record batches of ``schema`` from the results of a user's function."""

    def __init__(self, operator: str, subtask: str, schema: pa.Schema) -> None:
        self.schema = schema
        self._operator = operator
        self._subtask = subtask
        self._names = tuple(schema.names)
        self._checks = [_type_check(field.type) for field in schema]
        self._takers = [taker(field.type) for field in schema]
        self._null_checks = [_forbids_null_inside(field.type) for field in schema]

    def values(self, result: Any) -> tuple[Any, ...]:
        """One result as a tuple in the schema's order. Raises ``TypeError`` when it does not fit."""
        width = len(self._names)
        if isinstance(result, tuple):
            fields = getattr(result, "__columns__", None) or getattr(result, "_fields", None)
            fields = fields or getattr(result, "__fields__", None)  # pyspark's Row
            if fields and tuple(fields) != self._names and set(fields) == set(self._names):
                return tuple(result[fields.index(name)] for name in self._names)
        elif isinstance(result, dict):
            unknown = [name for name in result if name not in self._names]
            if unknown:
                raise TypeError(f"returned the columns {unknown}, which are not in the schema {list(self._names)}")
            return tuple(result.get(name) for name in self._names)
        elif width == 1:
            return (result,)
        elif not isinstance(result, list):
            raise TypeError(f"returned {type(result).__name__} for a row of the columns {list(self._names)}")
        if len(result) != width:
            raise TypeError(f"returned {len(result)} values for the columns {list(self._names)}")
        return tuple(result)

    def batch(self, results: Sequence[Any], input_row: Callable[[int], object]) -> pa.RecordBatch:
        """The results as one batch. ``input_row(i)``: the input row of result ``i``, for errors."""
        if len(self._names) == 1 and not any(issubclass(kind, (tuple, dict)) for kind in set(map(type, results))):
            columns: list[Sequence[Any]] = [results]
        else:
            rows = []
            for i, result in enumerate(results):
                try:
                    rows.append(self.values(result))
                except TypeError as error:
                    raise user_error(self._operator, self._subtask, input_row(i), str(error)) from error
            columns = list(zip(*rows, strict=True)) if rows else [[] for _ in self._names]
        arrays = [self._array(position, column, input_row) for position, column in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, position: int, values: Sequence[Any], input_row: Callable[[int], object]) -> pa.Array:
        try:
            return self._converted(position, values)
        except _CONVERSION_ERRORS:
            for i, value in enumerate(values):  # slow, but only once: to say which row it was
                try:
                    self._converted(position, [value])
                except _CONVERSION_ERRORS as error:
                    field = self.schema.field(position)
                    cause = f"column {field.name!r} of type {field.type} cannot hold {short_repr(value)}: {error}"
                    raise user_error(self._operator, self._subtask, input_row(i), cause) from error
            raise

    def _converted(self, position: int, values: Sequence[Any]) -> pa.Array:
        field = self.schema.field(position)
        self._checks[position](values)
        take = self._takers[position]
        array = pa.array(values if take is None else [take(value) for value in values], type=field.type)
        if array.null_count and not field.nullable:
            raise TypeError("null in a column declared NOT NULL")
        if self._null_checks[position]:
            check_nulls_inside(field.name, array)
        return array


_NONE = type(None)


def _type_check(dtype: pa.DataType) -> Callable[[Sequence[Any]], None]:
    """A check that all values are of Python types that mean ``dtype``: Arrow itself would turn ``1.5`` into ``1``."""
    allowed, forbidden = _python_types(dtype)

    def check(values: Sequence[Any]) -> None:
        for kind in set(map(type, values)):
            if kind is not _NONE and (not issubclass(kind, allowed) or issubclass(kind, forbidden)):
                raise TypeError(f"{kind.__name__} is not {dtype}")

    if is_list(dtype):
        return _all_of(check, [(_type_check(dtype.value_type), lambda lists: list(chain.from_iterable(lists)))])
    if pa.types.is_map(dtype):
        keys, items = _type_check(dtype.key_type), _type_check(dtype.item_type)
        return _all_of(
            check,
            [
                (keys, lambda maps: [key for pairs in maps for key, _ in pairs_of(pairs)]),
                (items, lambda maps: [item for pairs in maps for _, item in pairs_of(pairs)]),
            ],
        )
    if pa.types.is_struct(dtype):
        parts = [(at, field.name, _type_check(field.type)) for at, field in enumerate(dtype)]
        names = [name for _, name, _ in parts]

        def check_structs(values: Sequence[Any]) -> None:
            check(values)
            for value in values:
                if value is not None:
                    check_members(value, names)

        return _all_of(check_structs, [(inner, partial(_members, name, at)) for at, name, inner in parts])
    return check


Check = Callable[[Sequence[Any]], None]


def _all_of(check: Check, inner: Sequence[tuple[Check, Callable[[Sequence[Any]], list[Any]]]]) -> Check:
    """``check`` of the values themselves, and the inner checks of the parts taken out of them."""

    def check_all(values: Sequence[Any]) -> None:
        check(values)
        some = [value for value in values if value is not None]
        for check_part, part in inner:
            check_part(part(some))

    return check_all


def _forbids_null_inside(dtype: pa.DataType) -> bool:
    """Whether a field within a type is declared NOT NULL. (Arrow itself checks the keys of maps.)"""
    parts = [dtype.item_field] if pa.types.is_map(dtype) else [dtype.field(i) for i in range(dtype.num_fields)]
    return any(not part.nullable or _forbids_null_inside(part.type) for part in parts)


def check_nulls_inside(column: str, array: pa.Array) -> None:
    """Raises ``TypeError`` for a null in a field, within the column's values, that is declared NOT NULL."""
    if not _forbids_null_inside(array.type):
        return
    some, dtype = array.drop_null(), array.type
    if pa.types.is_struct(dtype):
        parts = [(field, values) for field, values in zip(dtype, some.flatten(), strict=True)]
    elif pa.types.is_map(dtype):
        offsets = some.offsets
        parts = [(dtype.item_field, some.items.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()))]
    else:
        parts = [(dtype.value_field, some.flatten())]
    for field, values in parts:
        name = f"{column}.{field.name}"
        if values.null_count and not field.nullable:
            raise TypeError(f"null in the field {name!r}, which is declared NOT NULL")
        check_nulls_inside(name, values)


def _members(name: str, at: int, values: Sequence[Any]) -> list[Any]:
    """The values of a field of structs, by name in dicts, otherwise by position."""
    return [member_of(value, name, at) for value in values]


def _python_types(dtype: pa.DataType) -> tuple[tuple[type, ...], tuple[type, ...]]:
    """Types whose values fit a column, and those among their subclasses that do not."""
    for is_kind, allowed, forbidden in _PYTHON_TYPES:
        if is_kind(dtype):
            return allowed, forbidden
    return (object,), ()


_PYTHON_TYPES: list[tuple[Callable[[pa.DataType], bool], tuple[type, ...], tuple[type, ...]]] = [
    (pa.types.is_string, (str,), ()),
    (pa.types.is_large_string, (str,), ()),
    (pa.types.is_binary, (bytes, bytearray, memoryview), ()),
    (pa.types.is_large_binary, (bytes, bytearray, memoryview), ()),
    (pa.types.is_boolean, (bool, np.bool_), ()),
    (pa.types.is_integer, (numbers.Integral,), (bool,)),
    (pa.types.is_floating, (numbers.Real,), (bool,)),
    (pa.types.is_date, (datetime.date,), (datetime.datetime,)),
    (pa.types.is_timestamp, (datetime.datetime, np.datetime64), ()),
    (pa.types.is_decimal, (decimal.Decimal, int), (bool,)),
    (is_list, (list, tuple, np.ndarray), ()),
    (pa.types.is_map, (Mapping, list, tuple), ()),
    (pa.types.is_struct, (Mapping, tuple), ()),
]
