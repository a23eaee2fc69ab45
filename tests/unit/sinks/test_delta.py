"""Delta tables as outputs: real tables, read with deltalake; commits cut short anywhere, other writers and drivers."""

from __future__ import annotations

import pickle
import shutil
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkplus.errors import ConfigurationError, JobRunsElsewhere, OutputTableError, OutputUnavailable
from flinkplus.sinks import file_writer
from flinkplus.sinks.delta import committer as committing
from flinkplus.sinks.delta import sink as describing
from flinkplus.sinks.delta.committer import DeltaCommitter, application
from flinkplus.sinks.delta.location import StorageOptions, TableLocation
from flinkplus.sinks.delta.sink import DeltaSink, delta_sink
from flinkplus.sinks.delta.table import Conflict, DeltaOutput
from flinkplus.sinks.former import former_sink
from flinkplus.sinks.parquet import ParquetSink
from tests.s3_server import s3_server
from tests.unit.sinks.harness import (
    SCHEMA,
    TAG,
    Crash,
    FaultyFiles,
    Job,
    at_every_operation,
    context,
    in_new_process,
    rows,
)

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'flinkplus[delta]'")

Rows = Counter[tuple[Any, ...]]


def sink(table: Path | str, **options: Any) -> DeltaSink:
    given = {"mode": "append", "partition_by": (), "schema_mode": None, "storage_options": None, **options}
    return delta_sink(given.pop("name", "out"), str(table), **given)


def job(table: Path | str, **options: Any) -> Job:
    job_id, resume = options.pop("job_id", "job-1"), options.pop("resume", False)
    return Job(sink(table, **options), job_id, resume)


def next_driver(table: Path | str, **options: Any) -> Job:
    found = job(table, resume=True, **options)
    found.committer.prepare(resume=True)
    found.generation = 100
    found.deploy()
    return found


def content(table: Path, **options: Any) -> Rows:
    found = deltalake.DeltaTable(str(table), **options).to_pyarrow_dataset().to_table().to_pylist()
    return Counter(tuple(row.values()) for row in found)


def expected(*checkpoints: int) -> Rows:
    return Counter((f"r{checkpoint:04d}", index) for checkpoint in checkpoints for index in range(2))


def version(table: Path, name: str = "flinkplus-job-1") -> int | None:
    found: int | None = deltalake.DeltaTable(str(table)).transaction_version(name)
    return found


# --- commits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", [(), ("word",)])
def test_each_checkpoint_with_rows_is_one_commit(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    running = job(tmp_path, partition_by=partition_by)
    running.checkpoint(1)
    running.checkpoint(2)
    running.committer.commit(3, running.stage(3, with_rows=False))
    running.committer.finish()
    table = deltalake.DeltaTable(str(tmp_path))
    assert table.version() == 2
    assert tuple(table.metadata().partition_columns) == partition_by
    assert content(tmp_path) == expected(1, 2)
    assert version(tmp_path) == 2
    assert pa.table(table.get_add_actions()).column("num_records").to_pylist() == [1] * 4
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")}
    assert left == set(pa.table(table.get_add_actions()).column("path").to_pylist())
    assert not (tmp_path / "_staging").exists()


def test_files_are_taken_as_they_were_written(tmp_path: Path) -> None:
    """They are moved, and not written again."""
    running = job(tmp_path)
    described = running.stage(1)
    staged = {path.name: path.stat().st_ino for path in (tmp_path / "_staging" / "job-1").iterdir()}
    running.committer.commit(1, described)
    assert {path.name: path.stat().st_ino for path in tmp_path.glob("part-*")} == staged
    assert all(name.endswith(f"-{TAG}.parquet") for name in staged)


@pytest.mark.parametrize("word", ["a b", "a:b/c=d", "é%20ü", "..", "", None, "x'\"#?&+"])
def test_partitions_of_any_text_are_read_back(tmp_path: Path, word: str | None) -> None:
    """An empty text is a null, as the format of Delta says."""
    running = job(tmp_path, partition_by="word")
    running.writers[0].write(rows((word, 1)))  # type: ignore[arg-type]
    running.committer.commit(1, running.stage(1, with_rows=False))
    assert content(tmp_path) == Counter([(word or None, 1)]) or content(tmp_path) == Counter([(1, word or None)])
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(tmp_path)))
    read = pa.table(found.execute("SELECT word, count FROM t").read_all())
    assert [tuple(row.values()) for row in read.to_pylist()] == [(word or None, 1)]


