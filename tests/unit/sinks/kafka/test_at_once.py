"""Rows that are visible at once in a topic, on a model of a cluster: writers, fences, divisions, calls that fail."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from flinkplus.errors import JobRunsElsewhere, NondeterministicOperator, OutputTopicError, OutputUnavailable
from flinkplus.protocol.checkpoints.subtask_output import OutputState
from flinkplus.protocol.determinants.recipe import Division, RecipeEntry, StoredOutput
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.sinks.at_once import attempts
from flinkplus.sinks.at_once import writer as at_once_writer
from flinkplus.sinks.at_once.writer import AtOnceWriter
from flinkplus.sinks.kafka.at_once import KafkaAtOnceKeeper
from flinkplus.sinks.kafka.recipe_records import ITSELF, RecipeScan, Shown, pieces
from flinkplus.sinks.kafka.records import RecordForm, Staged, content_of
from flinkplus.sinks.kafka.subtask import KafkaSubtask, begin_recipe
from tests.unit.sinks.harness import SCHEMA, entry, put, rows
from tests.unit.sinks.kafka.recipe_model import ModelFarEnd, ModelPartition

JOB, OTHER, TOPIC = "job-1", "job-2", "counts"


class Bench:
    """The subtasks of a sink, generation after generation."""

    def __init__(self) -> None:
        self.far = ModelFarEnd()
        self.keeper = self.new_driver(resume=False)
        self.writers: list[AtOnceWriter] = []
        self.woken: queue.Queue[Exception | None] = queue.Queue()

    def new_driver(self, resume: bool = True, job: str = JOB) -> KafkaAtOnceKeeper:
        keeper = KafkaAtOnceKeeper(job, TOPIC, self.far)
        keeper.prepare(resume)
        return keeper

    def fence(self, generation: int, *subtasks: int, parallelism: int = 2) -> Any:
        return self.keeper.fence(generation, subtasks or range(parallelism), parallelism, 5.0)

    def writer(self, generation: int, recorded: int, index: int = 0, digest: str = "") -> AtOnceWriter:
        store = KafkaSubtask("out", "topic", generation, SCHEMA, RecordForm(), lambda: self.far.partition(index))
        made = AtOnceWriter("out", index, generation, store)
        self.writers.append(made)
        made.restore({"digest": digest})
        made.begin(recorded, self.woken.put)
        return made

    def begin(self, generation: int, digest: str = "") -> tuple[AtOnceWriter, StoredOutput]:
        """The next generation of both subtasks is deployed, from a snapshot with ``digest``."""
        stored = self.fence(generation)[0]
        return self.writer(generation, stored.recorded, digest=digest), stored

    def await_recorded(self, step: int, index: int = 0) -> None:
        def is_there() -> bool:
            stored = self.far.read(index).stored
            return stored is not None and stored.state.step == step

        wait_until(is_there, f"step {step}", 10.0)

    @property
    def content(self) -> list[bytes | None]:
        return [value for _, value, _, _ in self.far.visible]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for module in (attempts, at_once_writer):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.005)
    made = Bench()
    yield made
    for writer in made.writers:
        writer.close()


def value(word: str, count: int) -> bytes:
    return f'{{"word":"{word}","count":{count}}}'.encode()


def test_rows_come_with_their_recipe_and_a_successor_goes_on_behind_them(bench: Bench) -> None:
    first, stored = bench.begin(1)
    assert stored == StoredOutput(0, ())
    put(first, 1)
    put(first, 3, ("a", 1), ("b", 2))
    bench.await_recorded(3)
    second, stored = bench.begin(2)
    assert stored == StoredOutput(3, (entry(1), entry(3)))
    put(first, 4, ("late", 9))  # of the generation before
    second.write(rows(("a", 1), ("b", 2)))
    second.repeated(3)
    put(second, 4, ("c", 3))
    bench.await_recorded(4)
    wait_until(lambda: not first.accepts, "the fence", 10.0)
    assert bench.content == [value("a", 1), value("b", 2), value("c", 3)]
    assert bench.woken.empty()


def test_a_complete_checkpoint_trims_and_a_snapshot_waits_for_its_barrier(bench: Bench) -> None:
    writer, _ = bench.begin(1)
    put(writer, 1, ("a", 1))
    bench.await_recorded(1)
    writer.stage(7)
    put(writer, 2)
    digest = writer.settled(7)["digest"]  # type: ignore[index, call-overload]
    put(writer, 3, ("b", 2), checkpoint=7)
    bench.await_recorded(3)
    writer.checkpoint_complete(7)
    put(writer, 4, ("c", 3), checkpoint=7)
    bench.await_recorded(4)
    third, stored = bench.begin(2, digest=str(digest))
    assert stored == StoredOutput(4, (entry(3, 7), entry(4, 7)))
    assert bench.far.trimmed[0] == 8, "the document with step 3: four before it, each with the mark of its end"
    bench.keeper.retract_after(7)
    with pytest.raises(OutputTopicError, match=r"from checkpoint 7 on only.* cannot continue from checkpoint 6"):
        bench.keeper.retract_after(6)
    for step, pair in ((3, ("b", 2)), (4, ("c", 3))):
        third.write(rows(pair))
        third.repeated(step)
    put(third, 5, ("d", 4), checkpoint=7)
    bench.await_recorded(5)
    assert bench.content == [value("a", 1), value("b", 2), value("c", 3), value("d", 4)]
    bench.keeper.finish()
    assert bench.far.partitions() == 0
    bench.new_driver().finish()


def test_other_rows_than_those_that_are_stored_end_the_subtask(bench: Bench) -> None:
    first, _ = bench.begin(1)
    put(first, 1, ("a", 1))
    bench.await_recorded(1)
    second, _ = bench.begin(2)
    second.write(rows(("a", 2)))
    second.repeated(1)
    put(second, 2, ("b", 2))
    assert isinstance(bench.woken.get(timeout=10), NondeterministicOperator)
    assert bench.content == [value("a", 1)]


@pytest.mark.parametrize("fail_after", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("fail_at", range(1, 9))
def test_whatever_call_fails_each_row_is_there_once(bench: Bench, fail_at: int, fail_after: bool) -> None:
    """Of a fence, which is repeated, and of a writer, which connects again."""
    first, _ = bench.begin(1)
    put(first, 1, ("a", 1))
    bench.await_recorded(1)
    bench.far.calls, bench.far.fail_at, bench.far.fail_after = 0, fail_at, fail_after
    second = bench.writer(2, bench.fence(2, 0)[0].recorded)
    second.write(rows(("a", 1)))
    second.repeated(1)
    for step in range(2, 5):
        put(second, step, ("b", step))
        bench.await_recorded(step)
    assert bench.content == [value("a", 1), *(value("b", step) for step in range(2, 5))]
    assert bench.fence(3, 0) == {0: StoredOutput(4, (entry(1), *(entry(step) for step in range(2, 5))))}
    assert bench.far.calls > 8


def test_a_fence_that_was_not_shown_all_begins_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a broker that has just become the leader. What the fence writes is not right behind what it has read."""
    first, _ = bench.begin(1)
    put(first, 1, ("a", 1))
    bench.await_recorded(1)
    old = bench.far.read(0)
    put(first, 2, ("b", 2))
    bench.await_recorded(2)
    read, answers = ModelPartition.read, [old]
    monkeypatch.setattr(ModelPartition, "read", lambda self: answers.pop() if answers else read(self))
    assert bench.fence(2, 0) == {0: StoredOutput(2, (entry(1), entry(2)))}
    assert not answers
    answers.append(Shown(None, 0))
    assert bench.fence(3, 0)[0].recorded == 2 and not answers


