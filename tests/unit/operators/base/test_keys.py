"""Keys: their bytes, their hash, and the split by them."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections import defaultdict
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import SMALL_ROWS, compact, plain
from flinkplus.operators.base.keys import (
    HashPartitioner,
    check_key_columns,
    encode_keys,
    encode_values,
    number_keys,
    plain_numbers,
    row_keys,
)
from flinkplus.state.hashing import hash_keys, hash_numbers
from tests.examples import examples

words = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
bytestrings = st.one_of(st.none(), st.binary(max_size=4), st.sampled_from([b"\xff", b"\xff\xff", b"\xff\x00"]))
floats = st.one_of(st.none(), st.floats())
ints = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
COLUMNS = {
    pa.string(): words,
    pa.binary(): bytestrings,
    pa.float64(): floats,
    pa.int64(): ints,
    pa.bool_(): st.booleans(),
}


def canonical(value: Any) -> Any:
    """Two values are the same key when these are equal."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


@st.composite
def keyed_batches(draw: st.DrawFn) -> pa.RecordBatch:
    types = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3))
    rows = draw(st.integers(0, 12))
    arrays = []
    for dtype in types:
        pool = draw(st.lists(COLUMNS[dtype], min_size=1, max_size=4))
        array = pa.array([draw(st.sampled_from(pool)) for _ in range(rows)], type=dtype)
        encoding = draw(st.sampled_from([None, "mask", "encode"]))
        if encoding and dtype in (pa.string(), pa.binary()):
            array = array.dictionary_encode(null_encoding=encoding)
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(
        [*arrays, pa.array(range(rows), pa.int64())], names=[*(f"k{i}" for i in range(len(arrays))), "row"]
    )
    start = draw(st.integers(0, rows))
    return batch.slice(start)


@given(keyed_batches())
@settings(max_examples=examples(300), deadline=None)
def test_equal_values_and_only_they_have_equal_keys(batch: pa.RecordBatch) -> None:
    columns = batch.schema.names[:-1]
    key = encode_keys(batch, columns).made_distinct()
    values = [tuple(canonical(row[c]) for c in columns) for row in batch.to_pylist()]
    keys = [key.keys[code] for code in key.codes]
    assert len(set(key.keys)) == len(key.keys) == len(set(values)) == len(set(zip(keys, values, strict=True)))
    assert sorted(set(key.codes.tolist())) == list(range(len(key.keys)))
    assert key.codes.dtype == np.int32
    first = key.first_rows().tolist()
    assert [key.codes.tolist().index(code) for code in range(len(key.keys))] == first
    if key.column is not None:
        assert [(canonical(v),) for v in key.column.dictionary.to_pylist()] == [values[row] for row in first]


