"""Values of columns as users' functions get and return them, where Arrow's own conversion differs from PySpark's.

Rules:

- A timestamp (an instant) becomes a ``datetime`` in the local time zone, with its UTC offset: it shows the hour that a
  PySpark function sees, and ``row.ts + timedelta(...)`` is exact over changes of the clock. One without a local time
  (the years 1 and 9999) is in UTC. The local time zone is that of the process: set the same one on all hosts.
- A returned ``datetime`` without a zone, for a timestamp, is local time; ``fold`` resolves the hour that is repeated.
- A timestamp_ntz becomes a ``datetime`` without a zone; a zone in a returned ``datetime`` is dropped.
- A map becomes a dict; a dict or a list of pairs may be returned. A struct becomes a dict; a dict, or a tuple with all
  fields in order, may be returned. A name that the struct lacks is an error; a missing name is null, as in rows.
- Keys of maps are hashable: a struct in one becomes PySpark's ``Row``, as in PySpark, and a list becomes a tuple.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

Convert = Callable[[Any], Any]
UTC = datetime.timezone.utc


def local_time(moment: datetime.datetime) -> datetime.datetime:
    """``moment``, which has a zone, in the local time zone; in UTC where local time has no such year."""
    try:
        return moment.astimezone()
    except (OverflowError, ValueError):
        return moment.astimezone(UTC)


def instant(moment: datetime.datetime) -> datetime.datetime:
    """``moment`` with a zone; without one it is local time. Raises ``OverflowError`` where UTC has no such year."""
    if moment.tzinfo is not None:
        return moment
    if hasattr(moment, "to_pydatetime"):  # a timestamp of pandas, whose ``astimezone`` needs a zone
        moment = moment.to_pydatetime(warn=False)
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise OverflowError(f"{moment} in local time has no equivalent in UTC ({error}); give it a zone") from error


def shown(array: pa.Array) -> list[Any]:
    """The values of a column as a user's function gets them."""
    values: list[Any] = array.to_pylist()
    show = _shower(array.type)
    return values if show is None else [None if value is None else show(value) for value in values]


def _shower(dtype: pa.DataType) -> Convert | None:
    """The conversion of Arrow's value (not null) for a function; ``None``: unchanged."""
    if pa.types.is_timestamp(dtype):
        return None if dtype.tz is None else local_time
    if pa.types.is_map(dtype):
        key, item = _or_same(_key_shower(dtype.key_type)), _or_same(_shower(dtype.item_type))
        return lambda pairs: {key(k): item(v) for k, v in pairs}
    return _inner(dtype, _shower, lambda value, name, _: value[name])


def _key_shower(dtype: pa.DataType) -> Convert | None:
    """As ``_shower``, for values in the key of a map: the results are hashable."""
    if is_list(dtype):
        element = _or_same(_key_shower(dtype.value_type))
        return lambda values: tuple(map(element, values))
    if pa.types.is_map(dtype):
        key, item = _or_same(_key_shower(dtype.key_type)), _or_same(_key_shower(dtype.item_type))
        return lambda pairs: tuple((key(k), item(v)) for k, v in pairs)
    if pa.types.is_struct(dtype):
        from pyspark.sql.types import Row  # slow to import, and such keys are rare

        fields = {field.name: _or_same(_key_shower(field.type)) for field in dtype}
        return lambda value: Row(**{name: show(value[name]) for name, show in fields.items()})
    return _shower(dtype)


def taker(dtype: pa.DataType) -> Convert | None:
    """The conversion of a function's value for Arrow; ``None``: unchanged."""
    if pa.types.is_timestamp(dtype):
        return _without_zone if dtype.tz is None else _with_zone
    if pa.types.is_map(dtype):
        key, item = _or_same(taker(dtype.key_type)), _or_same(taker(dtype.item_type))
        return lambda pairs: None if pairs is None else [(key(k), item(v)) for k, v in pairs_of(pairs)]
    return _inner(dtype, taker, member_of)