def test_an_empty_text_is_allowed_where_no_null_is(tmp_path: Path) -> None:
    """It is a null in the table: a column that forbids nulls could not be read any more."""
    schema = pa.schema([pa.field("word", pa.string(), nullable=False), ("count", pa.int64())])
    bound = sink(tmp_path, partition_by="word").bind(schema, "job-1")
    committer = bound.committer()
    committer.prepare(resume=False)
    writer = bound.writer(context(0), 1)
    writer.write(rows(("", 1), schema=schema))
    committer.commit(1, writer.settle(writer.stage(1)))
    assert pa.table(deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()).to_pylist() == [{"word": None, "count": 1}]


TYPES = {
    "flag": pa.bool_(),
    "small": pa.int8(),
    "real": pa.float32(),
    "amount": pa.decimal128(10, 2),
    "text": pa.large_string(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "local": pa.timestamp("ms"),
    "instant": pa.timestamp("ns", "Europe/Berlin"),
    "many": pa.list_(pa.int64()),
    "named": pa.map_(pa.string(), pa.int32()),
    "parts": pa.struct([("a", pa.int64()), ("b", pa.timestamp("us"))]),
}


def test_all_types_are_read_back(tmp_path: Path) -> None:
    values = {
        "flag": True, "small": -7, "real": 0.5, "amount": "12.34", "text": "t", "raw": b"r", "day": 20_000,
        "local": 1_000, "instant": 2_000_000, "many": [1, None], "named": [("k", 1)], "parts": {"a": 1, "b": 3},
    }  # fmt: skip
    columns = {
        name: pa.array([values[name], None]).cast(dtype)
        if name in ("amount",)
        else pa.array([values[name], None], dtype)
        for name, dtype in TYPES.items()
    }
    batch = pa.RecordBatch.from_pydict(columns)
    bound = sink(tmp_path).bind(batch.schema, "job-1")
    committer = bound.committer()
    committer.prepare(resume=False)
    writer = bound.writer(context(0), 1)
    writer.write(batch)
    committer.commit(1, writer.settle(writer.stage(1)))
    read = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_dataset().to_table()
    for name in TYPES:
        column = batch.column(name)
        assert read.column(name).to_pylist() == column.to_pylist(), name
    job_again = sink(tmp_path).bind(batch.schema, "job-2").committer()
    job_again.prepare(resume=False)  # the columns of the table are those of the stream


@pytest.mark.parametrize("fail_after", [False, True])
@pytest.mark.parametrize("same_process", [False, True])
@pytest.mark.parametrize("partition_by", [(), ("word",)])
def test_a_commit_that_is_cut_short(
    tmp_path: Path, partition_by: tuple[str, ...], same_process: bool, fail_after: bool, faults: None
) -> None:
    staged: dict[Path, Any] = {}

    def begin(table: Path) -> Job:
        running = job(table, partition_by=partition_by)
        running.checkpoint(1)
        running.stage(2)  # an orphan of the generation before: this checkpoint never gets it
        running.deploy()
        staged[table] = running.stage(2)
        return running

    def step(running: Job) -> None:
        running.committer.commit(2, staged[Path(running.sink.path)])  # type: ignore[attr-defined]

    for table, crashed in at_every_operation(tmp_path, fail_after, begin, step):
        assert content(table) in (expected(1), expected(1, 2))
        running = crashed if same_process else in_new_process(crashed)
        if not same_process:
            running.committer.prepare(resume=True)
        for _ in range(2):
            running.committer.commit(2, staged[table])
        assert content(table) == expected(1, 2)
        running.generation = 10
        running.deploy()
        running.checkpoint(3)
        running.committer.finish()
        assert content(table) == expected(1, 2, 3)
        assert len(list(table.rglob("*.parquet"))) == 6


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations on files and on the table may fail, before or after they are done."""
    for module in (file_writer, describing):
        monkeypatch.setattr(module, "OutputFiles", FaultyFiles)
    for operation in ("load", "make", "commit"):
        monkeypatch.setattr(DeltaOutput, operation, FaultyFiles._counted(getattr(DeltaOutput, operation)))
    FaultyFiles.plan(0, False)


@pytest.mark.parametrize("fail_after", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_a_beginning_that_is_cut_short(tmp_path: Path, exists: bool, fail_after: bool, faults: None) -> None:
    def begin(table: Path) -> Job:
        if exists:
            job(table, job_id="job-0").checkpoint(1)
        return job(table, resume=True)

    before = expected(1) if exists else Counter[Any]()
    for table, running in at_every_operation(tmp_path, fail_after, begin, lambda job: job.committer.prepare(False)):
        running.committer.prepare(resume=False)
        running.deploy()
        running.checkpoint(1)
        assert content(table) == before + expected(1)


@pytest.mark.parametrize("fail_after", [False, True])
def test_a_takeover_that_is_cut_short(tmp_path: Path, fail_after: bool, faults: None) -> None:
    def begin(table: Path) -> Job:
        job(table).checkpoint(1)
        return job(table, resume=True, job_id="job-2")

    for table, running in at_every_operation(
        tmp_path, fail_after, begin, lambda job: job.committer.succeed("job-1", 1)
    ):
        running.committer.check_successor("job-1", 1)
        running.committer.succeed("job-1", 1)
        running.committer.retract_after(1)
        running.deploy()
        running.checkpoint(2)
        assert content(table) == expected(1, 2)


# --- other writers and drivers ----------------------------------------------------------------------------------------


def test_an_earlier_driver_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the table, and was then stopped for as long as the next driver took to begin."""
    old = job(tmp_path)
    old.checkpoint(1)
    described = old.stage(2)
    assert isinstance(old.committer, DeltaCommitter)
    is_replaced = False

    def check() -> None:
        if is_replaced:
            raise JobRunsElsewhere("another driver runs the job")

    old.committer.allow_only_if(check)
    commit = old.committer._output.commit
    new: list[Job] = []

    def late(*arguments: Any) -> None:
        nonlocal is_replaced
        if not new:
            new.append(next_driver(tmp_path))
            is_replaced = True
        commit(*arguments)

    monkeypatch.setattr(old.committer._output, "commit", late)
    with pytest.raises(JobRunsElsewhere):
        old.committer.commit(2, described)
    assert content(tmp_path) == expected(1)
    new[0].committer.commit(2, described)
    assert content(tmp_path) == expected(1, 2)


@pytest.mark.parametrize("writers", [1, committing.COMMIT_ATTEMPTS - 1, committing.COMMIT_ATTEMPTS])
def test_a_commit_is_tried_again_when_others_change_the_table(
    tmp_path: Path, writers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others append (no conflict), and change the table's properties (a conflict)."""
    running = job(tmp_path)
    running.checkpoint(1)
    described = running.stage(2)
    assert isinstance(running.committer, DeltaCommitter)
    output, left = running.committer._output, [writers]
    commit = output.commit

    def late(*arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            deltalake.write_deltalake(str(tmp_path), pa.table({"word": ["other"], "count": [left[0]]}), mode="append")
            deltalake.DeltaTable(str(tmp_path)).alter.set_table_properties(
                {"delta.logRetentionDuration": "interval 9 days"}
            )
        commit(*arguments)

    monkeypatch.setattr(output, "commit", late)
    others = Counter(("other", number) for number in range(writers))
    if writers == committing.COMMIT_ATTEMPTS:
        with pytest.raises(OutputUnavailable, match=r"Delta table .*[Mm]etadata"):
            running.committer.commit(2, described)
        assert content(tmp_path) == expected(1) + others
    running.committer.commit(2, described)
    assert content(tmp_path) == expected(1, 2) + others


def test_rows_of_others_stay_when_the_table_is_optimized(tmp_path: Path) -> None:
    running = job(tmp_path)
    running.checkpoint(1)
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    running.checkpoint(2)
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    resumed = next_driver(tmp_path)
    resumed.checkpoint(3)
    assert content(tmp_path) == expected(1, 2, 3)
    assert version(tmp_path) == 3


def test_a_vacuum_leaves_what_is_staged(tmp_path: Path) -> None:
    running = job(tmp_path, partition_by="word")
    running.checkpoint(1)
    described = running.stage(2)
    (tmp_path / "left.parquet").write_text("x")
    table = deltalake.DeltaTable(str(tmp_path))
    assert table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True) == ["left.parquet"]
    running.committer.commit(2, described)
    assert content(tmp_path) == expected(1, 2)


def test_a_job_from_a_savepoint_continues_the_table(tmp_path: Path) -> None:
    old = job(tmp_path)
    old.checkpoint(1)
    described = old.stage(2)
    new = job(tmp_path, resume=True, job_id="job-2")
    for _ in range(2):
        new.committer.check_successor("job-1", 1)
        new.committer.succeed("job-1", 1)
        new.committer.retract_after(1)
    with pytest.raises(OutputTableError, match="belongs to another job now"):
        old.committer.commit(2, described)
    with pytest.raises(OutputTableError, match="belongs to another job now"):
        next_driver(tmp_path)
    new.deploy()
    new.checkpoint(2)
    assert content(tmp_path) == expected(1, 2)
    with pytest.raises(OutputTableError, match="belongs to another job now"):
        job(tmp_path, resume=True, job_id="job-3").committer.check_successor("job-1", 1)


def test_a_savepoint_with_later_rows_is_refused(tmp_path: Path) -> None:
    old = job(tmp_path)
    old.checkpoint(1)
    old.checkpoint(2)
    new = job(tmp_path, resume=True, job_id="job-2")
    with pytest.raises(OutputTableError, match="holds the rows of checkpoint 2 of the job that the savepoint is of"):
        new.committer.check_successor("job-1", 1)
    new.committer.check_successor("job-1", 2)
    new.committer.check_successor(None, 1)


def test_what_is_committed_is_not_taken_back(tmp_path: Path) -> None:
    running = job(tmp_path)
    running.checkpoint(1)
    running.checkpoint(2)
    running.stage(3)
    for target in (1, None):
        with pytest.raises(OutputTableError, match="cannot be taken back: the job cannot continue"):
            running.committer.retract_after(target)
    running.committer.retract_after(2)
    assert list((tmp_path / "_staging" / "job-1").iterdir()) == []
    assert content(tmp_path) == expected(1, 2)


@pytest.mark.parametrize("what", ["gone", "made anew", "older"])
def test_a_table_that_lost_commits_is_noticed(tmp_path: Path, what: str) -> None:
    table = tmp_path / "table"
    running = job(table)
    running.checkpoint(1)
    shutil.copytree(table / "_delta_log", tmp_path / "log")
    running.checkpoint(2)
    described = running.stage(3)
    shutil.rmtree(table / "_delta_log")
    if what == "made anew":
        deltalake.DeltaTable.create(str(table), SCHEMA)
    elif what == "older":
        shutil.copytree(tmp_path / "log", table / "_delta_log")
    with pytest.raises(OutputTableError, match="has gone" if what == "gone" else "has lost commits of this job"):
        running.committer.commit(3, described)


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_staged_file_that_is_lost_is_an_error(tmp_path: Path, damage: str) -> None:
    running = job(tmp_path)
    described = running.stage(1)
    (path, *_) = tmp_path.rglob("part-*")
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OutputTableError, match="is missing or has not the"):
        running.committer.commit(1, described)
    assert content(tmp_path) == Counter()


# --- which tables fit -------------------------------------------------------------------------------------------------


def test_an_existing_table_is_added_to(tmp_path: Path) -> None:
    """It may have further columns, in another order, and rows."""
    deltalake.write_deltalake(str(tmp_path), pa.table({"more": [0.5], "count": [7], "word": ["old"]}))
    running = job(tmp_path)
    running.checkpoint(1)
    assert content(tmp_path) == Counter([(0.5, 7, "old"), *((None, n, w) for w, n in expected(1))])


def made(table: Path, schema: pa.Schema, **options: Any) -> None:
    deltalake.DeltaTable.create(str(table), schema, **options)


def with_field(name: str, dtype: pa.DataType, nullable: bool = True) -> pa.Schema:
    kept = [field for field in SCHEMA if field.name != name]
    return pa.schema([*kept, pa.field(name, dtype, nullable)])


@pytest.mark.parametrize(
    ("schema", "options", "error"),
    [
        (pa.schema([("word", pa.string())]), {}, "it has no column 'count'; schema_mode='merge' adds it"),
        (with_field("count", pa.int32()), {}, "its column 'count' is integer, and in the stream long"),
        (
            with_field("count", pa.int64(), False),
            {},
            "its column 'count' must not be null, and in the stream it may be",
        ),
        (with_field("more", pa.int64(), False), {}, "its column 'more' must not be null, and the stream has none"),
        (
            SCHEMA,
            {"partition_by": ["word"]},
            r"is partitioned by word, and the sink by nothing: give partition_by=\['word",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    tmp_path: Path, schema: pa.Schema, options: dict[str, Any], error: str
) -> None:
    made(tmp_path, schema, **options)
    with pytest.raises(OutputTableError, match=error):
        job(tmp_path)
    with pytest.raises(OutputTableError, match=error):
        job(tmp_path, resume=True).committer.check_successor("job-0", 1)
    assert deltalake.DeltaTable(str(tmp_path)).version() == 0


def test_constraints_are_not_passed_over(tmp_path: Path) -> None:
    made(tmp_path, SCHEMA)
    deltalake.DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "count > 0"})
    with pytest.raises(OutputTableError, match="it has constraints"):
        job(tmp_path)


def test_other_data_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(OutputTableError, match="there is other data in its place"):
        job(tmp_path)


def test_a_table_is_not_made_in_the_directory_of_another_output(tmp_path: Path) -> None:
    """Both would stage files of the same names in the same folder."""
    Job(ParquetSink("files", str(tmp_path)))
    with pytest.raises(OutputTableError, match=r"there is other data in its place \(_flinkplus.json\)"):
        job(tmp_path)


@pytest.mark.parametrize("path", ["/tmp/a%20b", "file:///tmp/a%2520b"])
def test_a_local_path_that_deltalake_does_not_find_is_refused(path: str) -> None:
    """It decodes the path once more than it encodes it."""
    with pytest.raises(ConfigurationError, match="deltalake does not find a local path with '/tmp/a%20b'"):
        sink(path)


def test_merge_adds_columns(tmp_path: Path) -> None:
    made(tmp_path, pa.schema([("word", pa.string())]))
    running = job(tmp_path, schema_mode="merge")
    running.checkpoint(1)
    assert content(tmp_path) == expected(1)
    made_else = tmp_path / "else"
    made(made_else, pa.schema([("word", pa.int64())]))
    with pytest.raises(OutputTableError, match="its column 'word' is long, and in the stream string"):
        job(made_else, schema_mode="merge")


def test_a_table_changed_while_the_job_runs_is_checked(tmp_path: Path) -> None:
    running = job(tmp_path)
    running.checkpoint(1)
    deltalake.DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "count >= 0"})
    with pytest.raises(OutputTableError, match="it has constraints"):
        running.committer.commit(2, running.stage(2))