@given(keyed_batches(), st.integers(1, 5))
@settings(max_examples=examples(300), deadline=None)
def test_split_keeps_every_row_in_order_and_equal_keys_together(batch: pa.RecordBatch, targets: int) -> None:
    columns = batch.schema.names[:-1]
    schema = pa.schema(
        [(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in batch.schema]
    )
    parts = HashPartitioner(columns, targets).split(batch)
    assert [t for t, _ in parts] == sorted({t for t, _ in parts})
    expected = plain(batch, schema).to_pylist()
    target_of: dict[Any, int] = {}
    seen = 0
    for target, part in parts:
        assert 0 <= target < targets
        assert part.num_rows > 0
        part.validate(full=True)
        rows = plain(part, schema).to_pylist()
        assert rows == sorted(rows, key=lambda row: row["row"])
        assert repr(rows) == repr([row for row in expected if row["row"] in {r["row"] for r in rows}])
        assert all(target_of.setdefault(tuple(canonical(r[c]) for c in columns), target) == target for r in rows)
        seen += len(rows)
    assert seen == batch.num_rows


@given(keyed_batches(), st.integers(2, 5))
@settings(max_examples=examples(300), deadline=None)
def test_small_batches_are_split_exactly_as_large_ones(batch: pa.RecordBatch, targets: int) -> None:
    """A snapshot's state is where the keys went to: the way there must never matter."""
    columns = batch.schema.names[:-1]
    key = encode_keys(batch, columns)
    assert row_keys(batch, columns).to_pylist() == [key.keys[code] for code in key.codes.tolist()]
    if not batch.num_rows:
        return
    partitioner = HashPartitioner(columns, targets)
    small, large = partitioner.split(batch), partitioner._split_large(batch)
    assert [target for target, _ in small] == [target for target, _ in large]
    for (_, one), (_, other) in zip(small, large, strict=True):
        one.validate(full=True)
        assert repr(one.to_pylist()) == repr(other.to_pylist())
        assert not any(isinstance(column, pa.DictionaryArray) for column in one.columns)


def test_a_small_batch_that_would_not_be_small_any_more_stays_encoded() -> None:
    text = pa.array(["x" * 100_000, "y"]).dictionary_encode().take(pa.array([0, 1] * 100))
    for _, part in HashPartitioner(["text"], 2).split(pa.RecordBatch.from_arrays([text], names=["text"])):
        assert isinstance(part.column("text"), pa.DictionaryArray)
    few = pa.array([f"{i}" * 100 for i in range(100_000)]).dictionary_encode().slice(0, 10)
    for _, part in HashPartitioner(["text"], 2).split(pa.RecordBatch.from_arrays([few], names=["text"])):
        assert not isinstance(part.column("text"), pa.DictionaryArray)


def test_split_key_column_leaves_encoded_with_only_its_own_keys() -> None:
    rows = 2 * SMALL_ROWS
    batch = pa.record_batch({"word": [f"w{i % 50}" for i in range(rows)], "n": range(rows)})
    for _, part in HashPartitioner(["word"], 3).split(batch):
        column = part.column("word")
        assert isinstance(column, pa.DictionaryArray)
        assert column.indices.type == pa.int32()
        assert sorted(column.dictionary.to_pylist()) == sorted(set(column.to_pylist()))


def test_other_encoded_columns_are_compacted_too() -> None:
    rows = 2 * SMALL_ROWS
    city = pa.array([f"c{i}" for i in range(rows)]).dictionary_encode()
    batch = pa.record_batch({"id": pa.array(range(rows)), "city": city})
    for _, part in HashPartitioner(["id"], 4).split(batch):
        assert len(part.column("city").dictionary) == part.num_rows


def test_one_target_gets_the_batch_itself() -> None:
    batch = pa.record_batch({"word": ["a", "b"]})
    assert HashPartitioner(["word"], 1).split(batch)[0][1] is batch
    assert HashPartitioner(["word"], 1).split(batch.slice(0, 0)) == []


def test_bytes_of_keys_never_change() -> None:
    """They are in checkpoints: a failure here means a new format version, not a new expectation."""

    def of(values: list[Any], dtype: pa.DataType) -> list[bytes]:
        return encode_values(pa.array(values, type=dtype)).to_pylist()

    assert of(["", "é", None], pa.string()) == [b"", b"\xc3\xa9", b"\xff"]
    binary = [b"", b"\xff", b"\xff\x01", b"a\xff", None]
    assert of(binary, pa.binary()) == [b"", b"\xff\xff", b"\xff\xff\x01", b"a\xff", b"\xff"]
    zero = b"\x80" + bytes(7)
    assert of([-1, 0, 5, None], pa.int32()) == [b"\x7f" + b"\xff" * 7, zero, zero[:7] + b"\x05", b""]
    assert of([0, 2**64 - 1], pa.uint64()) == [bytes(8), b"\xff" * 8]
    assert of([False, True], pa.bool_()) == [zero, zero[:7] + b"\x01"]
    assert of([1.0, -1.0, 0.0, -0.0], pa.float32()) == [b"\xbf\xf0" + bytes(6), b"\x40\x0f" + b"\xff" * 6, zero, zero]
    day = datetime.date(1970, 1, 2)
    assert of([day, datetime.date(1969, 12, 31)], pa.date32()) == of([1, -1], pa.int64())
    assert of([datetime.datetime(1970, 1, 2)], pa.timestamp("us")) == of([86_400_000_000], pa.int64())
    two = encode_keys(pa.record_batch({"a": ["x", None], "b": pa.array([None, 1], pa.int64())}), ["a", "b"])
    assert two.keys == [b"\x01\x00\x00\x00\x01x\x00", b"\x00\x01\x00\x00\x00\x08\x80" + bytes(6) + b"\x01"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=20))
def test_numbers_keep_their_order(values: list[int]) -> None:
    assert sorted(values) == [
        v for _, v in sorted(zip(encode_values(pa.array(values, pa.int64())).to_pylist(), values, strict=True))
    ]


@pytest.mark.parametrize(
    "dtype", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us")], ids=str
)
def test_numbers_have_the_same_keys_with_a_null_beside_them_and_without(dtype: pa.DataType) -> None:
    """Without nulls they are encoded another way."""
    numbers = pa.array([-128, -1, 0, 1, 127, 5], pa.int64())
    values = numbers.cast(pa.int32()).cast(dtype) if dtype.bit_width <= 32 else numbers.cast(dtype)
    without = encode_values(values.slice(1, 4))
    without.validate(full=True)
    assert without.to_pylist() == encode_values(pa.concat_arrays([values, pa.nulls(1, dtype)])).to_pylist()[1:5]


