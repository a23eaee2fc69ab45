"""A successor that repeats steps together sends what its predecessor sent: rows, numbers, determinants, bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from experiments.harness.replaying import Recorded, repeat, sent_by
from flinkplus.api.streams.stream import Stream
from flinkplus.errors import NondeterministicOperator
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.base.steps import join
from flinkplus.protocol.determinants.recipe import RecipeEntry
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.slot.subtasks.pacing import Pacer
from flinkplus.runtime.slot.subtasks.subtask import DIGEST, Subtask
from flinkplus.runtime.transport.wire.message_format import decode_frame
from flinkplus.sinks.base import RecipeWriter, SinkWriter
from flinkplus.sinks.discard import DiscardSink
from tests.unit.api.drawing import environment

PARALLELISM = 3
SCHEMA = "number bigint, half double, word string, price decimal(9,2), line string"


class Rows:
    """Numbers with nulls, words that repeat and a few long ones, and lines of several words."""

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        numbers = np.arange(start, start + count) * 48_271 % 1_009
        words = [f"w{n % 50}" * (400 if n % 97 == 0 else 1) for n in numbers.tolist()]
        columns = [
            pa.array(numbers % 31, pa.int64(), mask=numbers % 7 == 0),
            pa.array(numbers / 2, mask=numbers % 5 == 0),
            pa.array(words, mask=numbers % 11 == 0),
            pa.array([None if n % 3 else n for n in numbers.tolist()], pa.decimal128(9, 2)),
            pa.array([" ".join([word] * (n % 3)) for n, word in zip(numbers.tolist(), words, strict=True)]),
        ]
        return pa.RecordBatch.from_arrays(columns, names=["number", "half", "word", "price", "line"])


STRICT = "number bigint not null, word string not null, half double"


class StrictRows:
    """Columns without nulls, whose schema says so. ``noted``: with metadata that differ from batch to batch, like
    those of pandas."""

    def __init__(self, noted: bool = False) -> None:
        self._noted = noted

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        found = Rows()(start, count)
        numbers = np.arange(start, start + count)
        names = ["number", "word", "half"]
        columns = [pa.array(numbers), pa.array([f"w{n % 40}" for n in numbers.tolist()]), found.column("half")]
        fields = [pa.field(name, c.type, name == "half") for name, c in zip(names, columns, strict=True)]
        metadata = {"rows": str(count)} if self._noted else None
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata))


class Drawn(Pacer):
    """Reads have drawn numbers of rows, usually few."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(None, 1000, lambda since: since)
        self._rng = rng

    def rows(self, now: float, counted: int) -> int:
        return self._rng.choice((1, 2, 5, 30, 200, 700) if self._rng.random() < 0.2 else (1, 2, 5, 30))


OPERATORS: dict[str, Callable[[Stream], Stream]] = {
    "count by number": lambda rows: rows.key_by("number").count(name="middle"),
    "count by word": lambda rows: rows.key_by("word").count(name="middle"),
    "sum by two keys": lambda rows: rows.key_by("number", "word").sum("number", name="middle"),
    "sum of doubles": lambda rows: rows.key_by("word").sum("half", name="middle"),
    "sum of decimals": lambda rows: rows.key_by("number").sum("price", name="middle"),
    "words of lines": lambda rows: rows.tokenize("line").key_by("word").count(name="middle"),
    "a function of rows": lambda rows: rows.key_by("number").count().map(tuple, schema=f"{SCHEMA}, count bigint"),
}


def job_of(
    draw: Callable[[Stream], Stream], directory: Path, rows: Rows | StrictRows | None = None, schema: str = SCHEMA
) -> Recorded:
    env = environment(parallelism=PARALLELISM)
    drawn = draw(env.generate(rows or Rows(), schema=schema, batches=True, name="rows"))
    drawn.key_by("word").count(output="seen", name="last").discard()
    return Recorded(env.graph.fuse(), env.options, directory)


def run(job: Recorded, rng: random.Random, waves: int = 25) -> None:
    """Subtasks of all vertices take turns; what is sent arrives sooner or later."""
    for subtask in job.subtasks.values():
        subtask.work.pacer = Drawn(rng)
    for wave in range(waves):
        for subtask in job.subtasks.values():
            if subtask.plan.vertex.is_source or rng.random() < 0.6 or wave == waves - 1:
                subtask.run()
            for _ in range(len(job.arriving) if rng.random() < 0.5 else 0):
                for message, payload in decode_frame(job.arriving.popleft()):
                    job.receive(message, payload)


def looks(subtask: Subtask) -> dict[str, list[tuple[object, ...]]]:
    return {
        channel: [(m.seq, m.epoch, m.rows, m.size, m.determinants, DIGEST(m, payload)) for m, payload in messages]
        for channel, messages in sent_by(subtask).items()
    }


