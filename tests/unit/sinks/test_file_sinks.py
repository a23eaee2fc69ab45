"""The file sinks without faults: who may use a directory, what a writer describes, what is left at the end."""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkplus.errors import ConfigurationError, InvariantViolation, OutputDirectoryError
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.sinks import file_writer, spark_log
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.parquet import ParquetSink
from flinkplus.sinks.text import TextSink
from tests.examples import examples
from tests.unit.sinks.harness import SCHEMA, TAG, Job, expected_lines, rows, text_job, visible_files, visible_lines


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def batches(out: Path) -> list[list[str]]:
    """The lines of each batch of the log, without the empty compactions that it begins with."""
    found = sorted(path for path in (out / "_spark_metadata").iterdir() if path.suffix != ".compact")
    return [path.read_text().split("\n")[1:] for path in found]


def first_batch(out: Path) -> Path:
    return out / "_spark_metadata" / str(spark_log.Layout(spark_log.COMPACT_INTERVAL).first_batch)


# --- who may use a directory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry", ["data.parquet", "sub/data.txt", "_spark_metadata/0", "_staging/other/open", ".hidden"]
)
def test_a_directory_that_holds_anything_is_refused(tmp_path: Path, entry: str) -> None:
    (tmp_path / entry).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / entry).write_text("x")
    with pytest.raises(OutputDirectoryError, match="choose another one") as refused:
        text_job(tmp_path)
    assert f"{tmp_path} is not empty (it holds {entry.split('/', maxsplit=1)[0]})" in str(refused.value)
    assert (tmp_path / entry).read_text() == "x"


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(OutputDirectoryError, match="file"):
            text_job(path)


def test_the_output_of_a_finished_job_is_not_written_over(tmp_path: Path) -> None:
    job = text_job(tmp_path / "out")
    job.checkpoint(1)
    job.committer.finish()
    with pytest.raises(OutputDirectoryError, match="not empty"):
        text_job(tmp_path / "out", job_id="job-2")
    with pytest.raises(OutputDirectoryError, match="not empty"):
        text_job(tmp_path / "out")


def test_two_sinks_of_one_job_cannot_share_a_directory(tmp_path: Path) -> None:
    text_job(tmp_path)
    with pytest.raises(OutputDirectoryError, match="not empty"):
        Job(TextSink("other", str(tmp_path)))


def test_a_directory_is_free_again_when_its_job_was_discarded_before_the_first_commit(tmp_path: Path) -> None:
    first = text_job(tmp_path)
    first.stage(1)
    first.committer.discard()
    second = text_job(tmp_path, job_id="job-2")
    second.checkpoint(1)
    assert visible_lines(tmp_path) == expected_lines(1)
    with pytest.raises(OutputDirectoryError, match="does not hold the output of the job to be resumed"):
        text_job(tmp_path, resume=True).committer.prepare(resume=True)


