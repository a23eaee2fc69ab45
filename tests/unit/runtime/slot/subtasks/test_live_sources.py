"""A subtask whose source is live: it reads what is there, sleeps when nothing is, and its successor reads the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.harness.replaying import Recorded, sent_by
from flinkplus import ConfigurationError
from flinkplus.config import Options
from flinkplus.protocol.channels.watermarks import IDLE_MS
from flinkplus.protocol.determinants.determinants import IDLED, Choice, unpack
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.job.checks import check_sources
from flinkplus.runtime.slot.subtasks.fused_node import MAX_POSITIONS
from flinkplus.runtime.slot.subtasks.operator_work import OperatorWork
from flinkplus.runtime.slot.subtasks.pacing import Pacer
from flinkplus.runtime.slot.subtasks.subtask import DIGEST, Subtask
from flinkplus.sources.base import MAX_CHOICE
from tests.live_source import ShelfReader, Shelves
from tests.unit.api.drawing import environment

PLACES = 4


class Job:
    """shelves | key_by(word) | count, in this process; one reader has places 0 and 2, the other 1 and 3."""

    def __init__(
        self, directory: Path, rate: float | None = None, idle_after: str | None = None, clock: str | None = None
    ) -> None:
        self.source = Shelves("shelves", [[] for _ in range(PLACES)])
        env = environment(parallelism=2)
        stream = env.from_source(self.source)
        if idle_after is not None:
            stream = stream.with_watermark("number", 0, every="1 ms", idle_after=idle_after, name="marks")
            windows = stream.key_by("word").tumbling_window("number", "10 ms")
            windows.count(name="window").discard(name="windows")
        if clock is not None:
            stream = stream.with_processing_time("at", every=clock, name="clock")
            stream.key_by("word").tumbling_window("at", "1 second").count(name="window").discard(name="windows")
        if rate is not None:
            stream.throttle(rate)
        stream.key_by("word").count(name="count").discard(name="out")
        self.recorded = Recorded(env.graph.fuse(), env.options, directory)
        self.begun: dict[Subtask, list[tuple[Choice, int]]] = {}
        self.subtask = self.recorded.subtasks[SubtaskId(self.recorded.graph.vertices[0].name, 0)]
        self.reader = self.source.readers[0]
        self.note(self.subtask)

    def note(self, subtask: Subtask) -> None:
        """Note how its steps begin."""
        begun, begin = self.begun.setdefault(subtask, []), subtask.steps.history.begin

        def noting(choice: Choice, *values: int) -> None:
            begun.extend((choice, value) for value in values)
            begin(choice, *values)

        subtask.steps.history.begin = noting  # type: ignore[method-assign]

    def add(self, place: int, *words: str) -> None:
        self.source.shelves[place].extend(words)

    def work_off(self, subtask: Subtask | None = None) -> int:
        """How many steps could be done."""
        subtask, steps = subtask or self.subtask, 0
        while subtask.steps.runnable(0.0):
            before = subtask.steps.history.begun
            subtask.run()
            assert subtask.steps.history.begun > before or subtask.steps._step is not None, "it spins"
            steps += 1
        return steps


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    found = Job(tmp_path)
    yield found
    found.recorded.close()
    assert all(reader.closed for reader in found.source.readers)


def looks(subtask: Subtask) -> dict[str, list[tuple[object, ...]]]:
    return {
        channel: [(m.seq, m.epoch, m.rows, m.size, m.determinants, DIGEST(m, payload)) for m, payload in messages]
        for channel, messages in sent_by(subtask).items()
    }


def successor_of(job: Job) -> tuple[Subtask, ShelfReader]:
    """Its consumers have received everything."""
    received = {channel: len(messages) for channel, messages in sent_by(job.subtask).items()}
    successor = job.recorded.successor(job.subtask.id, received)
    job.note(successor)
    return successor, job.source.readers[-1]


def run_drawn(job: Job, rng: random.Random, waves: int = 40) -> None:
    for _ in range(waves):
        for place in (0, 2):
            job.add(place, *[f"w{rng.randrange(20)}" for _ in range(rng.choice((0, 0, 1, 3, 20)))])
            if rng.random() < 0.7:
                job.reader.fetch(place)
        job.work_off()
    job.reader.fetch()
    job.work_off()


@pytest.mark.parametrize("seed", range(3))
def test_a_successor_reads_the_same_rows_whatever_there_is_by_then(job: Job, seed: int) -> None:
    run_drawn(job, random.Random(seed))
    job.add(0, *["later"] * 50)
    successor, reader = successor_of(job)
    steps = len(successor.steps.replay.determinants)
    assert steps > 20
    reader.fetch()
    while successor.steps.replay.active:
        assert successor.steps.runnable(0.0)
        successor.run()
    assert looks(successor) == looks(job.subtask)
    assert reader.read_rows == job.reader.read_rows
    assert job.begun[successor][:steps] == job.begun[job.subtask]


def test_a_replay_waits_for_rows_and_keeps_its_place(job: Job) -> None:
    job.add(0, "a", "b")
    job.reader.fetch(0)
    job.work_off()
    job.add(2, "c")
    job.reader.fetch(2)
    job.work_off()
    successor, reader = successor_of(job)
    successor._ports.persist = lambda name, checkpoint, work: None
    successor.steps.trigger(CheckpointId(1))
    assert len(successor.steps.replay.determinants) == 2
    assert job.work_off(successor) == 0
    reader.fetch(2)  # of what comes second
    assert job.work_off(successor) == 0 and len(successor.steps.replay.determinants) == 2
    reader.fetch(0)
    assert job.work_off(successor) > 0 and not successor.steps.replay.active
    assert [choice for choice, _ in job.begun[successor]] == [Choice.READ, Choice.READ, Choice.TRIGGER]


def test_steps_are_repeated_together_as_far_as_their_rows_are_there(job: Job) -> None:
    """And the numbers of the choices, which are large, do not count as numbers of rows."""
    for word in ("a", "b", "c"):
        for place in (0, 2):
            job.add(place, word)
            job.reader.fetch(place)
            job.work_off()
    assert [value // (1 << 16) for _, value in job.begun[job.subtask]] == [0, 2] * 3
    successor, reader = successor_of(job)
    taken: list[int] = []
    take_steps = successor.steps.replay.take_steps

    def taking(determinants: int) -> None:
        taken.append(determinants)
        take_steps(determinants)

    successor.steps.replay.take_steps = taking  # type: ignore[method-assign]
    reader.fetched[0], reader.fetched[2] = 2, 1
    job.work_off(successor)
    assert taken == [3] and len(successor.steps.replay.determinants) == 3
    reader.fetch()
    job.work_off(successor)
    assert taken == [3, 3] and looks(successor) == looks(job.subtask)


def test_an_error_between_steps_that_are_repeated_together(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        job.add(0, "a")
        job.reader.fetch()
        job.work_off()
    successor, reader = successor_of(job)
    reader.fetch()
    can_read, asked = reader.can_read, []

    def fails(choice: int) -> bool:
        asked.append(choice)
        if len(asked) > 2:
            raise OSError("gone")
        return can_read(choice)

    read = reader.read
    monkeypatch.setattr(reader, "can_read", fails)
    monkeypatch.setattr(reader, "read", lambda choice: read(choice) if len(asked) <= 2 else pytest.fail("not there"))
    with pytest.raises(OSError, match="gone"):
        job.work_off(successor)


def test_an_idle_source_runs_no_step_and_does_what_it_is_ordered(job: Job) -> None:
    steps = job.subtask.steps
    assert not steps.runnable(0.0)
    steps.trigger(CheckpointId(1))
    assert job.work_off() == 1 and job.recorded.snapshots[-1].checkpoint == 1
    steps.trigger(CheckpointId(2))
    steps.abort(CheckpointId(2))
    assert job.work_off() == 0
    job.add(2, "a")
    assert not steps.runnable(0.0), "it was not fetched"
    job.reader.fetch()
    assert job.work_off() == 1
    steps.drain()
    assert job.work_off() == 1 and steps.ended
    assert job.begun[job.subtask][-1] == (Choice.END, 0)


def test_the_end_of_a_source_is_a_choice(job: Job) -> None:
    job.add(0, "a")
    job.source.over.append(True)
    job.reader.fetch()
    job.work_off()
    assert job.subtask.steps.ended and job.begun[job.subtask][-1] == (Choice.READ, 0)
    successor, reader = successor_of(job)
    assert job.work_off(successor) == 0
    reader.fetch()
    job.work_off(successor)
    assert successor.steps.ended and looks(successor) == looks(job.subtask)


def test_committed_has_the_position_of_the_snapshot(job: Job) -> None:
    job.add(0, "a")
    job.reader.fetch()
    job.work_off()
    for checkpoint in (1, 2):
        job.subtask.steps.trigger(CheckpointId(checkpoint))
        job.work_off()
        job.add(2, "b", "c")
        job.reader.fetch()
        job.work_off()
    job.subtask.steps.complete(CheckpointId(2))
    job.subtask.steps.complete(CheckpointId(3))  # of which this subtask has no snapshot
    assert job.reader.commits == [{"0": 1, "2": 2}]


def test_positions_of_checkpoints_that_are_aborted_do_not_pile_up(job: Job) -> None:
    last = MAX_POSITIONS + 2
    for checkpoint in range(1, last + 1):
        job.subtask.steps.trigger(CheckpointId(checkpoint))
        job.work_off()
        if checkpoint < last:
            job.subtask.steps.abort(CheckpointId(checkpoint))
    assert len(job.subtask.operators.nodes[0].positions) == MAX_POSITIONS
    job.subtask.steps.complete(CheckpointId(last))
    assert job.reader.commits == [{"0": 0, "2": 0}] and job.subtask.operators.nodes[0].positions == {}


def test_gauges_are_reported_while_the_source_reads(job: Job) -> None:
    job.add(0, "a", "b")
    job.reader.fetch()
    counters = {str(one.id): one.counters() for one in job.recorded.subtasks.values()}
    assert counters["shelves[0]"]["behind"] == 2 and counters["shelves[1]"]["behind"] == 0
    figures = Figures(job.recorded.graph)
    figures.update(counters)
    assert figures.operators()["shelves"] == {"rows_in": 0, "rows_out": 0, "rows": 0, "lag_rows": 2}
    job.subtask.steps.drain()
    job.work_off()
    figures.update({"shelves[0]": job.subtask.counters()})
    assert figures.operators()["shelves"]["lag_rows"] == 0


def test_a_throttled_source_reads_at_its_rate_and_makes_up_for_no_pause(tmp_path: Path) -> None:
    pacer = Pacer(10.0, 1000, lambda since: since)
    pacer.begin(100.0)
    pacer.after(1, 1, 1)
    pacer.rest(160.0, 1)
    assert pacer.ready_at(160.0, 1) == pytest.approx(160.0)
    assert pacer.rows(161.0, 1) == 10
    pacer.rest(130.0, 1)  # earlier than the rows that were read
    assert pacer.rows(161.0, 1) == 10
    unpaced = Pacer(None, 1000, lambda since: since)
    unpaced.rest(160.0, 1)
    assert unpaced.ready_at(5.0, 7) == 5.0
    job = Job(tmp_path, rate=10.0)
    job.add(0, *["a"] * 500)
    job.reader.fetch()
    limits: list[int] = []
    choose = job.reader.choose

    def choosing(max_rows: int) -> int | None:
        limits.append(max_rows)
        return choose(max_rows)

    job.reader.choose = choosing  # type: ignore[method-assign]
    assert job.subtask.work.next_read() is not None
    assert limits == [1], "the first read of a paced source is of one row"
    job.recorded.close()


def idle_at_of(work: OperatorWork) -> float | None:
    return work.idle_at


def test_a_source_that_is_idle_for_long_says_so_in_a_step_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path, idle_after="30 seconds")
    steps, work = job.subtask.steps, job.subtask.work
    job.add(0, "a")
    job.reader.fetch()
    job.work_off()
    idle_at = idle_at_of(work)
    assert work.nothing_to_read and idle_at is not None
    assert steps.deadline(0.0) == idle_at and steps.deadline(idle_at + 5.0) == idle_at + 5.0
    assert not steps.runnable(idle_at - 0.1) and steps.runnable(idle_at)
    job.subtask.run()
    assert job.begun[job.subtask][-1] == (Choice.END, IDLED)
    assert work.nothing_to_read and idle_at_of(work) is None and not steps.runnable(idle_at + 100.0), "once"
    job.add(2, "b")
    job.reader.fetch()
    job.work_off()
    assert work.nothing_to_read and (idle_at_of(work) or 0.0) > idle_at
    successor, reader = successor_of(job)
    reader.fetch()
    while successor.steps.replay.active:
        assert successor.steps.runnable(0.0), "a repeated step waits for no time"
        successor.run()
    assert looks(successor) == looks(job.subtask)
    marks = [m.watermark_ms for messages in sent_by(successor).values() for m, _ in messages if m.watermark_ms]
    assert marks == [IDLE_MS] * 2, "to each consumer; 0 is the watermark otherwise"
    job.recorded.close()


def test_processing_time_follows_the_clock_while_there_is_nothing_to_read(tmp_path: Path) -> None:
    job = Job(tmp_path, clock="5 seconds")
    steps, work = job.subtask.steps, job.subtask.work
    job.add(0, "a", "b")
    job.reader.fetch()
    job.work_off()
    for idle in range(3):
        assert work.nothing_to_read
        idle_at = idle_at_of(work)
        assert idle_at is not None and not steps.runnable(idle_at - 0.1) and steps.runnable(idle_at)
        job.subtask.run()
        assert job.begun[job.subtask][-1] == (Choice.END, IDLED)
        assert idle_at_of(work) is None, "the time begins again"
        if idle == 1:
            job.add(2, "c")
            job.reader.fetch()
            job.work_off()
    successor, reader = successor_of(job)
    reader.fetch()
    while successor.steps.replay.active:
        assert successor.steps.runnable(0.0), "a repeated step waits for no time"
        successor.run()
    assert looks(successor) == looks(job.subtask)
    marks = [m.watermark_ms for messages in sent_by(successor).values() for m, _ in messages if m.watermark_ms]
    assert len(marks) >= 2 and IDLE_MS not in marks
    job.recorded.close()


@pytest.mark.parametrize("method", ["choose", "can_read", "gauges"])
def test_errors_of_a_reader_are_those_of_a_step(job: Job, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot asks readers outside of steps; an error there ends the subtask, and not the slot."""
    job.add(0, "a")
    job.reader.fetch()
    job.work_off()
    successor, reader = successor_of(job)

    def fails(*_: object) -> None:
        raise OSError("gone")

    subtask, own = (successor, reader) if method == "can_read" else (job.subtask, job.reader)
    with monkeypatch.context() as patch:
        patch.setattr(own, method, fails)
        subtask.counters()
        assert subtask.steps.runnable(0.0)
    with pytest.raises(OSError, match="gone"):
        subtask.run()


