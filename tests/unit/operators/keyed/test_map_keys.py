"""Keys of maps: they are read back, equal ones have equal bytes, and bytes sort as values of a type do."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from flinkplus.operators.keyed.functions.map_keys import key_bytes, key_value
from tests.examples import examples

UTC = datetime.timezone.utc
SORTED = [
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
]
others = st.one_of(st.none(), st.booleans(), st.integers(), st.decimals(allow_nan=False), *SORTED)
keys = st.one_of(others, st.tuples(others), st.tuples(others, others), st.tuples(st.tuples(others), others))


@given(keys)
@settings(max_examples=examples(300), deadline=None)
def test_a_key_is_read_back(key: Any) -> None:
    assert key_value(key_bytes(key)) == key


@given(keys, keys)
@settings(max_examples=examples(300), deadline=None)
def test_different_keys_have_different_bytes(one: Any, other: Any) -> None:
    same = one == other and _kinds(one) == _kinds(other)
    assert (key_bytes(one) == key_bytes(other)) == same


def _kinds(key: Any) -> Any:
    if isinstance(key, tuple):
        return [_kinds(part) for part in key]
    return type(key), isinstance(key, datetime.datetime) and key.tzinfo is not None


@given(st.one_of([st.tuples(kind, kind) for kind in SORTED]))
@settings(max_examples=examples(300), deadline=None)
def test_bytes_sort_as_values(pair: tuple[Any, Any]) -> None:
    one, other = pair
    assert (key_bytes(one) < key_bytes(other)) == (one < other)


def test_what_is_equal() -> None:
    assert key_bytes(0.0) == key_bytes(-0.0) and key_bytes(math.nan) == key_bytes(-math.nan)
    assert key_bytes(decimal.Decimal("1.0")) == key_bytes(decimal.Decimal("1")) == key_bytes(decimal.Decimal("0.1E1"))
    assert len({key_bytes(1), key_bytes(1.0), key_bytes(True), key_bytes("1"), key_bytes(b"1"), key_bytes((1,))}) == 6
    there = datetime.timezone(datetime.timedelta(hours=2))
    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=there)
    assert key_bytes(noon) == key_bytes(noon.astimezone(UTC)) != key_bytes(noon.replace(tzinfo=None))


@pytest.mark.parametrize("bad", [[1], {1: 2}, object(), (1, [2])])
def test_other_types_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="a key of a map is"):
        key_bytes(bad)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x04\x00", b"\x08ab", b"\x0d\x04", b"\x63" + bytes(8), b"\x01\x01"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"key of a map"):
        key_value(data)
