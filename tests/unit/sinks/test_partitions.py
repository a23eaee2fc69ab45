"""Parquet in folders of partitions, in files of a limited size, and beside data that was there before."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import ConfigurationError, InputError, OutputDirectoryError
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.sinks import file_writer
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.parquet import ParquetSink, parquet_sink
from flinkplus.sinks.partitions import divided, folder_name, values_of
from flinkplus.sinks.spark_log import SparkFileLog
from flinkplus.state.durable.storage import CheckpointStorage
from tests.s3_server import s3_server
from tests.unit.sinks.harness import (
    SCHEMA,
    FaultyFiles,
    Job,
    at_every_operation,
    context,
    in_new_process,
    rows,
    visible_files,
)

TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))


def by_word(out: Path, **options: Any) -> Job:
    job_id, resume = options.pop("job_id", "job-1"), options.pop("resume", False)
    return Job(ParquetSink("out", str(out), partition_by=("word",), **options), job_id, resume)


def visible(out: Path) -> Counter[tuple[str | None, int]]:
    """The rows that Spark sees, with the word of their folder."""
    found: Counter[tuple[str | None, int]] = Counter()
    for path in visible_files(out):
        words = values_of(path.parent.name if "=" in path.parent.name else "")
        table = pq.ParquetFile(path).read()
        own = table.column("word").to_pylist() if "word" in table.schema.names else [words.get("word")] * len(table)
        found.update(zip(own, table.column("count").to_pylist(), strict=True))
    return found


def expected(*checkpoints: int) -> Counter[tuple[str | None, int]]:
    return Counter((f"r{checkpoint:04d}", index) for checkpoint in checkpoints for index in range(2))


# --- how rows are divided ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("2026-11-27", "day=2026-11-27"),
        (None, "day=__HIVE_DEFAULT_PARTITION__"),
        ("", "day=__HIVE_DEFAULT_PARTITION__"),
        ("a/b:c=d%", "day=a%2Fb%3Ac%3Dd%25"),
        ("..", "day=.."),
        ("é ü", "day=é ü"),
        ("a\tb\x7f", "day=a%09b%7F"),
    ],
)
def test_folders_have_the_names_that_spark_gives(value: str | None, folder: str) -> None:
    assert folder_name(["day"], [value]) == folder
    assert values_of(folder) == {"day": value or None}


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_a_value_comes_back_from_its_folder(values: list[str | None]) -> None:
    columns = [f"{index}=%/c" for index in range(len(values))]
    folder = folder_name(columns, values)
    assert list(values_of(folder).items()) == [
        (name, value or None) for name, value in zip(columns, values, strict=True)
    ]


@given(st.lists(st.tuples(TEXTS, st.one_of(st.none(), st.booleans()), st.integers(0, 9)), min_size=1))
def test_every_row_is_in_the_folder_of_its_values_in_its_order(given_rows: list[tuple[Any, ...]]) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.bool_()), ("n", pa.int64())])
    batch = pa.RecordBatch.from_pylist([dict(zip("abn", row, strict=True)) for row in given_rows], schema=schema)
    found = {folder: part.column("n").to_pylist() for folder, part in divided(batch, ["a", "b"])}
    wanted: dict[str, list[int]] = {}
    for a, b, n in given_rows:
        wanted.setdefault(folder_name("ab", [a, None if b is None else str(b).lower()]), []).append(n)
    assert found == wanted


def test_dates_and_numbers_are_written_as_spark_casts_them() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"d": pa.array([datetime.date(2026, 1, 2)]), "i": pa.array([-3], pa.int16()), "x": pa.array([1])}
    )
    assert [folder for folder, _ in divided(batch, ["d", "i"])] == ["d=2026-01-02/i=-3"]


def test_a_value_that_no_folder_can_have_fails() -> None:
    with pytest.raises(InputError, match="too long for a file system"):
        folder_name(["word"], ["x" * 300])


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (["missing"], "'missing' is not in the stream; it has word, count"),
        (["word", "word"], "names a column twice"),
        (["word", "count"], "leaves no column for the files"),
        (3, "must be a column's name or a list"),
    ],
)
def test_columns_that_cannot_divide_are_refused(tmp_path: Path, columns: Any, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        parquet_sink("out", str(tmp_path), columns, None, False).bind(SCHEMA, "job-1")


@pytest.mark.parametrize("dtype", [pa.float64(), pa.timestamp("us"), pa.binary(), pa.list_(pa.int64())])
def test_types_without_a_form_in_a_folder_are_refused(tmp_path: Path, dtype: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a folder"):
        parquet_sink("out", str(tmp_path), "a", None, False).bind(pa.schema([("a", dtype), ("b", pa.int64())]), "job-1")


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_has_a_file_for_each_partition(tmp_path: Path) -> None:
    job = by_word(tmp_path)
    job.writers[0].write(rows(("b", 1), ("a", 2), ("b", 3)))
    job.writers[0].write(rows(("a", 4), (None, 5)))  # type: ignore[arg-type]
    staged = job.stage(1, with_rows=False)
    assert sorted((file.folder, file.rows) for file in staged) == [
        ("word=__HIVE_DEFAULT_PARTITION__", 1),
        ("word=a", 2),
        ("word=b", 2),
    ]
    job.committer.commit(1, staged)
    assert visible(tmp_path) == Counter({("b", 1): 1, ("a", 2): 1, ("b", 3): 1, ("a", 4): 1, (None, 5): 1})
    (path,) = (tmp_path / "word=b").iterdir()
    table = pq.ParquetFile(path).read()
    assert (table.schema.names, table.column("count").to_pylist()) == (["count"], [1, 3])


def test_the_number_of_open_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that has had no rows for longest is closed, and staged with the others."""
    monkeypatch.setattr(file_writer, "MAX_OPEN_FILES", 2)
    monkeypatch.setattr(file_writer, "GATHERED_BATCHES", 1)
    job = by_word(tmp_path)
    writer = job.writers[0]
    for number, word in enumerate(["a", "b", "a", "c", "b", "a"]):
        writer.write(rows((word, number)))
        assert len(writer._open) <= 2  # type: ignore[attr-defined]
    staged = job.stage(1, with_rows=False)
    assert Counter(file.folder for file in staged) == {"word=a": 2, "word=b": 2, "word=c": 1}
    job.committer.commit(1, staged)
    assert visible(tmp_path) == Counter((word, number) for number, word in enumerate("abacba"))
    assert list((tmp_path / "_staging" / "job-1").iterdir()) == []