def test_errors_of_a_reader_wake_the_slot(job: Job) -> None:
    woken: list[tuple[Any, ...]] = []
    job.subtask._ports.woken = lambda *told: woken.append(told)
    job.reader.fetch()
    error = OSError("gone")
    job.reader.fetch(error=error)
    assert woken == [(job.subtask.id, 1, None), (job.subtask.id, 1, error)]


def test_a_source_must_say_whether_it_is_live(tmp_path: Path) -> None:
    class Wrong(Shelves):
        is_live = False

    env = environment(parallelism=1)
    env.from_source(Wrong("wrong", [[]])).discard()
    with pytest.raises(ConfigurationError, match="source 'wrong': is_live is False, and its reader is a ShelfReader"):
        Recorded(env.graph.fuse(), env.options, tmp_path)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_at_most_once_is_refused(guarantee: str) -> None:
    env = environment(parallelism=1, guarantee="at-most-once")
    env.from_source(Shelves("shelves", [[]])).discard()
    with pytest.raises(ConfigurationError, match="'at-most-once' cannot be used with a live source \\('shelves'\\)"):
        check_sources(env.graph, env.options)
    check_sources(env.graph, Options(guarantee=guarantee))


def test_a_choice_fits_a_determinant() -> None:
    assert unpack(MAX_CHOICE << 3) == (Choice.READ, MAX_CHOICE) and MAX_CHOICE << 3 < 1 << 32
