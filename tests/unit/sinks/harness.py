"""A job's sink without the job: subtasks that write and stage, and a reader that goes by Spark's rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa

from flinkplus.errors import OutputError
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.protocol.determinants.recipe import RecipeEntry
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.sinks.at_once.writer import AtOnceWriter
from flinkplus.sinks.base import Sink, SinkCommitter, SinkWriter
from flinkplus.sinks.file_names import job_tag
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.text import TextSink

SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])
TAG = job_tag("job-1")


def context(index: int) -> OperatorContext:
    return OperatorContext("out", f"out[{index}]", index, 2, SCHEMA)


def rows(*pairs: tuple[str, int], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, pair, strict=True)) for pair in pairs], schema=schema)


def copied(staged: list[StagedFile]) -> list[StagedFile]:
    """As they are after they were JSON."""
    return [StagedFile.from_json(json.loads(json.dumps(file.to_json()))) for file in staged]


class Job:
    """Two subtasks and a committer; each checkpoint writes one row (``r<checkpoint>``, subtask) in each subtask."""

    def __init__(self, sink: Sink, job_id: str = "job-1", resume: bool = False) -> None:
        self.sink = sink.bind(SCHEMA, job_id)
        self.committer: SinkCommitter = self.sink.committer()
        self.generation = 1
        self.writers: list[SinkWriter] = []
        if not resume:
            self.committer.prepare(resume=False)
            self.deploy()

    def deploy(self) -> None:
        """A new generation of both subtasks; the old writers are forgotten, as after SIGKILL."""
        self.generation += 1
        self.writers = [self.sink.writer(context(index), self.generation) for index in range(2)]

    def stage(self, checkpoint: int, with_rows: bool = True) -> list[StagedFile]:
        """The snapshot of all subtasks. The descriptions go through JSON, as they do in a manifest."""
        described = []
        for index, writer in enumerate(self.writers):
            if with_rows:
                writer.write(rows((f"r{checkpoint:04d}", index)))
            described += writer.settle(copied(writer.stage(checkpoint)))
        return copied(described)

    def complete(self, checkpoint: int) -> None:
        for writer in self.writers:
            writer.checkpoint_complete(checkpoint)

    def checkpoint(self, checkpoint: int) -> None:
        self.committer.commit(checkpoint, self.stage(checkpoint))
        self.complete(checkpoint)


def expected_lines(*checkpoints: int) -> list[str]:
    return sorted(f"r{checkpoint:04d}\t{index}" for checkpoint in checkpoints for index in range(2))


def text_job(out: Path, **options: Any) -> Job:
    return Job(TextSink("out", str(out)), **options)


def visible_files(out: Path) -> list[Path]:
    """What Spark takes the directory to hold, by the rules of its ``CompactibleFileStreamLog.allFiles``."""
    log = out / "_spark_metadata"
    numbers = {}
    for entry in log.iterdir() if log.exists() else ():
        name = entry.name.removesuffix(".compact")
        if name.lstrip("-").isdigit():
            numbers[int(name)] = entry
    if not numbers:
        return []
    compactions = sorted(n for n, entry in numbers.items() if entry.name.endswith(".compact"))
    interval = compactions[-1] - compactions[-2] if len(compactions) >= 2 else 10
    latest = max(numbers)
    found = []
    for number in range(max(0, (latest + 1) // interval * interval - 1), latest + 1):
        is_compaction = (number + 1) % interval == 0
        content = (log / (f"{number}.compact" if is_compaction else str(number))).read_text()
        version, *lines = content.split("\n")
        assert version == "v1"
        found += [json.loads(line) for line in lines]
    for line in found:
        assert set(line) == {"path", "size", "isDir", "modificationTime", "blockReplication", "blockSize", "action"}
        path = Path(unquote(urlparse(line["path"]).path))
        assert (path.stat().st_size, line["isDir"], line["action"]) == (line["size"], False, "add")
    paths = [Path(unquote(urlparse(line["path"]).path)) for line in found]
    assert len(set(paths)) == len(paths)
    return paths


def visible_lines(out: Path) -> list[str]:
    """All lines of the visible text files, sorted."""
    return sorted(line for path in visible_files(out) for line in path.read_text().splitlines())


class Crash(OSError):
    """The injected fault."""


class FaultyFiles(OutputFiles):
    """Fails at the n-th file operation: before it is done, or just after (n = 0: never)."""

    calls = 0
    fail_at = 0
    fail_after = False

    def __init__(self, location: str) -> None:
        super().__init__(location)
        for operation in ("info", "entries", "read", "write", "move", "delete", "make_dir", "delete_dir"):
            setattr(self, operation, self._counted(getattr(super(), operation)))

    @classmethod
    def plan(cls, fail_at: int, fail_after: bool) -> None:
        cls.calls, cls.fail_at, cls.fail_after = 0, fail_at, fail_after

    @staticmethod
    def _counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            FaultyFiles.calls += 1
            if FaultyFiles.calls != FaultyFiles.fail_at:
                return operation(*arguments, **named)
            if FaultyFiles.fail_after:
                operation(*arguments, **named)
            raise Crash(f"{operation.__name__}{arguments}")

        return call


def at_every_operation(
    tmp_path: Path, fail_after: bool, begin: Callable[[Path], Job], step: Callable[[Job], None]
) -> list[tuple[Path, Job]]:
    """One directory and job for each operation of ``step``, crashed there."""
    crashed: list[tuple[Path, Job]] = []
    while True:
        out = tmp_path / f"out-{len(crashed)}"
        job = begin(out)
        FaultyFiles.plan(len(crashed) + 1, fail_after)
        try:
            step(job)
        except (Crash, OutputError) as error:
            assert isinstance(error, Crash) or isinstance(error.__cause__, Crash)
            crashed.append((out, job))
        else:
            assert crashed, "the step did nothing"
            return crashed
        finally:
            FaultyFiles.plan(0, False)


def in_new_process(job: Job) -> Job:
    return Job(job.sink, job_id=job.sink.job_id, resume=True)


def entry(number: int, checkpoint: int = 0) -> RecipeEntry:
    """What a step of a sink adds to the recipe."""
    return RecipeEntry(CheckpointId(checkpoint), b"recipe %d" % number)


def put(writer: AtOnceWriter, step: int, *pairs: tuple[str, int], checkpoint: int = 0) -> None:
    """A step of the sink of a writer, with rows of these words and numbers."""
    if pairs:
        writer.write(rows(*pairs))
    writer.cut(step, entry(step, checkpoint))