def test_many_partitions_do_not_make_a_file_for_every_few_rows(tmp_path: Path) -> None:
    """Otherwise each MiB of rows, or each 128 batches, ended a file of almost every partition."""
    running = by_word(tmp_path)
    count = file_writer.MAX_OPEN_FILES * 4
    many = rows(*((f"w{index:03d}", index) for index in range(count)))
    for _ in range(file_writer.GATHERED_BATCHES * 8):
        running.writers[0].write(many)
    described = running.stage(1, with_rows=False)
    assert len(described) <= 2 * count
    assert Counter(file.folder for file in described).keys() == {f"word=w{index:03d}" for index in range(count)}
    assert sum(file.rows for file in described) == count * file_writer.GATHERED_BATCHES * 8


def test_a_large_file_is_followed_by_another(tmp_path: Path) -> None:
    job = Job(parquet_sink("out", str(tmp_path), (), 1 << 20, False))
    for begin in range(0, 600_000, 2_000):
        job.writers[0].write(rows(*((f"{n * 7919 % 1_000_003}", n) for n in range(begin, begin + 2_000))))
    staged = job.stage(1, with_rows=False)
    assert len(staged) > 2
    assert all((1 << 20) <= file.bytes < (2 << 20) for file in staged[:-1])
    job.committer.commit(1, staged)
    assert sorted(count for _, count in visible(tmp_path)) == list(range(600_000))