def test_a_writer_that_was_not_shown_all_does_not_write_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to its transaction was lost, and the brokers show what was there before."""
    first, _ = bench.begin(1)
    put(first, 1, ("a", 1))
    bench.await_recorded(1)
    read, answers = ModelPartition.read, [bench.far.read(0)]
    monkeypatch.setattr(ModelPartition, "read", lambda self: answers.pop() if answers else read(self))
    bench.far.calls, bench.far.fail_at, bench.far.fail_after = 0, 1, True
    put(first, 2, ("b", 2))
    bench.await_recorded(2)
    put(first, 3, ("c", 3))
    bench.await_recorded(3)
    assert not answers and bench.content == [value("a", 1), value("b", 2), value("c", 3)]


def test_a_writer_that_is_shown_an_earlier_generation_reads_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not take itself for one that was replaced: it would wait for ever."""
    bench.fence(1)
    read, answers = ModelPartition.read, [bench.far.read(0)]
    bench.fence(2)
    monkeypatch.setattr(ModelPartition, "read", lambda self: answers.pop() if answers else read(self))
    put(bench.writer(2, 0), 1, ("a", 1))
    bench.await_recorded(1)
    assert not answers and bench.woken.empty()


def test_a_recipe_topic_that_shows_an_earlier_generation_for_long_ends_the_subtask(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_once_writer, "PATIENCE_S", 0.0)
    bench.fence(1)
    bench.writer(2, 0)
    error = bench.woken.get(timeout=10)
    assert isinstance(error, OutputUnavailable) and "show generation 1 of what makes rows again" in str(error)