def joined_of(successor: Subtask) -> list[int]:
    """How many determinants have steps that are repeated together; filled while it repeats them."""
    taken: list[int] = []
    replay: Any = successor.steps.replay
    take_steps = replay.take_steps

    def noting(count: int) -> None:
        taken.append(count)
        take_steps(count)

    replay.take_steps = noting
    return taken


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_sent_does_not_show_that_steps_were_joined(operator: str, tmp_path: Path) -> None:
    rng = random.Random(operator)
    with closing(job_of(OPERATORS[operator], tmp_path)) as job:
        run(job, rng)
        for vertex in job.graph.vertices[:-1]:
            for index in range(PARALLELISM):
                original = job.subtasks[SubtaskId(vertex.name, index)]
                sent = looks(original)
                received = {channel: rng.randint(0, len(messages)) for channel, messages in sent.items()}
                successor = job.successor(original.id, received)
                steps, joined = len(successor.steps.replay.determinants), joined_of(successor)
                repeat(successor)
                assert looks(successor) == sent
                assert successor.operators.counters() == original.operators.counters()
                joins = operator != "a function of rows" or vertex.is_source
                assert (sum(joined) > steps // 3) == joins and steps > 20


class NotedCuts(RecipeWriter):
    """Notes where it is cut, and the rows before each cut."""

    accepts = True

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self.cuts: list[tuple[int, list[dict[str, Any]]]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.to_pylist()

    def repeated(self, step: int) -> None:
        self.cuts.append((step, self._rows))
        self._rows = []

    def cut(self, step: int, entry: RecipeEntry) -> None:
        self.repeated(step)

    def begin(self, recorded: int, woken: Callable[[Exception | None], None], has_successors: bool = False) -> None:
        return None

    def restore(self, state: object) -> None:
        return None

    def checkpoint_complete(self, checkpoint: int) -> None:
        return None

    def adopt(self, staged: Sequence[StagedFile]) -> None:
        return None

    def stage(self, checkpoint: int) -> list[StagedFile]:
        return []

    def settled(self, checkpoint: int) -> None:
        return None


class VisibleAtOnce(DiscardSink):
    def writer(self, context: OperatorContext, generation: int) -> SinkWriter:
        return NotedCuts()


@pytest.mark.parametrize("of_source", [False, True], ids=["a sum", "a source"])
def test_rows_of_joined_steps_belong_to_the_step_that_made_them(of_source: bool, tmp_path: Path) -> None:
    """A sink whose rows are visible at once has the same rows before each cut."""

    def draw(rows: Stream) -> Stream:
        drawn = rows if of_source else rows.key_by("number").sum("number", name="middle")
        drawn._sink(VisibleAtOnce("kept"))
        return drawn

    with closing(job_of(draw, tmp_path)) as job:
        run(job, random.Random(of_source))
        vertex = job.graph.vertices[0 if of_source else 1]
        for index in range(PARALLELISM):
            original = job.subtasks[SubtaskId(vertex.name, index)]
            successor = job.successor(original.id, {name: len(sent) for name, sent in sent_by(original).items()})
            joined = joined_of(successor)
            repeat(successor)
            writers = [one.operators.recipe_writer for one in (original, successor)]
            before, after = [writer.cuts for writer in writers if isinstance(writer, NotedCuts)]
            assert after == before[: len(after)] and sum(len(rows) for _, rows in after) > 100
            assert len(after) > 10 and sum(joined) > len(joined)


@pytest.mark.parametrize("key", ["word", "number"])
@pytest.mark.parametrize("noted", [False, True])
def test_what_the_schema_says_besides_types_stays(key: str, noted: bool, tmp_path: Path) -> None:
    """Whether a column may be null, and metadata, are a part of a message."""
    with closing(job_of(lambda rows: rows.key_by(key).sum("half"), tmp_path, StrictRows(noted), STRICT)) as job:
        run(job, random.Random(key))
        for original in [one for one in job.subtasks.values() if one.id.vertex != job.graph.vertices[-1].name]:
            sent = looks(original)
            successor = job.successor(original.id, {channel: len(messages) for channel, messages in sent.items()})
            joined = joined_of(successor)
            repeat(successor)
            assert looks(successor) == sent and sum(joined) > 10


@pytest.mark.parametrize("dtype", [pa.list_view(pa.int64()), pa.run_end_encoded(pa.int32(), pa.int64())])
def test_columns_whose_form_depends_on_the_batch_are_not_joined(dtype: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1])], names=["v"])
    assert join([[batch], [batch]]) is not None
    other = pa.RecordBatch.from_arrays([pa.nulls(1, dtype)], names=["v"])
    assert join([[other], [other]]) is None


def test_a_source_reads_only_so_many_bytes_at_once(tmp_path: Path) -> None:
    """And notes where each of its reads begins."""
    with closing(job_of(OPERATORS["count by number"], tmp_path)) as job:
        source = job.subtasks[SubtaskId(job.graph.vertices[0].name, 0)]
        firsts: list[int] = []
        operators: Any = source.operators
        begin = operators._begin

        def noting(index: int, rows: int, first: int | None = None) -> None:
            firsts.extend([] if first is None else [first])
            begin(index, rows, first)

        operators._begin = noting
        sendings, at_end = source.work.read_together([10] * 50, 1000)
        assert 1 <= len(sendings) < 50 and not at_end
        assert firsts[: len(sendings)] == [10 * step for step in range(len(sendings))]


def test_an_operator_that_is_not_deterministic_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(job_of(OPERATORS["count by number"], tmp_path)) as job:
        run(job, random.Random(1))
        middle = job.subtasks[SubtaskId(job.graph.vertices[1].name, 0)]
        successor = job.successor(middle.id, {channel: len(messages) for channel, messages in sent_by(middle).items()})
        instance = successor.operators.nodes[successor.operators.root].instance
        assert instance is not None
        process = instance.process
        monkeypatch.setattr(instance, "process", lambda batch: process(batch.take(pa.array(range(len(batch))[::-1]))))
        with pytest.raises(NondeterministicOperator, match="differs when it is regenerated"):
            repeat(successor)