def test_two_sinks_of_a_job_do_not_share_a_table(tmp_path: Path) -> None:
    job(tmp_path)
    with pytest.raises(OutputTableError, match="holds output of this job already"):
        job(tmp_path, name="other")


def test_two_sinks_that_resume_one_table_do_not_lose_rows(tmp_path: Path) -> None:
    """The first start was refused; the next one finds a job that has begun, and each sink takes the table over."""
    job(tmp_path, name="first")
    first, second = next_driver(tmp_path, name="first"), next_driver(tmp_path, name="second")
    with pytest.raises(OutputTableError, match="give each sink of a job a table of its own"):
        first.checkpoint(1)
    second.checkpoint(1)
    assert content(tmp_path) == expected(1)


def test_two_sinks_from_a_savepoint_do_not_lose_rows(tmp_path: Path) -> None:
    job(tmp_path).checkpoint(1)
    first, second = (job(tmp_path, name=name, job_id="job-2", resume=True) for name in ("first", "second"))
    first.committer.succeed("job-1", 1)
    second.committer.succeed(None, 1)
    first.deploy()
    with pytest.raises(OutputTableError, match="give each sink of a job a table of its own"):
        first.checkpoint(2)


def test_a_table_of_another_job_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(OutputTableError, match="does not hold the output of the job to be resumed"):
        next_driver(tmp_path / "none")
    job(tmp_path, job_id="job-0").checkpoint(1)
    with pytest.raises(OutputTableError, match="does not hold the output of the job to be resumed"):
        next_driver(tmp_path)