def test_a_driver_that_stood_still_while_it_began_changes_nothing(bench: Bench) -> None:
    """Another one has begun the recipe meanwhile, and rows are there."""
    writer, _ = bench.begin(1)
    put(writer, 1, ("a", 1))
    bench.await_recorded(1)
    begin_recipe(bench.far.partition(0))
    put(writer, 2, ("b", 2))
    bench.await_recorded(2)
    assert bench.fence(2, 0) == {0: StoredOutput(2, (entry(1), entry(2)))}


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_recipe_topic_that_has_gone_is_not_begun_again(bench: Bench, is_made_again: bool) -> None:
    """Also not by a job without a checkpoint, which may have died before it had begun."""
    writer, _ = bench.begin(1)
    put(writer, 1, ("a", 1))
    bench.await_recorded(1)
    bench.far.logs = [[]] if is_made_again else []
    with pytest.raises(OutputTopicError, match="its topic was removed or made again"):
        bench.new_driver(resume=False)


def test_a_later_generation_and_another_parallelism_are_recognised(bench: Bench) -> None:
    writer, _ = bench.begin(5)
    with pytest.raises(OutputTopicError, match="a later generation than 4 writes already"):
        bench.fence(4, 0)
    put(writer, 1, ("a", 1))  # a late fence has opened the name, and the writer opens it again
    bench.await_recorded(1)
    for parallelism in (1, 3):
        other = bench.new_driver()
        with pytest.raises(OutputTopicError, match="at parallelism 2: resume it at that"):
            other.fence(6, range(parallelism), parallelism, 0.0)
    assert bench.new_driver().fence(7, [1], 2, 5.0) == {1: StoredOutput(0, ())}


