"""A sink for PostgreSQL without a server: its address, what it refuses, the text that it stages."""

from __future__ import annotations

import builtins
import csv
import datetime
import io
import json
import pickle
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from flinkplus.errors import ConfigurationError, InputError, InvariantViolation, OutputUnavailable
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.at_once.attempts import patiently
from flinkplus.sinks.file_names import PartName
from flinkplus.sinks.former import former_sink
from flinkplus.sinks.postgres import connecting
from flinkplus.sinks.postgres.columns import CopyEncoder, names_in, sql_type
from flinkplus.sinks.postgres.connecting import Address
from flinkplus.sinks.postgres.sink import PostgresSink, postgres_sink
from flinkplus.sinks.postgres.table import TableColumn
from flinkplus.sinks.staging import written_order
from tests.unit.sinks.harness import SCHEMA, TAG, context, rows

pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")
SECRET = "secret%20word"
NOT_UTF8 = pa.Array.from_buffers(pa.binary(), 1, pa.array([b"\xff"]).buffers()).view(pa.string())
DSN = f"postgresql://me:{SECRET}@db.example:5433/shop"


def sink(dsn: str = DSN, table: Any = "orders", **options: Any) -> PostgresSink:
    given = {"mode": "append", "key": (), "visibility": "checkpoint", **options}
    made = postgres_sink("out", dsn, table, **given)
    assert isinstance(made, PostgresSink)
    return made


def staged_text(batch: pa.RecordBatch, keys: tuple[str, ...] = ()) -> str:
    stream = pa.BufferOutputStream()
    encoder = CopyEncoder(stream, batch.schema, keys, "out")
    encoder.write(batch)
    encoder.finish()
    header, text = stream.getvalue().to_pybytes().decode().split("\n", 1)
    assert names_in((header + "\n" + text).encode()) == batch.schema.names
    return text


# --- the address ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dsn", [DSN, "host=db.example port=5433 dbname=shop user=me password='secret word'"])
def test_a_password_is_known_only_where_it_was_given(dsn: str) -> None:
    bound = sink(dsn).bind(SCHEMA, "job-1")
    assert dict(bound.address.secrets) == {"password": "secret word"}
    texts = [repr(bound), str(bound.settings()), bound.place]
    for pickled in (pickle.dumps(bound), cloudpickle.dumps({"graph": [bound]})):
        texts.append(pickled.decode("latin-1"))
    assert not [text for text in texts if "secret" in text and ("secret word" in text or SECRET in text)]
    copy = pickle.loads(pickle.dumps(bound))
    assert copy == bound and not copy.address.secrets and copy.settings() == bound.settings()
    assert bound.place == "db.example:5433/shop/orders"


def test_a_password_is_cut_out_of_what_a_server_says() -> None:
    assert sink().address.shown("no\n  secret word   for you") == "no *** for you"


def test_a_dsn_that_cannot_be_read_is_not_quoted() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read") as refused:
        sink("host=db password=hush hush")
    assert "hush" not in str(refused.value) and refused.value.__suppress_context__


def test_a_missing_psycopg_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("psycopg"):
            raise ImportError(f"No module named {name!r}", name=name)
        return found(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"pip install 'flinkplus\[postgres\]'") as refused:
        sink()
    assert "\n" not in str(refused.value)


