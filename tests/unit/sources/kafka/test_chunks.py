"""What becomes of records, and of broken ones."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.schema import parse_schema
from flinkplus.sources.kafka.chunks import ChunkMaker, GoodRows, OnError, broken_rows
from flinkplus.sources.kafka.columns import BROKEN_SCHEMA, RECORD_COLUMNS, chosen_columns, whole_schema
from flinkplus.sources.kafka.decoding import decoder
from flinkplus.sources.kafka.partitions import Partition
from tests.unit.sources.kafka.records import FakeRecord

VALUES = parse_schema("a long")
A, B = Partition("t", 0), Partition("t", 1)


def maker(on_error: OnError = "fail", metadata: tuple[str, ...] = ()) -> ChunkMaker:
    return ChunkMaker("s", whole_schema("s", VALUES, metadata), metadata, on_error, decoder("json", VALUES))


def records(*values: bytes | None, partition: int = 0) -> list[FakeRecord]:
    return [
        FakeRecord(value, 10 + number, partition_number=partition, millis=1_700_000_000_000 + number, key_bytes=b"k")
        for number, value in enumerate(values)
    ]


GOOD, BAD = b'{"a": 1}', b"{"


def test_each_partition_has_its_chunk() -> None:
    made = maker(metadata=("partition", "offset"))({A: records(GOOD, GOOD), B: records(GOOD, partition=1)})
    assert [partition for partition, _ in made] == [A, B]
    assert [chunk.rows.to_pylist() for _, chunk in made] == [
        [{"a": 1, "partition": 0, "offset": 10}, {"a": 1, "partition": 0, "offset": 11}],
        [{"a": 1, "partition": 1, "offset": 10}],
    ]
    assert made[0][1].offsets.tolist() == [10, 11] and made[0][1].ends is None
    assert made[0][1].timestamps.tolist() == [1_700_000_000_000, 1_700_000_000_001]
    assert made[0][1].size_bytes > made[1][1].size_bytes > 0


def test_a_broken_record_fails_where_it_is_reached() -> None:
    made = maker("fail")({A: records(GOOD, BAD, GOOD), B: records(GOOD, partition=1)})
    assert [(partition, chunk.offsets.tolist()) for partition, chunk in made] == [(A, [10]), (A, [11]), (B, [10])]
    assert isinstance(made[1][1].failure, InputError)
    text = "the record of topic 't', partition 0, at offset 11 cannot be decoded: not a JSON object"
    assert text in str(made[1][1].failure)


def test_a_broken_record_that_is_skipped_has_no_row() -> None:
    made = dict(maker("skip", ("offset",))({A: records(BAD, GOOD, BAD, GOOD), B: records(GOOD, partition=1)}))
    assert made[A].rows.column("offset").to_pylist() == [11, 13]
    assert [made[A].rows_before(n) for n in range(5)] == [0, 0, 1, 1, 2]
    assert made[B].ends is None


def test_dead_letters() -> None:
    made = dict(maker("dead-letter", ("offset",))({A: records(GOOD, BAD, None, GOOD)}))
    whole = made[A].rows
    assert whole.num_rows == 4 and made[A].ends is None
    schema = whole_schema("s", VALUES, ("offset",))
    (good,) = GoodRows(schema)(whole)
    assert good.schema == schema
    assert good.to_pylist() == [{"a": 1, "offset": 10}, {"a": 1, "offset": 13}]
    (broken,) = broken_rows(whole)
    assert broken.schema == BROKEN_SCHEMA
    first, second = broken.to_pylist()
    assert (first["value"], first["reason"], first["offset"], first["key"]) == (BAD, "not a JSON object", 11, b"k")
    assert (second["value"], second["offset"]) == (None, 12)
    assert first["timestamp"] == datetime.datetime(2023, 11, 14, 22, 13, 20, 1_000, tzinfo=datetime.timezone.utc)


def test_dead_letters_of_slices() -> None:
    whole = dict(maker("dead-letter")({A: records(GOOD, BAD, GOOD)}))[A].rows
    assert GoodRows(VALUES)(whole.slice(1, 1)) == [] and broken_rows(whole.slice(2, 1)) == []
    assert broken_rows(whole.slice(1, 2))[0].column("offset").to_pylist() == [11]
    clean = dict(maker("dead-letter")({A: records(GOOD)}))[A].rows
    assert clean.schema == whole.schema
    assert broken_rows(clean) == [] and GoodRows(VALUES)(clean)[0].num_rows == 1


def test_all_columns_of_a_record() -> None:
    record = FakeRecord(GOOD, 5, "t", 0, None, None, [("h", b"\x00"), ("n", None)])
    made = dict(maker(metadata=tuple(RECORD_COLUMNS.names))({A: [record]}))[A].rows
    assert made.schema == pa.schema([*VALUES, *RECORD_COLUMNS])
    assert made.to_pylist() == [
        {
            "a": 1,
            "topic": "t",
            "partition": 0,
            "offset": 5,
            "timestamp": None,
            "key": None,
            "headers": [{"key": "h", "value": b"\x00"}, {"key": "n", "value": None}],
        }
    ]


def test_metadata_is_chosen_by_name() -> None:
    assert chosen_columns("s", True) == tuple(RECORD_COLUMNS.names)
    assert chosen_columns("s", False) == ()
    assert chosen_columns("s", ["offset", "topic"]) == ("topic", "offset")
    with pytest.raises(ConfigurationError, match=r"metadata has no column 'ofset' among .* did you mean 'offset'\?"):
        chosen_columns("s", ["ofset"])


def test_names_that_collide_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="the column 'offset' is one of the schema, and one of the record's"):
        whole_schema("s", parse_schema("offset long"), ("offset",))
    whole_schema("s", parse_schema("offset long"), ("topic",))