def test_other_subtasks_take_over_once_and_nothing_is_visible_behind_the_checkpoint(bench: Bench) -> None:
    writer, _ = bench.begin(1)
    put(writer, 1, ("a", 1))
    bench.await_recorded(1)
    put(writer, 2, ("b", 2), checkpoint=4)
    bench.await_recorded(2)
    division = Division(CheckpointId(5), CheckpointId(4))
    with pytest.raises(OutputTopicError, match="visible that were made behind checkpoint 4, of which checkpoint 5"):
        bench.keeper.divide(2, division, 3, 0.0)
    assert not bench.keeper.close_behind(2, 4) and bench.keeper.close_behind(2, 5)
    put(writer, 3, ("late", 3), checkpoint=4)
    wait_until(lambda: not writer.accepts, "the fence", 10.0)
    division = Division(CheckpointId(7), CheckpointId(6))
    bench.keeper.divide(3, division, 3, 5.0)
    assert bench.fence(3, parallelism=3) == dict.fromkeys(range(3), StoredOutput(0, ()))
    third = bench.writer(3, 0, index=2)
    put(third, 1, ("c", 3), checkpoint=7)
    bench.await_recorded(1, 2)
    later = bench.new_driver()
    later.divide(4, division, 3, 5.0)
    assert later.fence(4, range(3), 3, 5.0)[2] == StoredOutput(1, (entry(1, 7),)), "it was done"
    with pytest.raises(OutputTopicError, match=r"from checkpoint 7 on only.* cannot continue from checkpoint 6"):
        later.retract_after(6)
    fewer = Division(CheckpointId(9), CheckpointId(8))
    later.divide(5, fewer, 1, 5.0)
    assert later.fence(5, [0], 1, 5.0) == {0: StoredOutput(0, ())}
    assert bench.content == [value("a", 1), value("b", 2), value("c", 3)]


def test_a_writer_of_subtasks_that_gave_way_is_fenced(bench: Bench) -> None:
    """Also one that connects only after that."""
    bench.fence(1)
    bench.keeper.divide(2, Division(CheckpointId(5), CheckpointId(4)), 1, 5.0)
    assert bench.fence(2, parallelism=1) == {0: StoredOutput(0, ())}
    for index in (0, 1):
        late = bench.writer(1, 0, index)
        put(late, 1, ("late", 1))
        wait_until(lambda: not late.accepts, "the fence", 10.0)  # noqa: B023
    assert bench.content == []


def test_a_new_job_does_not_begin_where_rows_are(bench: Bench) -> None:
    bench.new_driver(resume=False)
    writer, _ = bench.begin(1)
    put(writer, 1, ("a", 1))
    bench.await_recorded(1)
    with pytest.raises(OutputTopicError, match="holds output of this job already"):
        bench.new_driver(resume=False)
    with pytest.raises(OutputTopicError, match="does not hold the output of the job to be resumed"):
        bench.new_driver(job=OTHER)
    successor = KafkaAtOnceKeeper(OTHER, TOPIC, bench.far)
    for refused in (successor.check_successor, successor.succeed):
        with pytest.raises(OutputTopicError, match="give another topic"):
            refused(JOB, 3)
    successor.succeed("job-3", 3)
    successor.check_successor(None, 3)


def test_what_was_lost_is_an_error(bench: Bench) -> None:
    bench.begin(1)
    bench.keeper.divide(2, Division(CheckpointId(5), CheckpointId(4)), 1, 5.0)
    bench.far.cluster.progress.clear()
    with pytest.raises(OutputTopicError, match="does not hold the output"):
        bench.keeper.divide(3, Division(CheckpointId(7), CheckpointId(6)), 1, 0.0)


def test_a_driver_that_was_replaced_divides_nothing(bench: Bench) -> None:
    def gone() -> None:
        raise JobRunsElsewhere("another driver runs the job")

    bench.begin(1)
    bench.keeper.allow_only_if(gone)
    with pytest.raises(JobRunsElsewhere):
        bench.keeper.divide(2, Division(CheckpointId(5), CheckpointId(4)), 1, 5.0)


def test_a_job_that_is_cancelled_ends_what_its_slots_have_under_way(bench: Bench) -> None:
    bench.begin(1)
    before = dict(bench.far.epochs)
    bench.keeper.discard()
    assert {index: epoch - before[index] for index, epoch in bench.far.epochs.items()} == {0: 1, 1: 1}
    bench.far.calls, bench.far.fail_at = 0, 1
    bench.keeper.discard()


# --- records ----------------------------------------------------------------------------------------------------------

STATE = OutputState(3, 2, 1, 9, b"\x01digest", 4)