def test_a_sink_of_another_name_continues_the_table(tmp_path: Path) -> None:
    job(tmp_path).checkpoint(1)
    renamed = next_driver(tmp_path, name="renamed")
    renamed.checkpoint(2)
    assert content(tmp_path) == expected(1, 2)


def crashing(*arguments: Any) -> None:
    raise Crash("before the commit")


def test_a_sink_that_is_gone_must_have_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = job(tmp_path)
    described = running.stage(1)
    gone = former_sink("out", dict(running.sink.settings()), "job-1", "unused")
    assert gone is not None
    with pytest.raises(ConfigurationError, match="output of checkpoint 1 waits to be committed"):
        gone.committer().commit(1, described)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(DeltaOutput, "commit", crashing)
        running.committer.commit(1, described)
    with pytest.raises(ConfigurationError, match="output of checkpoint 1 waits to be committed"):
        gone.committer().commit(1, described)  # its files are not staged any more, and not in the table
    running.committer.commit(1, described)
    gone.committer().commit(1, described)


@pytest.mark.parametrize("dtype", [pa.uint8(), pa.uint64(), pa.date64(), pa.list_(pa.uint8())])
def test_types_that_no_table_has_are_refused(tmp_path: Path, dtype: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match="a Delta table has no type for column 'a'"):
        sink(tmp_path).bind(pa.schema([("a", dtype)]), "job-1")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "overwrite"}, "mode 'overwrite' must be one of"),
        ({"schema_mode": "overwrite"}, "schema_mode 'overwrite' must be one of"),
        ({"storage_options": {"a": 1}}, "storage_options must be a dict of texts"),
        ({"partition_by": 1}, "partition_by 1 must be"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        sink(tmp_path, **options)


@pytest.mark.long
@pytest.mark.parametrize("partition_by", [(), ("word",)])
def test_a_table_in_a_bucket(partition_by: tuple[str, ...]) -> None:
    """By the URI that slots use, without further options; an old driver conflicts with the new one there, too."""
    with s3_server() as bucket:
        uri = bucket.uri("table")
        where = TableLocation.of(uri, StorageOptions())

        def rows_there() -> Rows:
            table = deltalake.DeltaTable(where.uri, storage_options=where.options)
            return Counter((row["word"], row["count"]) for row in table.to_pyarrow_table().to_pylist())

        old = job(uri, partition_by=partition_by)
        old.checkpoint(1)
        assert rows_there() == expected(1)
        described = old.stage(2)
        assert isinstance(old.committer, DeltaCommitter)
        table = old.committer._output.load()
        new = next_driver(uri, partition_by=partition_by)
        with pytest.raises(Conflict):
            old.committer._output.commit(table, {application("job-1"): 2})
        new.committer.commit(2, described)
        new.checkpoint(3)
        new.committer.finish()
        assert rows_there() == expected(1, 2, 3)
        assert not [name for name in bucket.below("table") if name.startswith("_staging")]


def test_storage_that_does_not_answer_is_an_error_with_its_causes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    uri = f"s3://key:hidden@bucket/table?region=r&scheme=http&endpoint_override=127.0.0.1:{port}"
    with pytest.raises(OutputUnavailable, match=r"Delta table s3://bucket/table: .*: Connection refused") as caught:
        job(uri, storage_options={"max_retries": "0"})
    assert "hidden" not in str(caught.value) and "\n" not in str(caught.value)


# --- where it is ------------------------------------------------------------------------------------------------------


def test_the_uri_of_a_bucket_gives_the_options() -> None:
    uri = "s3://KEY:SEC%2FRET@bucket/a/b?region=eu-1&scheme=http&endpoint_override=127.0.0.1:9"
    found = TableLocation.of(uri, StorageOptions({"AWS_REGION": "eu-2"}))
    assert found.uri == "s3://bucket/a/b"
    assert found.options == {
        "AWS_ACCESS_KEY_ID": "KEY",
        "AWS_SECRET_ACCESS_KEY": "SEC/RET",
        "AWS_REGION": "eu-2",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ALLOW_HTTP": "true",
    }
    assert "SEC" not in f"{found} {found!r}"
    assert TableLocation.of("file:///a%20b", StorageOptions()).uri == "/a b"
    assert TableLocation.of("s3://bucket/a", StorageOptions()).options == {}


def test_secret_options_stay_in_the_driver(tmp_path: Path) -> None:
    given = sink(tmp_path, storage_options={"AWS_SECRET_ACCESS_KEY": "hidden", "timeout": "9s"})
    assert "hidden" not in repr(given)
    data = pickle.dumps(given)
    assert b"hidden" not in data
    found = pickle.loads(data)
    assert (found.options.public, found.options.secrets) == ({"timeout": "9s"}, {})
    assert application("job-1") == "flinkplus-job-1"