@pytest.mark.parametrize("size", [0, -1, 1.5, True, 1000])
def test_sizes_that_make_no_sense_are_refused(tmp_path: Path, size: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_file_bytes"):
        parquet_sink("out", str(tmp_path), (), size, False)


def test_what_is_closed_early_goes_with_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "MAX_OPEN_FILES", 1)
    job = by_word(tmp_path)
    writer = job.writers[0]
    writer.write(rows(("a", 1), ("b", 1)))
    assert writer.stage(1) != []
    for number in range(file_writer.GATHERED_BATCHES + 1):  # the last one is in no file yet
        writer.write(rows(("a", number), ("b", number)))
    writer.close()
    assert writer.stage(2) == writer.stage(1)
    assert {path.name[:4] for path in (tmp_path / "_staging" / "job-1").iterdir()} == {"open"}  # of checkpoint 1


# --- commits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_after", [False, True])
def test_a_commit_of_partitions_that_is_cut_short(
    tmp_path: Path, fail_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "OutputFiles", FaultyFiles)
    FaultyFiles.plan(0, False)
    staged: dict[Path, Any] = {}

    def begin(out: Path) -> Job:
        job = by_word(out)
        job.checkpoint(1)
        staged[out] = job.stage(2)
        return job

    def step(job: Job) -> None:
        job.committer.commit(2, staged[Path(job.sink.path)])  # type: ignore[attr-defined]

    for out, crashed in at_every_operation(tmp_path, fail_after, begin, step):
        assert visible(out) in (expected(1), expected(1, 2))
        job = in_new_process(crashed)
        job.committer.prepare(resume=True)
        job.committer.commit(2, staged[out])
        assert visible(out) == expected(1, 2)
        job.generation = 10
        job.deploy()
        job.checkpoint(3)
        job.committer.retract_after(2)
        assert visible(out) == expected(1, 2)
        job.committer.finish()
        assert visible(out) == expected(1, 2)
        left = {path.relative_to(out).as_posix() for path in out.rglob("part-*")}
        assert left == {path.relative_to(out).as_posix() for path in visible_files(out)}


@pytest.mark.parametrize("taken_back", [False, True])
def test_a_file_that_was_moved_and_not_listed_goes(tmp_path: Path, taken_back: bool) -> None:
    """The driver died in between, and its checkpoint is not the one that the job continues from."""
    job = by_word(tmp_path)
    job.checkpoint(1)
    for file in job.stage(2):
        (tmp_path / file.folder).mkdir(exist_ok=True)
        (tmp_path / "_staging" / "job-1" / file.name).rename(tmp_path / file.folder / file.name)
    assert len(list(tmp_path.rglob("part-*"))) == 4
    resumed = in_new_process(job)
    resumed.committer.prepare(resume=True)
    if taken_back:
        resumed.committer.retract_after(1)
    else:
        resumed.committer.finish()
    assert len(list(tmp_path.rglob("part-*"))) == 2
    assert visible(tmp_path) == expected(1)


def test_an_output_without_rows_has_all_columns(tmp_path: Path) -> None:
    job = by_word(tmp_path)
    job.committer.finish()
    (path,) = visible_files(tmp_path)
    assert path.parent == tmp_path
    assert pq.read_schema(path) == SCHEMA


# --- beside other data ------------------------------------------------------------------------------------------------


def batch_output(out: Path, *counts: int, word: str | None = "old") -> None:
    """What a batch job leaves: files, no list."""
    folder = out / f"word={word}" if word else out
    folder.mkdir(parents=True)
    table = pa.table({"count": list(counts)} if word else {"word": ["old"] * len(counts), "count": list(counts)})
    pq.write_table(table, folder / "part-00000-f3a1-c000.snappy.parquet")
    (out / "_SUCCESS").touch()


def finished_job(out: Path, job_id: str = "job-0", **options: Any) -> None:
    job = by_word(out, job_id=job_id, **options)
    job.checkpoint(1)
    job.committer.finish()