# --- what is refused before anything runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "insert"}, "mode 'insert' must be one of"),
        ({"mode": "upsert"}, "needs key="),
        ({"key": "word"}, "mode='append' takes none"),
        ({"mode": "upsert", "key": ["word", "word"]}, "several different"),
        ({"visibility": "soon"}, "'soon' must be one of"),
        ({"visibility": "at_once", "table": "flinkplus_recipe"}, "kept by jobs; give another name"),
        ({"table": "a.b.c"}, "'name' or 'schema.name'"),
        ({"table": ""}, "'name' or 'schema.name'"),
        ({"table": 7}, "'name' or 'schema.name'"),
        ({"table": "x" * 64}, "at most 63 bytes"),
        ({"table": "public.flinkplus_progress"}, "kept by jobs; give another name"),
        ({"key": 5}, "key 5 must be a column's name, or a list of such names"),
        ({"key": ["a", 5]}, "must be a column's name"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        sink(**options)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (pa.schema([]), "needs columns with different names"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "needs columns with different names"),
        (pa.schema([("a", pa.list_(pa.duration("s")))]), "column 'a' of type list"),
        (pa.schema([("a", pa.map_(pa.list_(pa.int64()), pa.int64()))]), "column 'a' of type map"),
        (pa.schema([("a", pa.duration("s"))]), "column 'a' of type duration"),
        (pa.schema([("é" * 32, pa.int64())]), "cannot have the name 'é{32}'"),
        (pa.schema([("", pa.int64())]), "cannot have the name ''"),
        (pa.schema([("a\0b", pa.int64())]), "cannot have the name"),
        (pa.schema([("a", pa.int64())]), "key column 'word' is not in the stream"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused(schema: pa.Schema, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        sink(mode="upsert", key="word").bind(schema, "job-1")


def test_a_sink_must_know_where_to_stage() -> None:
    with pytest.raises(InvariantViolation, match="checkpoint directory"):
        sink().bind(SCHEMA, "job-1").staging  # noqa: B018
    staged = {sink(table=table).bind(SCHEMA, "job-1").staged_in("/c").staging for table in ("orders", "s.orders")}
    assert len(staged) == 2


def test_a_table_of_the_program_before_is_left_only_when_nothing_waits(tmp_path: Path) -> None:
    """The password of a sink that is gone is not known: its staged files say whether all is committed."""
    bound = sink().bind(SCHEMA, "job-1").staged_in(str(tmp_path))
    settings = json.loads(json.dumps(dict(bound.settings())))
    assert former_sink("out", settings, "job-1", str(tmp_path), bound) is bound
    writer = bound.writer(context(0), 1)
    (tmp_path / bound.staging).mkdir(parents=True)
    writer.write(rows(("a", 1)))
    staged = writer.settle(writer.stage(4))
    gone = former_sink("out", settings, "job-1", str(tmp_path))
    assert gone is not None
    committer = gone.committer()
    with pytest.raises(ConfigurationError, match="output of checkpoint 4 waits to be committed by it"):
        committer.commit(4, staged)
    (tmp_path / bound.staging / staged[0].name).unlink()
    committer.commit(4, staged)
    committer.discard()
    assert not (tmp_path / bound.staging).exists()
    with pytest.raises(ConfigurationError, match="takes no rows"):
        gone.writer(context(0), 1)


# --- rows as text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (pa.int8(), "smallint"),
        (pa.uint8(), "smallint"),
        (pa.uint16(), "integer"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "numeric(20, 0)"),
        (pa.float16(), "real"),
        (pa.float64(), "double precision"),
        (pa.decimal128(12, 2), "numeric(12, 2)"),
        (pa.large_string(), "text"),
        (pa.binary(4), "bytea"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("ms", "Europe/Oslo"), "timestamp with time zone"),
        (pa.list_(pa.int64()), "jsonb"),
        (pa.struct([("a", pa.map_(pa.int64(), pa.string()))]), "jsonb"),
    ],
)
def test_types_are_those_that_hold_every_value(dtype: pa.DataType, name: str) -> None:
    found = sql_type(dtype)
    assert found is not None and found.name == name


def test_a_null_is_no_empty_text() -> None:
    batch = pa.RecordBatch.from_pylist([{"a": None, "b": 1}, {"a": "", "b": None}, {"a": 'x"\n,\\.', "b": 3}])
    assert staged_text(batch) == ',"1"\n"",\n"x""\n,\\.","3"\n'


def test_values_keep_every_digit() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
    zoned = at.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    values = {
        "f": 0.1 + 0.2,
        "nan": float("nan"),
        "i": -(2**63),
        "flag": True,
        "d": Decimal("-0.000001"),
        "bytes": b"\x00\xff",
        "day": at.date(),
        "at": at,
        "zoned": zoned,
    }
    (row,) = csv.reader(io.StringIO(staged_text(pa.RecordBatch.from_pylist([values]))))
    assert float(row[0]) == 0.1 + 0.2 and row[1].lower() == "nan" and int(row[2]) == -(2**63) and row[3] == "true"
    assert Decimal(row[4]) == Decimal("-0.000001") and row[5] == "\\x00ff" and row[6] == "2026-01-02"
    assert row[7] == "2026-01-02 03:04:05.678901" and row[8] == "2026-01-02 02:04:05.678901Z"


def test_structs_arrays_and_maps_are_json() -> None:
    dtype = pa.struct([("l", pa.list_(pa.float64())), ("m", pa.map_(pa.date32(), pa.decimal128(5, 2)))])
    value = {"l": [1.5, None, float("nan")], "m": [(datetime.date(2026, 1, 2), Decimal("1.50"))]}
    batch = pa.RecordBatch.from_arrays([pa.array([value, None, {"l": None, "m": []}], dtype)], ["a"])
    texts = [row[0] for row in csv.reader(io.StringIO(staged_text(batch))) if row]
    assert json.loads(texts[0]) == {"l": [1.5, None, "NaN"], "m": {"2026-01-02": 1.5}}
    assert '"2026-01-02":1.50' in texts[0] and json.loads(texts[-1]) == {"l": None, "m": {}}
    kept = pa.RecordBatch.from_arrays([pa.array([["\\u0000"]])], ["a"])
    assert json.loads(next(csv.reader(io.StringIO(staged_text(kept))))[0]) == ["\\u0000"], (
        "text that only looks like NUL"
    )


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (pa.array(["a\0b"]), "NUL character: column 'a'"),
        (pa.array([None], pa.string()), "key column 'a' holds a null"),
        (pa.array([4 * 10**6], pa.date32()), "outside of the years"),
        (pa.array([-(10**15)], pa.timestamp("ms")), "outside of the years"),
        (pa.array([2**64 // 10**6 + 1], pa.timestamp("s")), "outside of the years"),  # in microseconds: 1970
        (pa.array([67_536 * 365], pa.date32()), "outside of the years"),
        (pa.array([2**62], pa.date64()), "outside of the years"),
        (NOT_UTF8, "text that is not UTF-8"),
        (pa.array([["a\0b"]]), "NUL character: column 'a'"),
        (pa.array([[2**60]], pa.list_(pa.timestamp("us"))), "without a form in JSON"),
    ],
)
def test_what_the_database_would_refuse_is_refused_in_the_slot(array: pa.Array, why: str) -> None:
    with pytest.raises(InputError, match=why):
        staged_text(pa.RecordBatch.from_arrays([array], ["a"]), ("a",))


@pytest.mark.parametrize(
    ("dtype", "texts"),
    [
        (pa.date32(), ("0001-01-01", "9999-12-31")),
        (pa.timestamp("s"), ("0001-01-01 00:00:00.000000", "9999-12-31 00:00:00.000000")),
        (pa.timestamp("us"), ("0001-01-01 00:00:00.000000", "9999-12-31 00:00:00.000000")),
    ],
)
def test_the_first_and_the_last_year_are_written(dtype: pa.DataType, texts: tuple[str, str]) -> None:
    days = [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)]
    array = pa.array([day.date() if dtype == pa.date32() else day for day in days], dtype)
    found = staged_text(pa.RecordBatch.from_arrays([array], ["a"]))
    assert found == "".join(f'"{text}"\n' for text in texts)


def test_a_numeric_holds_what_has_no_more_digits() -> None:
    """Of tens and hundreds, too: a scale may be negative."""

    def column(digits: int, scale: int) -> TableColumn:
        modifier = ((digits << 16) | (scale & 0x7FF)) + 4
        return TableColumn(1, "a", "numeric", False, modifier, "numeric", False, False)

    tens, cents = sql_type(pa.decimal128(5, -2)), sql_type(pa.decimal128(5, 2))
    assert tens is not None and cents is not None
    assert column(5, -2).holds(tens) and column(7, 0).holds(tens) and not column(5, -3).holds(tens)
    assert not column(5, 0).holds(tens)
    assert column(5, 2).holds(cents) and not column(5, -2).holds(cents) and not column(6, 4).holds(cents)


def test_rows_are_loaded_in_the_order_of_checkpoints_and_of_each_subtask() -> None:
    parts = [
        PartName(2, 0, 1, 0, TAG),
        PartName(2, 1, 9, 9, TAG),
        PartName(2, 1, 10, 9, TAG),
        PartName(2, 1, 10, 10, TAG),
    ]
    files = [StagedFile(name=part.text("csv"), rows=1, checkpoint=part.checkpoint) for part in parts]
    first = StagedFile(name=PartName(1, 5, 1, 1, TAG).text("csv"), rows=1, checkpoint=1)
    assert sorted([*reversed(files), first], key=written_order) == [first, *files]


def test_names_of_columns_may_hold_anything() -> None:
    names = ['a"b', "c,d", "e\nf", "g é"]
    stream = pa.BufferOutputStream()
    CopyEncoder(stream, pa.schema([(name, pa.int64()) for name in names]), (), "out").finish()
    assert names_in(stream.getvalue().to_pybytes() + b'"1"\xff') == names


# --- repeated attempts ------------------------------------------------------------------------------------------------


def failing(times: int, seen: list[int]) -> Callable[[], str]:
    def action() -> str:
        seen.append(1)
        if len(seen) <= times:
            raise OutputUnavailable("gone")
        return "done"

    return action


def test_an_action_is_repeated_for_a_while(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda pause_s: now.__setitem__(0, now[0] + pause_s))
    caplog.set_level("INFO", "flinkplus")
    assert patiently(failing(3, []), 8.0, "table t: ready") == "done"
    assert now[0] == pytest.approx(0.1 + 0.2 + 0.4)
    assert "gone; trying again for 8.0 s" in caplog.text and "table t: ready: done after 0.7 s" in caplog.text
    seen: list[int] = []
    with pytest.raises(OutputUnavailable, match="gone"):
        patiently(failing(1000, seen), 8.0, "")
    assert 8 < len(seen) < 13
    with pytest.raises(OutputUnavailable):
        patiently(failing(1, []), 0.0, "")


def test_no_module_of_a_slot_needs_psycopg(tmp_path: Path) -> None:
    """Writers are made, and batches written, by slots, on hosts where only the driver's extras may be missing."""
    bound = sink().bind(SCHEMA, "job-1")
    copied: PostgresSink = pickle.loads(pickle.dumps(bound.staged_in(str(tmp_path))))
    assert isinstance(copied.address, Address)
    assert "psycopg" not in {name.split(".")[0] for name in vars(connecting) if not name.startswith("psycopg_")}


def test_slots_get_the_password_beside_the_plan_and_that_of_the_environment_where_the_program_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {"mode": "append", "key": (), "visibility": "at_once"}
    made = postgres_sink("out", DSN, "orders", **given)
    unpickled = pickle.loads(pickle.dumps(made))
    assert made.secrets() == {"password": "secret word"} and unpickled.secrets() == {}
    assert unpickled.with_secrets(made.secrets()).address.secrets == made.address.secrets
    monkeypatch.setenv("PGPASSWORD", "of the environment")
    assert unpickled.secrets() == {"password": "of the environment"}
    assert made.secrets() == {"password": "secret word"}
    assert made.settings()["visibility"] == "at_once" and made.keeps_recipe
    assert postgres_sink("out", DSN, "orders", mode="append", key=(), visibility="checkpoint").secrets() == {}