def scanned(records: Sequence[tuple[bytes | None, bytes | None]], first: int = 0) -> RecipeScan:
    scan = RecipeScan(first, "the recipe")
    for offset, (key, content) in enumerate(records, first):
        scan.add(offset, key, content)
    return scan


@pytest.mark.parametrize("largest", [7, 50, 10_000])
def test_a_document_is_read_as_it_was_written(largest: int) -> None:
    entries = [entry(1, 4), RecipeEntry(CheckpointId(5), bytes(range(256)))]
    made = pieces(STATE, entries, ITSELF, largest)
    assert all(len(content) <= largest for _, content in made)
    stored = scanned([*made]).stored()
    assert stored is not None
    assert (stored.state, list(stored.entries), stored.places) == (STATE, entries, ((0, 5),))


def test_only_what_the_newest_document_counts_is_read() -> None:
    first, second = pieces(STATE, [entry(1, 4)], ITSELF), pieces(STATE, [entry(2, 5)], 1)
    third = pieces(STATE, [], 1)
    scan = scanned([*first, *second, *third])
    assert scan.reads_from == 1
    stored = scan.stored()
    assert stored is not None and stored.entries == (entry(2, 5),) and stored.places == ((1, 5),)


def test_a_reader_that_begins_in_a_document_leaves_it_out() -> None:
    first, second = pieces(STATE, [entry(1, 4)], ITSELF, 60), pieces(STATE, [entry(2, 5)], ITSELF, 60)
    assert len(first) > 2
    assert scanned(first[1:], 1).stored() is None
    stored = scanned([*first[1:], *second], 1).stored()
    assert stored is not None and stored.entries == (entry(2, 5),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: [made[0], *made[2:]], "a part of the recipe is missing before offset 1"),
        (lambda made: [(made[0][0], None), *made[1:]], "a part of the recipe is missing"),
        (lambda made: [(b"key", made[0][1])], "is of something else"),
        (lambda made: [(None, made[0][1])], "is of something else"),
        (lambda made: [(b"1/1", b"{")], "is damaged"),
        (lambda made: [(b"1/1", b'{"format": 9}')], "its format is 9"),
        (lambda made: [(b"1/1", _document(digest="x"))], "the digest 'x' is damaged"),
        (lambda made: [(b"1/1", _document(entries=[["1", "AA=="]]))], "an entry of the recipe is damaged"),
        (lambda made: [(b"1/1", _document(entries=[[1, "%"]]))], "an entry of the recipe is damaged"),
        (lambda made: [(b"1/1", _document(entries=[[1]]))], "an entry of the recipe is damaged"),
    ],
)
def test_what_no_writer_has_written_is_an_error(change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(OutputTopicError, match=message):
        scanned(change(pieces(STATE, [entry(1)], ITSELF, 40))).stored()


def _document(**changes: Any) -> bytes:
    import json

    ((_, content),) = pieces(STATE, [], ITSELF)
    return json.dumps({**json.loads(content), **changes}).encode()


def test_different_rows_have_different_contents() -> None:
    some: list[list[Staged]] = [
        [],
        [(None, None, None, None)],
        [(b"", None, None, None)],
        [(None, b"", None, None)],
        [(None, b"-", None, None)],
        [(None, b"a", None, None), (None, b"b", None, None)],
        [(None, b"b", None, None), (None, b"a", None, None)],
        [(b"a", b"b", None, None)],
        [(b"a", b"b", [], None)],
        [(b"a", b"b", [("a", None)], None)],
        [(b"a", b"b", [("a", b"")], None)],
        [(b"a", b"b", [("a", b""), ("a", b"")], None)],
        [(b"a", b"b", None, 0)],
        [(b"a", b"b", None, 1)],
    ]
    assert len({content_of(records) for records in some}) == len(some)
    assert content_of(some[5]) == content_of(some[5][:1]) + content_of(some[5][1:])
