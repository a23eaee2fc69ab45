"""Output that was staged when a driver died is committed where it belongs, before another program goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.config import Options
from flinkplus.errors import CheckpointDirectoryError, ConfigurationError, CorruptCheckpoint, OutputDirectoryError
from flinkplus.graph import digest_of_plan
from flinkplus.protocol.program.comparison import Requests
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest, settled
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job.plan import Plan
from flinkplus.runtime.job.upgrading.former_output import Adoption
from flinkplus.runtime.job.upgrading.programs import bind_sinks, put_program, with_moved_input
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.spark_log import SparkFileLog
from flinkplus.sources.parquet import StagedParquet
from flinkplus.state.durable.savepoint import SavepointOrigin
from flinkplus.state.durable.storage import CheckpointStorage
from tests.unit.api.drawing import environment, numbers
from tests.unit.sinks.harness import context, rows

SCHEMA = "word string, n long"


def plan_of(where: Path, name: str = "out", kind: str = "text") -> Plan:
    env = environment()
    stream = numbers(env, "rows", SCHEMA)
    if kind == "parquet":
        stream.to_parquet(where, name=name)
    else:
        stream.to_text(where, name=name) if kind == "text" else stream.collect(name=name)
    graph = env.graph.fuse()
    bind_sinks(graph, "job-1")
    return Plan("words", "job-1", graph, Options())


def commits_of(plan: Plan, storage: CheckpointStorage) -> Commits:
    return Commits(plan.graph.sinks(), storage, program=plan.graph.program(128))


class Job:
    """A job whose last checkpoint is stored and not committed."""

    def __init__(self, folder: Path, kind: str = "text") -> None:
        self.where = folder / "out"
        self.storage = CheckpointStorage(str(folder / "checkpoints"))
        self.storage.ownership.prepare({"name": "words", "fingerprint": "f"}, resume=False)
        self.storage.runs.begin(1)
        plan = plan_of(self.where, kind=kind)
        put_program(self.storage, plan)
        commits = commits_of(plan, self.storage)
        commits.prepare(resume=False)
        writer = plan.graph.sinks()["out"].writer(context(0), 1)
        for number in (1, 2):
            writer.write(rows((f"row of {number}", number)))
            staged = writer.settle(writer.stage(number))
            parts = {"rows": OperatorPart(rows_in=0, rows_out=0)}
            parts["out"] = OperatorPart(rows_in=0, rows_out=0, staged=tuple(staged))
            handle = SnapshotHandle(
                subtask="rows+out[0]", generation=1, checkpoint=number, files=(),
                operator_state=OperatorState(operators=parts),
            )  # fmt: skip
            commits.store(CheckpointId(number), Generation(1), [(SubtaskId("rows+out", 0), handle)], False)
        self.storage.runs.begin(2)

    @property
    def manifest(self) -> Manifest:
        return self.storage.manifests.read(2)

    def resumed(self, plan: Plan, requests: Requests | None = Requests()) -> Commits:  # noqa: B008
        commits = commits_of(plan, self.storage)
        Adoption(plan, self.storage, commits, requests, lambda reason: None).adopt(CheckpointId(2), self.manifest)
        return commits


def listed(where: Path) -> int:
    log = SparkFileLog(OutputFiles(str(where)))
    log.load()
    return len(list(log.all_files()))


def test_another_directory(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for _ in range(2):  # a driver may die in it, and the next one does it again
        commits = job.resumed(plan_of(tmp_path / "other"))
        assert (listed(job.where), listed(tmp_path / "other"), commits.rows) == (2, 0, {"out": 0})
    assert not (job.where / "_staging").exists()


def test_another_name_for_the_same_directory(tmp_path: Path) -> None:
    job = Job(tmp_path)
    commits = job.resumed(plan_of(job.where, "words"))
    assert (listed(job.where), commits.rows) == (2, {"words": 2})
    assert job.resumed(plan_of(job.where)).rows == {"out": 2}, "nothing was stored since: either program goes on"


def test_a_directory_of_another_job_is_not_taken(tmp_path: Path) -> None:
    job = Job(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(Exception, match="is not empty"):
        job.resumed(plan_of(tmp_path / "full"))


def test_output_in_memory_may_go_and_that_of_a_strange_sink_may_not(tmp_path: Path) -> None:
    job = Job(tmp_path, "collect")
    assert job.resumed(plan_of(tmp_path / "other")).rows == {"out": 0}
    program = job.manifest.program
    assert program is not None
    strange = replace(program.operators["out"], body="MySink")
    manifest = replace(job.manifest, program=replace(program, operators={**program.operators, "out": strange}))
    plan: Any = plan_of(tmp_path / "third")
    adoption = Adoption(plan, job.storage, commits_of(plan, job.storage), Requests(), lambda reason: None)
    with pytest.raises(ConfigurationError, match="sink 'out' is gone, and output of checkpoint 2 waits"):
        adoption.adopt(CheckpointId(2), manifest)


def test_a_program_that_must_not_differ(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with pytest.raises(CheckpointDirectoryError, match="its last checkpoint is of another program"):
        job.resumed(plan_of(tmp_path / "other"), requests=None)
    assert listed(job.where) == 0
    assert job.resumed(plan_of(job.where), requests=None).rows == {"out": 2}


class Successor:
    """A job "job-2" that starts from a savepoint of checkpoint 2, all of whose output is committed."""

    def __init__(self, job: Job) -> None:
        job.resumed(plan_of(job.where))
        self.storage, self.manifest = job.storage, settled(job.manifest)
        self.origin = SavepointOrigin(savepoint="there", job_id="job-1", checkpoint=2)

    def begins(self, plan: Plan, requests: Requests | None = Requests()) -> Commits:  # noqa: B008
        for name, sink in plan.graph.sinks().items():
            node = next(node for node in plan.graph.nodes if node.name == name)
            node.body = replace(sink, job_id="job-2")
        commits = commits_of(plan, self.storage)
        commits.begins_with(self.origin)
        adoption = Adoption(plan, self.storage, commits, requests, lambda reason: None, self.origin)
        adoption.adopt(CheckpointId(2), self.manifest)
        return commits


def test_a_new_job_takes_the_directory_over_also_with_another_name_of_the_sink(tmp_path: Path) -> None:
    job = Job(tmp_path)
    new = Successor(job)
    for _ in range(2):  # a driver may die in it, and the next one does it again
        assert new.begins(plan_of(job.where, "words")).rows == {"words": 2}
    assert listed(job.where) == 2 and '"job-2"' in (job.where / "_flinkplus.json").read_text()
    with pytest.raises(OutputDirectoryError, match="does not hold the output of the job to be resumed"):
        job.resumed(plan_of(job.where))


def test_the_former_directory_may_be_gone_or_moved(tmp_path: Path) -> None:
    job = Job(tmp_path)
    new = Successor(job)
    job.where.rename(tmp_path / "moved")
    assert new.begins(plan_of(tmp_path / "other")).rows == {"out": 0}
    assert not job.where.exists() and (listed(tmp_path / "moved"), listed(tmp_path / "other")) == (2, 0)
    new.begins(plan_of(tmp_path / "moved"))
    assert listed(tmp_path / "moved") == 2 and '"job-2"' in (tmp_path / "moved" / "_flinkplus.json").read_text()


def test_a_moved_directory_is_not_taken_over_by_a_sink_that_writes_otherwise(tmp_path: Path) -> None:
    job = Job(tmp_path)
    new = Successor(job)
    job.where.rename(tmp_path / "moved")
    for otherwise in ({"name": "words"}, {"kind": "parquet"}):
        with pytest.raises(OutputDirectoryError, match="neither the output of the job"):
            new.begins(plan_of(tmp_path / "moved", **otherwise))
    assert '"job-1"' in (tmp_path / "moved" / "_flinkplus.json").read_text()


def test_output_behind_the_savepoint_is_not_written_twice_and_nothing_is_changed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    new = Successor(job)
    new.origin = replace(new.origin, checkpoint=1)
    commits = commits_of(plan_of(job.where), new.storage)
    for committer in commits.committers.values():
        committer._owner["job"] = committer._job_id = "job-2"  # type: ignore[attr-defined]
    with pytest.raises(OutputDirectoryError, match="what comes after it would be there twice"):
        commits.succeed(new.origin, replace(new.manifest, checkpoint=1), {}, {"out"})
    assert '"job-1"' in (job.where / "_flinkplus.json").read_text()


def test_staged_input_of_a_savepoint_is_read_where_it_was_copied_to() -> None:
    schema = pa.schema([("n", pa.int64())])
    source = StagedParquet("rows", ("/old/staged/rows-1a2b/part-0.parquet",), schema, groups=((3, 4),))
    env = environment()
    env._source(source).discard(name="out")
    numbers(env, "others").discard(name="nowhere")
    program = env.graph.fuse().program(128)
    splits = {program.operators["rows"].split: source.split_plan()}
    moved, found = with_moved_input(program, splits, "s3://bucket/new/")
    plan = found[moved.operators["rows"].split]
    assert plan == [["s3://bucket/new/staged/rows-1a2b/part-0.parquet", [3, 4]]]
    assert moved.operators["rows"].split == digest_of_plan(plan)
    assert moved.operators["others"] == program.operators["others"] and moved.restores_as(program)
    for damaged in ({}, {program.operators["rows"].split: [["a"]]}):
        with pytest.raises(CorruptCheckpoint, match="what was planned for source 'rows'"):
            with_moved_input(program, damaged, "/new")