@pytest.mark.parametrize("what", ["missing", "empty", "foreign", "damaged"])
def test_resuming_needs_the_jobs_own_output(tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    if what != "missing":
        out.mkdir()
    if what == "foreign":
        text_job(out, job_id="another")
    if what == "damaged":
        (out / "_flinkplus.json").write_text("{")
    with pytest.raises(OutputDirectoryError, match="damaged" if what == "damaged" else "start a new job"):
        text_job(out, resume=True).committer.prepare(resume=True)


def test_a_job_that_was_discarded_can_be_resumed(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    job.checkpoint(1)
    job.stage(2)
    job.committer.discard()
    assert "_staging" not in names(tmp_path)
    resumed = text_job(tmp_path, resume=True)
    resumed.committer.prepare(resume=True)
    resumed.generation = 10
    resumed.deploy()
    resumed.checkpoint(3)
    resumed.committer.finish()
    assert visible_lines(tmp_path) == expected_lines(1, 3)


# --- writers ----------------------------------------------------------------------------------------------------------


def test_a_writer_describes_what_it_does_not_know_to_be_complete(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    first = job.stage(1)
    assert [(f.checkpoint, f.rows, f.bytes) for f in first] == [(1, 1, 8), (1, 1, 8)]
    assert [f.name for f in first] == [f"part-c00000001-s{i}-g2-0-{TAG}.txt" for i in range(2)]
    assert [f.checkpoint for f in job.stage(2)] == [1, 2, 1, 2]
    job.complete(1)
    assert [f.checkpoint for f in job.stage(3, with_rows=False)] == [2, 2]
    job.complete(3)
    assert job.stage(4, with_rows=False) == []


def test_empty_batches_make_no_file(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    job.writers[0].write(rows())
    assert job.stage(1, with_rows=False) == []


def test_what_is_open_goes_with_its_writer_and_what_is_staged_stays(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    job.stage(1)
    staging = tmp_path / "_staging" / "job-1"
    for writer in job.writers:
        writer.write(rows(("lost", 1)))
    assert len(names(staging)) == 4
    for writer in job.writers:
        writer.close()
    assert names(staging) == {f"part-c00000001-s{i}-g2-0-{TAG}.txt" for i in range(2)}


@pytest.mark.parametrize("kind", [ParquetSink, TextSink])
def test_small_and_large_batches_keep_their_order(
    tmp_path: Path, kind: type[ParquetSink] | type[TextSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "GATHERED_BATCHES", 3)
    monkeypatch.setattr(file_writer, "GATHERED_BYTES", 4000)
    job = Job(kind("out", str(tmp_path / "out")))
    written: list[tuple[str, int]] = []
    for number, size in enumerate([1, 2, 1, 1, 600, 3, 1, 1, 1, 400, 5, 5]):
        batch = [(f"batch{number:02d}", row) for row in range(size)]
        written += batch
        job.writers[0].write(rows(*batch))
    (staged,) = job.writers[0].settle(job.writers[0].stage(1))
    assert staged.rows == len(written)
    job.committer.commit(1, [staged])
    (path,) = visible_files(tmp_path / "out")
    if kind is ParquetSink:
        assert [tuple(row.values()) for row in pq.read_table(path).to_pylist()] == written
    else:
        assert path.read_text() == "".join(f"{word}\t{count}\n" for word, count in written)


@pytest.mark.parametrize("kind", [ParquetSink, TextSink])
def test_an_open_file_is_closed_without_an_error(
    tmp_path: Path, kind: type[ParquetSink | TextSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Parquet file writes its end when it is let go."""
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    job = Job(kind("out", str(tmp_path / "out")))
    job.writers[0].write(rows(("a", 1)))
    job.writers[0].close()
    job.writers.clear()
    gc.collect()
    assert not ignored and not list((tmp_path / "out").glob("**/open-*"))


def test_what_was_gathered_goes_with_its_writer(tmp_path: Path) -> None:
    job = text_job(tmp_path / "out")
    job.writers[0].write(rows(("a", 1)))
    job.writers[0].close()
    assert job.writers[0].stage(1) == []


def test_the_stream_does_not_wait_for_what_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither encoded nor closed nor moved before it is settled; and rows go on to another file meanwhile."""
    monkeypatch.setattr(file_writer, "GATHERED_BATCHES", 2)
    job = Job(ParquetSink("out", str(tmp_path)))
    staging = tmp_path / "_staging" / "job-1"
    writer = job.writers[0]
    for count in range(3):
        writer.write(rows(("a", count)))
    first = writer.stage(1)
    assert [file.bytes for file in first] == [0]
    assert names(staging) == {"open-s0-g2-0.parquet"}
    writer.write(rows(("b", 3)))
    second = writer.stage(2)
    writer.write(rows(("c", 4)))
    assert names(staging) == {f"open-s0-g2-{number}.parquet" for number in range(3)}
    (settled,) = writer.settle(first)
    assert settled.bytes == (staging / settled.name).stat().st_size
    job.committer.commit(1, [settled])
    writer.checkpoint_complete(1)
    (later,) = writer.settle(second)  # what is complete by now is left out
    assert (later.checkpoint, later.rows) == (2, 1)
    job.committer.commit(2, [later])
    read = [pq.read_table(path).to_pylist() for path in visible_files(tmp_path)]
    assert sorted(row["count"] for file in read for row in file) == [0, 1, 2, 3]


def test_what_a_discarded_snapshot_set_aside_is_settled_with_the_next(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    writer = job.writers[0]
    writer.write(rows(("a", 1)))
    writer.stage(1)
    described = writer.settle(writer.stage(2))
    assert [(file.checkpoint, file.bytes) for file in described] == [(1, 4)]


def test_a_file_that_cannot_be_finished_fails_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows in it are nowhere else: the subtask has to make them again."""
    job = text_job(tmp_path)
    writer = job.writers[0]
    writer.write(rows(("a", 1)))
    described = writer.stage(1)
    full = OSError(28, "No space left on device")

    def move(*_: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(OutputFiles, "move", move)
        with pytest.raises(OSError, match="No space"):
            writer.settle(described)
    for action in (lambda: writer.write(rows(("b", 1))), lambda: writer.stage(2)):
        with pytest.raises(OSError, match="No space"):
            action()
    writer.close()


def test_what_could_not_be_finished_is_not_written_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of a second checkpoint may have been taken before the file of the first one failed."""
    job = text_job(tmp_path)
    writer = job.writers[0]
    writer.write(rows(("a", 1)))
    first = writer.stage(1)
    second = writer.stage(2)
    with monkeypatch.context() as patch:
        patch.setattr(OutputFiles, "move", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            writer.settle(first)
    with pytest.raises(OSError, match="No space"):
        writer.settle(second)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("part-")]
    writer.close()


def test_dictionary_encoded_columns_are_stored_plain(tmp_path: Path) -> None:
    job = Job(ParquetSink("out", str(tmp_path)))
    words = pa.array(["b", "a", None, "b"]).dictionary_encode()
    for _ in range(3):
        job.writers[0].write(pa.RecordBatch.from_arrays([words, pa.array([1, 1, 1, 2])], names=["word", "count"]))
    job.committer.commit(1, job.stage(1, with_rows=False))
    (part,) = visible_files(tmp_path)
    table = pq.read_table(part)
    assert table.schema == SCHEMA
    assert table.column("word").to_pylist() == ["b", "a", None, "b"] * 3
    assert pq.ParquetFile(part).num_row_groups == 1


def test_the_operator_context_will_do(tmp_path: Path) -> None:
    sink = TextSink("out", str(tmp_path)).bind(SCHEMA, "job-1")
    sink.committer().prepare(resume=False)
    writer = sink.writer(OperatorContext("out", "out[3]", 3, 4, SCHEMA), 7)
    writer.write(rows(("a", 1)))
    assert writer.stage(1)[0].name == f"part-c00000001-s3-g7-0-{TAG}.txt"


# --- commits ----------------------------------------------------------------------------------------------------------


def test_what_an_aborted_checkpoint_staged_comes_with_the_next_one(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    job.checkpoint(1)
    job.stage(2)
    assert visible_lines(tmp_path) == expected_lines(1)
    job.checkpoint(3)
    assert visible_lines(tmp_path) == expected_lines(1, 2, 3)


def test_a_checkpoint_without_new_rows_adds_no_batch(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    job.checkpoint(1)
    described = job.stage(2)
    job.committer.commit(2, described)
    job.committer.commit(3, described)
    job.committer.commit(4, [])
    assert [len(lines) for lines in batches(tmp_path)] == [4]


def test_what_an_older_generation_left_is_removed_and_newer_files_stay(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    job.stage(1)
    for writer in job.writers:
        writer.write(rows(("lost", 1)))
    job.deploy()
    described = job.stage(2)
    later = job.stage(3)  # concurrent: staged before checkpoint 2 is committed
    job.committer.commit(2, described)
    staged = names(tmp_path / "_staging" / "job-1")
    assert staged == {f"part-c00000003-s{i}-g3-1-{TAG}.txt" for i in range(2)}
    job.committer.commit(3, later)
    assert visible_lines(tmp_path) == expected_lines(2, 3)


@pytest.mark.parametrize("committed_already", [False, True])
def test_a_staged_file_that_has_gone_is_said(tmp_path: Path, committed_already: bool) -> None:
    job = text_job(tmp_path)
    described = job.stage(1)
    if committed_already:
        job.committer.commit(1, described)
    where = tmp_path if committed_already else tmp_path / "_staging" / "job-1"
    (where / described[1].name).unlink()
    with pytest.raises(OutputDirectoryError, match=f"{described[1].name} of checkpoint 1 is missing"):
        job.committer.commit(1, described)


def test_a_staged_file_that_was_cut_is_said(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    described = job.stage(1)
    (tmp_path / "_staging" / "job-1" / described[0].name).write_text("r")
    with pytest.raises(OutputDirectoryError, match="has not the 8 bytes"):
        job.committer.commit(1, described)
    assert visible_lines(tmp_path) == []


@pytest.mark.parametrize("content", ["", "v2\n", "v1\n{", 'v1\n{"path": 1}', "v1\n[]"])
def test_a_damaged_list_of_files_is_said(tmp_path: Path, content: str) -> None:
    job = text_job(tmp_path)
    job.checkpoint(1)
    first_batch(tmp_path).write_text(content)
    with pytest.raises(
        OutputDirectoryError,
        match=f"_spark_metadata/{spark_log.Layout(spark_log.COMPACT_INTERVAL).first_batch} cannot be read",
    ):
        text_job(tmp_path, resume=True).committer.prepare(resume=True)


def test_a_list_of_an_older_version_is_refused(tmp_path: Path) -> None:
    text_job(tmp_path)
    (tmp_path / "_spark_metadata" / "9.compact").write_text("v1")
    with pytest.raises(OutputDirectoryError, match=r"9\.compact cannot be read .an older version"):
        text_job(tmp_path, resume=True).committer.prepare(resume=True)


def test_falling_back_over_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_log, "BATCH_BYTES", 2_000)
    job = text_job(tmp_path)
    for checkpoint in range(1, 36):
        job.checkpoint(checkpoint)
    sizes = {len(lines) for lines in batches(tmp_path)}
    assert len(batches(tmp_path)) > 5 and min(sizes) >= 2 and max(sizes) > 2
    job.committer.retract_after(3)
    assert visible_lines(tmp_path) == expected_lines(1, 2, 3)
    job.deploy()
    for checkpoint in range(36, 50):
        job.checkpoint(checkpoint)
        assert visible_lines(tmp_path) == expected_lines(1, 2, 3, *range(36, checkpoint + 1))


class HdfsLikeFiles(OutputFiles):
    """Where a rename fails if its target exists."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.move_replaces = False

    def move(self, source: str, target: str) -> None:
        if self.info(target) is not None:
            raise FileExistsError(target)
        super().move(source, target)


def test_compactions_that_list_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log reaches them after so many batches; here, where a rename does not replace, after seven commits."""
    monkeypatch.setattr(spark_log, "COMMITS_INTERVAL", 7)
    monkeypatch.setattr(file_writer, "OutputFiles", HdfsLikeFiles)
    job = text_job(tmp_path)
    for checkpoint in range(1, 24):
        job.checkpoint(checkpoint)
        assert visible_lines(tmp_path) == expected_lines(*range(1, checkpoint + 1))
    assert {"20.compact", "27.compact", "34.compact"} <= names(tmp_path / "_spark_metadata")
    resumed = text_job(tmp_path, resume=True)
    resumed.committer.prepare(resume=True)
    resumed.committer.retract_after(9)
    assert visible_lines(tmp_path) == expected_lines(*range(1, 10))
    resumed.generation = 10
    resumed.deploy()
    resumed.checkpoint(24)
    assert visible_lines(tmp_path) == expected_lines(*range(1, 10), 24)
    resumed.committer.finish()


class CountingFiles(OutputFiles):
    """Counts the operations and the bytes of a commit."""

    operations = 0
    transferred = 0

    def __init__(self, location: str) -> None:
        super().__init__(location)
        for operation in ("info", "entries", "move", "delete", "make_dir", "delete_dir"):
            setattr(self, operation, self._counted(getattr(super(), operation)))

    @staticmethod
    def _counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            CountingFiles.operations += 1
            return operation(*arguments)

        return call

    def write(self, name: str, content: bytes) -> None:
        CountingFiles.transferred += len(content)
        super().write(name, content)

    def read(self, name: str) -> bytes:
        content = super().read(name)
        CountingFiles.transferred += len(content)
        return content


def test_a_commit_costs_the_same_at_any_age_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations and bytes, after each commit; the list of files has grown a hundredfold meanwhile."""
    monkeypatch.setattr(file_writer, "OutputFiles", CountingFiles)
    monkeypatch.setattr(spark_log, "BATCH_BYTES", 4_000)
    job = text_job(tmp_path / "out")
    costs = []
    for checkpoint in range(1, 1001):
        before = CountingFiles.operations, CountingFiles.transferred
        job.checkpoint(checkpoint)
        costs.append((CountingFiles.operations - before[0], CountingFiles.transferred - before[1]))
    young, old = costs[10:110], costs[-100:]
    assert max(operations for operations, _ in old) <= max(operations for operations, _ in young)
    assert max(transferred for _, transferred in costs) <= 2 * spark_log.BATCH_BYTES
    assert sum(transferred for _, transferred in old) <= 1.1 * sum(transferred for _, transferred in young)
    assert len(visible_files(tmp_path / "out")) == 2000


@pytest.mark.parametrize("replaces", [True, False])
def test_a_compaction_reads_one_interval_and_the_commits_between_cost_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, replaces: bool
) -> None:
    interval, reads = 20, Counter[int]()

    class Files(CountingFiles):
        def __init__(self, location: str) -> None:
            super().__init__(location)
            self.move_replaces = replaces

        def read(self, name: str) -> bytes:
            reads[checkpoint] += name.startswith("_spark_metadata")
            return super().read(name)

    monkeypatch.setattr(file_writer, "OutputFiles", Files)
    monkeypatch.setattr(spark_log, "COMPACT_INTERVAL" if replaces else "COMMITS_INTERVAL", interval)
    monkeypatch.setattr(spark_log, "BATCH_BYTES", 1_200)
    monkeypatch.setattr(spark_log, "LARGE_COMPACTION_BYTES", 20_000)
    checkpoint = 0
    job = text_job(tmp_path / "out")
    for checkpoint in range(1, 131):
        job.checkpoint(checkpoint)
    compactions = [
        int(path.name.removesuffix(".compact")) for path in (tmp_path / "out").glob("_spark_metadata/*.compact")
    ]
    full = sorted(number for number in compactions if number >= 2 * interval)
    assert full and full == list(range(3 * interval - 1, full[-1] + 1, interval)), "one is reached"
    expensive = {number: count for number, count in reads.items() if count > 1}
    assert set(expensive.values()) == {interval} and len(expensive) == len(full)
    assert visible_lines(tmp_path / "out") == expected_lines(*range(1, 131))
    warnings = [record.getMessage() for record in caplog.records if "rewritten whole" in record.getMessage()]
    assert len(warnings) == (1 if replaces else 0), "a large one is announced, and once"


def test_a_log_goes_on_with_the_interval_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_job(tmp_path).checkpoint(1)
    monkeypatch.setattr(file_writer, "OutputFiles", HdfsLikeFiles)  # as if an older version had made it on HDFS
    job = text_job(tmp_path, resume=True)
    job.committer.prepare(resume=True)
    job.deploy()
    job.checkpoint(2)
    first = spark_log.Layout(spark_log.COMPACT_INTERVAL).first_batch
    assert {str(first), str(first + 1)} <= names(tmp_path / "_spark_metadata")
    assert visible_lines(tmp_path) == expected_lines(1, 2)


def test_finish_without_rows_leaves_an_empty_file_with_the_schema(tmp_path: Path) -> None:
    job = Job(ParquetSink("out", str(tmp_path)))
    job.committer.commit(1, job.stage(1, with_rows=False))
    job.committer.finish()
    job.committer.finish()
    (part,) = visible_files(tmp_path)
    assert pq.read_table(part).equals(SCHEMA.empty_table())
    assert names(tmp_path) == {part.name, "_spark_metadata", "_flinkplus.json"}


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(["checkpoint", "empty", "abort", "redeploy", "resume", "retract"]), max_size=40))
def test_any_history_shows_exactly_what_is_covered(
    tmp_path_factory: pytest.TempPathFactory, history: list[str]
) -> None:
    out = tmp_path_factory.mktemp("history") / "out"
    job = text_job(out)
    covered: list[int] = []  # checkpoints whose rows are visible
    aborted: list[int] = []  # ... whose rows are staged by the running generation
    for checkpoint, action in enumerate(history, start=1):
        match action:
            case "checkpoint" | "empty":
                described = job.stage(checkpoint, with_rows=action == "checkpoint")
                job.committer.commit(checkpoint, described)
                if checkpoint % 3:  # the notification is late now and then
                    job.complete(checkpoint)
                covered += [*aborted, *([checkpoint] if action == "checkpoint" else [])]
                aborted = []
            case "abort":
                job.stage(checkpoint)
                aborted.append(checkpoint)
            case "redeploy" | "resume":
                if action == "resume":
                    job.committer = text_job(out, resume=True).committer
                    job.committer.prepare(resume=True)
                job.deploy()
                aborted = []
            case "retract":
                target = checkpoint - 3
                job.committer.retract_after(target)
                job.deploy()
                covered, aborted = [c for c in covered if c <= target], []
        assert visible_lines(out) == expected_lines(*covered)
    job.committer.finish()
    assert visible_lines(out) == expected_lines(*covered)


# --- descriptors ------------------------------------------------------------------------------------------------------


def test_descriptors_travel_by_pickle(tmp_path: Path) -> None:
    for sink in (TextSink("out", str(tmp_path)), ParquetSink("out", str(tmp_path), "zstd")):
        bound = sink.bind(SCHEMA, "job-1")
        assert pickle.loads(pickle.dumps(bound)) == bound
        assert (bound.schema, sink.schema) == (SCHEMA, None)


def test_a_sink_is_of_no_use_before_it_is_bound(tmp_path: Path) -> None:
    with pytest.raises(InvariantViolation, match="bound"):
        ParquetSink("out", str(tmp_path)).committer()


@pytest.mark.parametrize("job_id", ["", "a/b", "..", "a b"])
def test_a_job_id_is_a_plain_name(job_id: str) -> None:
    with pytest.raises(ConfigurationError, match="job id"):
        TextSink("out", "out").bind(SCHEMA, job_id)


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("a", pa.int64()), ("a", pa.int64())]),
        pa.schema([("a", pa.null())]),
        pa.schema([("a", pa.list_(pa.duration("s")))]),
        pa.schema([("a", pa.time64("us"))]),
    ],
)
def test_what_spark_cannot_read_is_refused_before_the_job_starts(schema: pa.Schema) -> None:
    with pytest.raises(ConfigurationError, match="sink 'out'"):
        ParquetSink("out", "out").bind(schema, "job-1")


def test_a_wrong_compression_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="compression 'zip'"):
        ParquetSink("out", "out", "zip").bind(SCHEMA, "job-1")


def test_the_list_is_written_with_sparks_field_names(tmp_path: Path) -> None:
    out = tmp_path / "a b%é#"
    text_job(out).checkpoint(1)
    version, line, _ = first_batch(out).read_text().split("\n")
    logged = json.loads(line)
    assert version == "v1"
    assert logged["path"] == f"{(tmp_path).as_uri()}/a%20b%25%C3%A9%23/part-c00000001-s0-g2-0-{TAG}.txt"
    assert logged["size"] == 8
    assert len(visible_files(out)) == 2


@pytest.mark.parametrize("scheme", ["file://", "file:"])
def test_a_uri_names_the_same_directory_as_its_path(tmp_path: Path, scheme: str) -> None:
    by_uri, by_path = OutputFiles(f"{scheme}{tmp_path}/out"), OutputFiles(str(tmp_path / "out"))
    by_uri.make_dir("sub")
    by_uri.write("sub/x y", b"content")
    assert by_path.read("sub/x y") == b"content"
    assert by_uri.uri("sub/x y") == by_path.uri("sub/x y") == (tmp_path / "out" / "sub" / "x y").as_uri()
    assert [(entry.name, entry.size) for entry in by_path.entries("sub")] == [("x y", 7)]


def test_what_is_not_there_can_be_removed_and_listed(tmp_path: Path) -> None:
    files = OutputFiles(str(tmp_path / "out"))
    files.delete("a")
    files.delete_dir("b")
    assert (files.info("a"), files.entries("b")) == (None, [])