def test_data_of_a_batch_job_stays_visible(tmp_path: Path) -> None:
    batch_output(tmp_path, 7, 8)
    job = by_word(tmp_path, append=True)
    old = Counter({("old", 7): 1, ("old", 8): 1})
    assert visible(tmp_path) == old
    job.checkpoint(1)
    assert visible(tmp_path) == old + expected(1)
    job.committer.retract_after(None)
    assert visible(tmp_path) == old
    job.generation = 10
    job.deploy()
    job.checkpoint(2)
    job.committer.finish()
    assert visible(tmp_path) == old + expected(2)


@pytest.mark.parametrize("name", ["a (1)", "données", "a:b@c'd", "a\nb", "x" * 240])
def test_earlier_files_may_have_any_name(tmp_path: Path, name: str) -> None:
    """The list is read again: at the end, by a compaction, and by the next job that adds to it."""
    batch_output(tmp_path, 7)
    (data,) = (tmp_path / "word=old").iterdir()
    data.rename(data.with_name(f"{name}.parquet"))
    finished_job(tmp_path, append=True)
    by_word(tmp_path, append=True).checkpoint(1)
    assert visible(tmp_path) == Counter({("old", 7): 1}) + expected(1, 1)


def test_a_name_that_no_list_can_hold_is_refused(tmp_path: Path) -> None:
    batch_output(tmp_path, 7)
    (data,) = (tmp_path / "word=old").iterdir()
    os.rename(data, os.path.join(os.fsencode(data.parent), b"\xff.parquet"))
    with pytest.raises(OutputDirectoryError, match="is no name of a file that can be listed"):
        by_word(tmp_path, append=True)
    assert not (tmp_path / "_spark_metadata").exists()


def test_the_list_of_a_job_that_has_ended_is_continued(tmp_path: Path) -> None:
    """Its numbers of checkpoints are not those of the new job."""
    batch_output(tmp_path, 7)
    finished_job(tmp_path, append=True)
    old = visible(tmp_path)
    assert old == expected(1) + Counter({("old", 7): 1})
    job = by_word(tmp_path, append=True)
    job.checkpoint(1)
    job.checkpoint(2)
    assert visible(tmp_path) == old + expected(1, 2)
    job.committer.retract_after(1)
    assert visible(tmp_path) == old + expected(1)
    job.committer.retract_after(None)
    assert visible(tmp_path) == old
    with pytest.raises(OutputDirectoryError, match="does not hold the output of the job to be resumed"):
        by_word(tmp_path, job_id="job-0", resume=True).committer.prepare(resume=True)


def test_a_job_without_rows_is_followed(tmp_path: Path) -> None:
    """Its file without rows is in no folder. The directory's own name looks like that of a partition."""
    out = tmp_path / "env=test"
    by_word(out, job_id="job-0").committer.finish()
    for number in (1, 2):
        job = by_word(out, append=True, job_id=f"job-{number}")
        job.checkpoint(1)
        job.committer.finish()
    assert visible(out) == expected(1) + expected(1)


def test_without_append_a_directory_with_data_is_refused(tmp_path: Path) -> None:
    batch_output(tmp_path, 7)
    with pytest.raises(OutputDirectoryError, match="append=True"):
        by_word(tmp_path)


def running_job(out: Path) -> None:
    by_word(out, job_id="job-0").checkpoint(1)


def other_partitions(out: Path) -> None:
    batch_output(out, 7, word=None)


def another_format(out: Path) -> None:
    (out / "word=a").mkdir(parents=True)
    (out / "word=a" / "x.csv").write_text("1")


def other_columns(out: Path) -> None:
    (out / "word=a").mkdir(parents=True)
    pq.write_table(pa.table({"count": ["text"]}), out / "word=a" / "x.parquet")


def query_of_spark(out: Path) -> None:
    (out / "_spark_metadata").mkdir(parents=True)
    (out / "_spark_metadata" / "0").write_text("v1")


def delta_table(out: Path) -> None:
    (out / "_delta_log").mkdir(parents=True)
    (out / "_delta_log" / "0.json").write_text("{}")


def own_output(out: Path) -> None:
    finished_job(out, job_id="job-1")


def older_version(out: Path) -> None:
    out.mkdir()
    (out / "_flinkplus.json").write_text(json.dumps({"format": 1, "job": "job-0", "sink": "out"}))