@given(st.integers(0, 9), st.lists(st.binary(min_size=9, max_size=9), min_size=1))
def test_keys_of_one_length_have_the_same_hashes_as_beside_longer_ones(length: int, keys: list[bytes]) -> None:
    cut = [key[:length] for key in keys]
    alone = hash_keys(pa.array(cut, pa.binary()))
    beside = hash_keys(pa.array([*cut, b"a longer one"], pa.binary()))
    assert alone.tolist() == beside.tolist()[:-1]


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=20))
def test_floats_keep_their_order(values: list[float]) -> None:
    pairs = zip(encode_values(pa.array(values, pa.float64())).to_pylist(), values, strict=True)
    assert sorted(values) == [v for _, v in sorted(pairs)]


def slow_hash(key: bytes) -> int:
    mask = 2**64 - 1
    total = sum((byte + 1) * pow(0x9E3779B97F4A7C15, i + 1, 2**64) for i, byte in enumerate(key)) & mask
    total ^= total >> 33
    total = total * 0xFF51AFD7ED558CCD & mask
    return total ^ total >> 33


@given(st.lists(st.binary(max_size=20)))
def test_hash_against_its_definition(keys: list[bytes]) -> None:
    assert hash_keys(pa.array(keys, pa.binary())).tolist() == [slow_hash(key) for key in keys]
    assert hash_keys(pa.array([b"x", *keys], pa.binary()).slice(1)).tolist() == [slow_hash(key) for key in keys]


def test_hash_never_changes() -> None:
    long_key = hashlib.blake2b(b"x" * 5000).digest()
    hashes = hash_keys(pa.array([b"", b"the", b"x" * 5000], pa.binary())).tolist()
    assert hashes == [0, 1084639680480838791, slow_hash(long_key)]


@pytest.mark.parametrize("targets", [2, 3, 8, 64])
@pytest.mark.parametrize("keys", ["short", "numbered", "integers"])
def test_keys_spread_evenly(targets: int, keys: str) -> None:
    count = 20_000
    values: Any = {
        "short": [
            chr(97 + i % 26) + chr(97 + i // 26 % 26) + chr(97 + i // 676 % 26) + chr(97 + i // 17576)
            for i in range(count)
        ],
        "numbered": [f"user-{i:09d}" for i in range(count)],
        "integers": list(range(count)),
    }[keys]
    sizes: dict[int, int] = defaultdict(int)
    for target, part in HashPartitioner(["k"], targets).split(pa.record_batch({"k": values})):
        sizes[target] = part.num_rows
    mean = count / targets
    chi_squared = sum((sizes[t] - mean) ** 2 / mean for t in range(targets))
    assert chi_squared < targets - 1 + 5 * math.sqrt(2 * targets)


def test_only_good_key_columns() -> None:
    schema = pa.schema([("a", pa.string()), ("l", pa.list_(pa.int64()))])
    check_key_columns(schema, ["a"])
    for columns, message in [(["b"], "'b'"), (["a", "a"], "twice"), (["l"], "list")]:
        with pytest.raises(ConfigurationError, match=message):
            check_key_columns(schema, columns)
    for targets in (0, 100_000):
        with pytest.raises(ConfigurationError, match=str(targets)):
            HashPartitioner(["a"], targets)


def test_compact_drops_what_no_row_uses() -> None:
    array = pa.array(["a", "b", None, "a", "c"]).dictionary_encode().slice(2)
    tidy = compact(array)
    assert tidy.to_pylist() == [None, "a", "c"]
    assert len(tidy.dictionary) == 3
    assert compact(pa.array([1])).to_pylist() == [1]


def test_plain_refuses_what_does_not_fit() -> None:
    batch = pa.record_batch({"a": [1]})
    with pytest.raises(ValueError, match="'a'"):
        plain(batch, pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    assert plain(batch, pa.schema([("b", pa.int32())])).schema == pa.schema([("b", pa.int32())])


NUMBER_TYPES = (pa.int64(), pa.int32(), pa.int8(), pa.date32(), pa.timestamp("us"))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=30), st.sampled_from(NUMBER_TYPES), st.integers(0, 3))
def test_numbers_are_hashed_without_their_bytes(values: list[int], dtype: pa.DataType, first: int) -> None:
    """The hash decides where a key lives, in old checkpoints too: it is the same as that of the key's bytes."""
    column = pa.array(values, pa.int64()).cast(pa.int32() if dtype == pa.date32() else pa.int64()).cast(dtype)[first:]
    numbers = plain_numbers(column)
    assert numbers is not None and numbers.tolist() == values[first:]
    assert number_keys(numbers).equals(encode_values(column))
    assert hash_numbers(numbers).tolist() == hash_keys(encode_values(column)).tolist()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_large_and_negative_numbers_are_hashed_without_their_bytes(values: list[int]) -> None:
    numbers = np.array(values, dtype=np.int64)
    assert hash_numbers(numbers).tolist() == hash_keys(encode_values(pa.array(numbers))).tolist()


def test_columns_that_are_not_plain_numbers() -> None:
    for column in (pa.array([1, None]), pa.array(["a"]), pa.array([1.5]), pa.array([2**63], pa.uint64())):
        assert plain_numbers(column) is None, column.type
