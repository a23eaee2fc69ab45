"""Equal batches have one form, whatever they were cut out of or built by; different ones have different forms."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.operators.base.canonical import canonical
from flinkplus.operators.base.columns import MAX_DECODED_BYTES, SMALL_ROWS, first_seen, plain
from flinkplus.runtime.transport.wire.message_format import decode_records, encode_records
from tests.examples import examples
from tests.unit.operators.arrays import TEXTS, built, columns_of, dtypes, text, value_of


def payload(*columns: pa.Array) -> bytes:
    batch = pa.record_batch(list(columns), names=[f"c{i}" for i in range(len(columns))])
    return bytes(encode_records(batch))


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_equal_columns_have_equal_bytes_and_others_have_not(data: st.DataObject) -> None:
    dtype = data.draw(dtypes(), label="type")
    times = data.draw(st.sampled_from([1, 1, SMALL_ROWS]), label="times")
    large = times > 1 and not pa.types.is_dictionary(dtype)  # of these, the dictionary stays as it is
    values = data.draw(columns_of(dtype), label="values") * (times if large else 1)
    one, other = (data.draw(built(values, dtype)) for _ in range(2))
    bytes_of_one = payload(one)
    assert bytes_of_one == payload(other)
    found = decode_records(bytes_of_one).column(0)
    assert text(found) == text(one) == text(other)
    found.validate(full=True)
    assert payload(found) == bytes_of_one
    others = data.draw(columns_of(dtype), label="other values")
    different = data.draw(built(others, dtype))
    assert (payload(different) == bytes_of_one) == (text(different) == text(one))


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_within_a_slot_a_batch_is_what_others_read_off_the_wire(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 20), label="rows")
    columns = []
    for _ in range(data.draw(st.integers(1, 3))):
        dtype = data.draw(dtypes())
        columns.append(data.draw(built([data.draw(value_of(dtype)) for _ in range(rows)], dtype)))
    batch = pa.record_batch(columns, names=[f"c{i}" for i in range(len(columns))])
    batch = pa.RecordBatch.from_arrays(
        batch.columns, schema=batch.schema.with_metadata({"made": "by"}).set(0, batch.schema.field(0).with_metadata({}))
    )
    here, there = canonical(batch), decode_records(encode_records(batch))
    assert here.schema.equals(there.schema, check_metadata=True)
    assert [text(column) for column in here.columns] == [text(column) for column in there.columns]
    assert here.nbytes == there.nbytes  # by which messages are cut
    for ours, theirs in zip(here.columns, there.columns, strict=True):
        if isinstance(ours, pa.DictionaryArray):
            assert ours.indices.equals(theirs.indices) and ours.dictionary.equals(theirs.dictionary)
    again = canonical(here)
    assert [text(column) for column in again.columns] == [text(column) for column in here.columns]
    assert bytes(encode_records(again)) == bytes(encode_records(batch))


codes = st.lists(st.one_of(st.none(), st.integers(0, len(TEXTS) - 1)), max_size=12)


@st.composite
def dictionary(draw: st.DrawFn, values: list[str | None], texts: list[str]) -> pa.DictionaryArray:
    """These values, with a dictionary in any order, with repetitions, unused entries and nulls of both kinds."""
    entries: list[str | None] = draw(st.permutations([*texts, *texts, None]))
    entries += draw(st.lists(st.sampled_from(["not used", *texts]), max_size=3))
    picked = []
    for value in values:
        places = [at for at, entry in enumerate(entries) if entry == value]
        picked.append(draw(st.sampled_from([*places, None] if value is None else places)))
    at = draw(st.integers(0, 5))
    indices = pa.array([0] * at + picked, pa.int16()).slice(at)
    return pa.DictionaryArray.from_arrays(indices, pa.array(["x", *entries]).slice(1))


@settings(max_examples=examples(80), deadline=None)
@given(st.data(), codes)
@pytest.mark.parametrize("factor", [1, 1 + MAX_DECODED_BYTES // 2])
def test_in_a_small_batch_a_dictionary_does_not_show(factor: int, data: st.DataObject, codes: list[int | None]) -> None:
    """Neither where the column comes back plain, nor where it would be too large for that."""
    texts = [entry * factor for entry in TEXTS[1:4]]
    values = [None if code is None else texts[code % 3] for code in codes]
    one, other = (data.draw(dictionary(values, texts)) for _ in range(2))
    bytes_of_one = payload(one)
    assert bytes_of_one == payload(other)
    found = decode_records(bytes_of_one).column(0)
    assert found.to_pylist() == values
    if factor == 1:
        assert bytes_of_one == payload(pa.array(values, pa.string()))
    elif isinstance(found, pa.DictionaryArray):
        assert found.dictionary.to_pylist() == list(dict.fromkeys(v for v in values if v is not None))


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), codes)
def test_a_dictionary_that_follows_from_its_rows(data: st.DataObject, codes: list[int | None]) -> None:
    values = [None if code is None else TEXTS[code] for code in codes]
    found = first_seen(data.draw(dictionary(values, TEXTS)))
    assert found.to_pylist() == values and found.type == pa.dictionary(pa.int16(), pa.string())
    assert found.dictionary.to_pylist() == list(dict.fromkeys(v for v in values if v is not None))
    found.validate(full=True)


def test_a_dictionary_that_users_ask_for_follows_from_the_rows() -> None:
    """Else a function that keeps a dictionary of its own would be taken for one that does something else."""
    schema = pa.schema([("v", pa.dictionary(pa.int8(), pa.string()))])
    layouts: list[tuple[list[int | None], list[str | None]]] = [
        ([1, 0, None], ["a", "b"]),
        ([2, 1, 0], [None, "a", "b"]),
        ([3, 2, None], ["x", "a", "a", "b"]),
    ]
    found = []
    for codes, entries in layouts:
        array = pa.DictionaryArray.from_arrays(pa.array(codes * 300, pa.int8()), pa.array(entries))
        found.append(bytes(encode_records(plain(pa.RecordBatch.from_arrays([array], schema=schema), schema))))
    assert len(set(found)) == 1
    assert decode_records(found[0]).column(0).to_pylist() == ["b", "a", None] * 300


def test_an_ordered_dictionary_stays_one() -> None:
    words = pa.array(["a", "b", None] * 300).dictionary_encode()
    ordered = pa.DictionaryArray.from_arrays(words.indices, words.dictionary, ordered=True)
    assert decode_records(payload(ordered)).column(0).equals(ordered)
    assert canonical(pa.record_batch([ordered], names=["v"])).column(0).type.ordered


@pytest.mark.parametrize("rows", [5, 600])
def test_nothing_of_neighbouring_rows_is_sent(rows: int) -> None:
    """A slice shares its buffers with them."""
    secret = [f"secret-{i}" for i in range(rows)]
    open_text = [f"open-{i}" for i in range(rows)]
    column = pa.array([*secret, *open_text, *secret])
    numbers = pa.array([77] * rows + [1] * rows + [77] * rows, pa.int64())
    batch = pa.record_batch([column, column.dictionary_encode(), numbers], names=["a", "b", "c"]).slice(rows, rows)
    alone = pa.record_batch(
        [pa.array(open_text), first_seen(pa.array(open_text).dictionary_encode()), pa.array([1] * rows)],
        names=["a", "b", "c"],
    )
    if rows <= SMALL_ROWS:
        assert bytes(encode_records(batch)) == bytes(encode_records(alone))
    without = batch.select(["a", "c"])
    assert b"secret" not in bytes(encode_records(without))
    assert bytes(encode_records(without)) == bytes(encode_records(alone.select(["a", "c"])))


def test_an_extension_type_is_what_it_is_stored_as() -> None:
    dtype = pa.uuid() if hasattr(pa, "uuid") else None
    if dtype is None:
        pytest.skip("no such type in this version of Arrow")
    ids = [bytes(range(i, 16 + i)) for i in range(6)]
    stored = pa.array([*ids[:3], None, *ids[3:]], pa.binary(16))
    whole = pa.ExtensionArray.from_storage(dtype, stored)
    alone = pa.ExtensionArray.from_storage(dtype, pa.array([ids[2], None, ids[3]], pa.binary(16)))
    assert payload(whole.slice(2, 3)) == payload(alone)
    assert decode_records(payload(alone)).column(0).equals(alone)


@pytest.mark.parametrize("values", [[1, 2], ["a", "b"], [True, False], [[1], []]], ids=str)
def test_without_nulls_there_is_no_validity(values: list[Any]) -> None:
    """It would count among the bytes of a batch, by which messages are cut."""
    batch = pa.record_batch([pa.array([None, *values]).slice(1)], names=["v"])
    here, alone = canonical(batch), pa.record_batch([pa.array(values)], names=["v"])
    assert here.column(0).buffers()[0] is None
    assert here.nbytes == decode_records(encode_records(batch)).nbytes == alone.nbytes


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 16, 300])
def test_a_slice_from_the_beginning_has_the_bytes_of_its_rows(rows: int) -> None:
    """Arrow writes up to 64 bytes behind such a slice."""
    for more in (0, 1, 7, 8, 9, 100):
        longer = pa.array(range(1, rows + more + 1), pa.int64())
        assert payload(longer.slice(0, rows)) == payload(pa.array(range(1, rows + 1), pa.int64()))
        assert payload(longer.slice(more)) == payload(pa.array(range(more + 1, more + rows + 1), pa.int64()))