def _inner(
    dtype: pa.DataType, of: Callable[[pa.DataType], Convert | None], member: Callable[[Any, str, int], Any]
) -> Convert | None:
    """The conversion of lists and structs, if any of their content needs one."""
    if is_list(dtype):
        element = of(dtype.value_type)
        return None if element is None else _or_none(lambda values: list(map(_or_none(element), values)))
    if pa.types.is_struct(dtype):
        fields = [(at, field.name, of(field.type)) for at, field in enumerate(dtype)]
        if all(convert is None for _, _, convert in fields):
            return None
        converts = [(at, name, _or_none(_or_same(convert))) for at, name, convert in fields]
        return _or_none(lambda value: {name: convert(member(value, name, at)) for at, name, convert in converts})
    return None


def is_list(dtype: pa.DataType) -> bool:
    """Whether a type is one of Arrow's lists, with offsets of any width."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(dtype) for is_kind in kinds)


def is_counted(dtype: pa.DataType) -> bool:
    """Whether a type is one of the dates and times, which are numbers underneath."""
    return bool(pa.types.is_temporal(dtype)) and not pa.types.is_interval(dtype)


def numbers_of(dtype: pa.DataType) -> pa.DataType:
    """The integers underneath a date or time."""
    return pa.int32() if dtype.bit_width == 32 else pa.int64()


def _or_same(convert: Convert | None) -> Convert:
    return (lambda value: value) if convert is None else _or_none(convert)


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _with_zone(moment: Any) -> Any:
    if moment != moment:  # pandas' NaT, which is a datetime
        return None
    if isinstance(moment, np.datetime64):
        moment = moment.astype("datetime64[us]").item()
    return instant(moment) if isinstance(moment, datetime.datetime) else moment


def _without_zone(moment: Any) -> Any:
    return moment.replace(tzinfo=None) if isinstance(moment, datetime.datetime) else moment


def check_zones(batch: pa.RecordBatch | pa.Table, schema: pa.Schema) -> None:
    """Raises ``TypeError`` for a returned timestamp without a zone in a column with one, or the reverse."""
    for field in schema:
        _check_zone(field.name, batch.schema.field(field.name).type, field.type)


def _check_zone(column: str, given: pa.DataType, declared: pa.DataType) -> None:
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(declared) and bool(given.tz) != bool(declared.tz):
        raise TypeError(
            f"column {column!r} is {given}, but the schema says {declared}: give it a zone with "
            "pyarrow.compute.assume_timezone, or declare it timestamp_ntz"
            if declared.tz
            else f"column {column!r} is {given}, but the schema says {declared}: take its zone away with "
            "pyarrow.compute.local_timestamp, or declare it timestamp"
        )
    if is_list(given) and is_list(declared):
        _check_zone(f"{column}.element", given.value_type, declared.value_type)
    elif pa.types.is_map(given) and pa.types.is_map(declared):
        _check_zone(f"{column}.key", given.key_type, declared.key_type)
        _check_zone(f"{column}.value", given.item_type, declared.item_type)
    elif pa.types.is_struct(given) and pa.types.is_struct(declared):
        for field in declared:
            if given.get_field_index(field.name) >= 0:
                _check_zone(f"{column}.{field.name}", given.field(field.name).type, field.type)


def pairs_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """The pairs of a value returned for a map."""
    return value.items() if isinstance(value, Mapping) else value


def member_of(value: Any, name: str, at: int) -> Any:
    """A field of a value returned for a struct, which has passed ``check_members``."""
    return value.get(name) if isinstance(value, Mapping) else value[at]


def check_members(value: Any, names: Sequence[str]) -> None:
    """Raises ``TypeError`` for a dict with other names than ``names``, or a tuple of another length."""
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in names]
        if unknown:
            raise TypeError(f"the fields {unknown} are not in the struct, which has {list(names)}")
    elif len(value) != len(names):
        raise TypeError(f"{len(value)} values for a struct with the fields {list(names)}")