@pytest.mark.parametrize(
    ("earlier", "error"),
    [
        (running_job, "job 'job-0' has not ended"),
        (other_partitions, "is divided by nothing, and the output by word"),
        (another_format, "x.csv, which is no .parquet file"),
        (other_columns, "column 'count' is string; in the stream it is int64"),
        (query_of_spark, "its _spark_metadata is that of a query of Spark"),
        (delta_table, "it is a table of Delta Lake; to_delta adds to it"),
        (own_output, "it holds output of this job already"),
        (older_version, "another version of FlinkPlus has written it"),
    ],
)
def test_what_does_not_fit_is_refused_and_stays(tmp_path: Path, earlier: Callable[[Path], None], error: str) -> None:
    out = tmp_path / "out"
    earlier(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(OutputDirectoryError, match=error):
        by_word(out, append=True)
    if earlier is not own_output:  # which this job has begun, as far as the directory says
        with pytest.raises(OutputDirectoryError, match=error):
            by_word(out, append=True, resume=True).committer.check_successor("job-9", 3)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("fail_after", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_earlier_data_is_visible_at_any_moment(
    tmp_path: Path, ended: bool, fail_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers go by the list as soon as there is one: it must not begin empty."""
    monkeypatch.setattr(file_writer, "OutputFiles", FaultyFiles)
    FaultyFiles.plan(0, False)
    old = Counter({("old", 7): 1})

    def begin(out: Path) -> Job:
        batch_output(out, 7)
        if ended:
            finished_job(out, append=True)
        return by_word(out, append=True, resume=True)

    before = old + expected(1) if ended else old
    for out, job in at_every_operation(tmp_path, fail_after, begin, lambda job: job.committer.prepare(resume=False)):
        assert visible(out) == before or not (out / "_spark_metadata").exists()
        job.committer.prepare(resume=False)
        assert visible(out) == before
        job.deploy()
        job.checkpoint(1)
        assert visible(out) == before + expected(1)
        job.committer.finish()
        assert visible(out) == before + expected(1)
        assert sorted(path.name for path in out.iterdir() if path.name.startswith("_")) == [
            *(["_SUCCESS"]),
            "_flinkplus.json",
            "_spark_metadata",
        ]


@pytest.mark.parametrize("fail_after", [False, True])
@pytest.mark.parametrize("append", [False, True])
def test_a_resume_completes_a_beginning_that_was_cut_short(
    tmp_path: Path, append: bool, fail_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory names the job before it has a list. Without one no commit is possible, or earlier data is gone."""
    monkeypatch.setattr(file_writer, "OutputFiles", FaultyFiles)
    FaultyFiles.plan(0, False)

    def begin(out: Path) -> Job:
        if append:
            batch_output(out, 7)
        return by_word(out, append=append, resume=True)

    before: Counter[tuple[str | None, int]] = Counter({("old", 7): 1} if append else {})
    for out, job in at_every_operation(tmp_path, fail_after, begin, lambda job: job.committer.prepare(resume=False)):
        resumed = in_new_process(job)
        commits = Commits({"out": resumed.sink}, CheckpointStorage(out.with_name(f"{out.name}-home")))
        commits.prepare_again()
        resumed.committer = commits.committers["out"]
        resumed.deploy()
        resumed.checkpoint(1)
        assert visible(out) == before + expected(1)


def test_a_list_that_was_lost_is_not_begun_anew(tmp_path: Path) -> None:
    """It would hide what was committed."""
    running = by_word(tmp_path)
    running.checkpoint(1)
    shutil.rmtree(tmp_path / "_spark_metadata")
    in_new_process(running).committer.prepare(resume=True)
    assert not (tmp_path / "_spark_metadata").exists()


def test_a_folder_that_others_have_removed_is_made_again(tmp_path: Path) -> None:
    """As a vacuum of a Delta table does with those that are empty."""
    running = by_word(tmp_path)
    running.checkpoint(1)
    shutil.rmtree(tmp_path / "word=r0001")
    running.writers[0].write(rows(("r0001", 5)))
    running.committer.commit(2, running.stage(2, with_rows=False))
    assert len(list((tmp_path / "word=r0001").iterdir())) == 1


def test_what_others_put_into_the_directory_stays(tmp_path: Path) -> None:
    """Also a file of another job: it is invisible, and may be the only one."""
    running = by_word(tmp_path, append=True)
    running.checkpoint(1)
    copy = tmp_path / "word=r0001" / "part-c00000001-s0-g2-0-0000abcd.parquet"
    shutil.copy(next(copy.parent.iterdir()), copy)
    running.committer.finish()
    assert copy.exists()


def test_nested_columns_are_added_to_those_of_a_job_before(tmp_path: Path) -> None:
    """Parquet names the parts of lists and maps otherwise, and has other units."""
    parts = pa.struct([pa.field("at", pa.timestamp("ns"), nullable=False), ("text", pa.large_string())])
    schema = pa.schema([("many", pa.list_(parts)), ("named", pa.map_(pa.string(), pa.large_list(pa.int32())))])
    values = {"many": [{"at": 5_000, "text": "t"}], "named": [("k", [1])]}
    for job_id in ("job-1", "job-2"):
        sink = ParquetSink("out", str(tmp_path), append=True).bind(schema, job_id)
        committer = sink.committer()
        committer.prepare(resume=False)
        writer = sink.writer(context(0), 1)
        writer.write(pa.RecordBatch.from_pylist([values], schema=schema))
        committer.commit(1, writer.settle(writer.stage(1)))
        committer.finish()
    assert len(visible_files(tmp_path)) == 2
    other = ParquetSink("out", str(tmp_path), append=True).bind(
        pa.schema([("many", pa.list_(pa.int64())), schema.field("named")]), "job-3"
    )
    with pytest.raises(OutputDirectoryError, match=r"column 'many' is list<struct<at: timestamp, text: string>>"):
        other.committer().prepare(resume=False)


@pytest.mark.long
def test_a_bucket_with_data_is_added_to() -> None:
    """An object store has no folder that could be renamed: its list begins with the first file of it."""
    with s3_server() as bucket:
        uri = bucket.uri("out")
        data = pa.BufferOutputStream()
        pq.write_table(pa.table({"count": [7]}), data)
        bucket.objects["out/word=old/part-0.parquet"] = data.getvalue().to_pybytes()
        Job(ParquetSink("out", uri, partition_by=("word",), append=True)).checkpoint(1)
        log = SparkFileLog(OutputFiles(uri))
        log.load()
        listed = sorted(file.path for file in log.all_files())
        assert "s3a://bucket/out/word%3Dold/part-0.parquet" in listed
        assert len(listed) == 3
        lists = [content for name, content in bucket.objects.items() if name.endswith(".compact")]
        assert len(lists) == 2 and all(b"word%3Dold/part-0.parquet" in content for content in lists)


def test_a_job_from_a_savepoint_continues_what_was_appended(tmp_path: Path) -> None:
    batch_output(tmp_path, 7)
    first = by_word(tmp_path, append=True)
    first.checkpoint(1)
    first.committer.finish()
    second = by_word(tmp_path, append=True, job_id="job-2", resume=True)
    for _ in range(2):
        second.committer.check_successor("job-1", 1)
        second.committer.succeed("job-1", 1)
        second.committer.retract_after(1)
    second.deploy()
    second.checkpoint(2)
    assert visible(tmp_path) == Counter({("old", 7): 1}) + expected(1, 2)
    with pytest.raises(OutputDirectoryError, match="belongs to another job now"):
        first.committer.commit(2, [])


def test_a_savepoint_with_later_output_is_refused(tmp_path: Path) -> None:
    first = by_word(tmp_path, append=True)
    first.checkpoint(1)
    first.checkpoint(2)
    second = by_word(tmp_path, append=True, job_id="job-2", resume=True)
    with pytest.raises(OutputDirectoryError, match="holds output up to checkpoint 2"):
        second.committer.check_successor("job-1", 1)
