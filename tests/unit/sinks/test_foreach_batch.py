"""A function that is called with the rows of each checkpoint: calls, order, what is repeated after a crash anywhere."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from flinkplus.errors import ConfigurationError, JobRunsElsewhere, OutputFunctionError
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.sinks import file_writer, foreach_batch
from flinkplus.sinks.foreach_batch import DriverFunction, ForeachBatchSink, foreach_batch_sink
from flinkplus.sinks.former import former_sink
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.file_system import LocalDirectory
from tests.unit.sinks.harness import SCHEMA, Crash, FaultyFiles, Job, at_every_operation, rows

Batch = tuple[int, list[tuple[str, int]]]


class Calls:
    """The function. ``seen``: its calls that have returned, or that were cut short just before they returned."""

    def __init__(self) -> None:
        self.seen: list[Batch] = []
        self.before: Callable[[int], None] = lambda batch_id: None

    def __call__(self, table: pa.Table, batch_id: int) -> None:
        self.before(batch_id)
        self.seen.append((batch_id, [tuple(row.values()) for row in table.to_pylist()]))


def batch(*checkpoints: int, batch_id: int | None = None) -> Batch:
    """Two subtasks with a row for each of ``checkpoints``: rows are ordered by subtask."""
    pairs = [(f"r{checkpoint:04d}", index) for index in range(2) for checkpoint in checkpoints]
    return (checkpoints[-1] if batch_id is None else batch_id, pairs)


def job(home: Path, calls: Callable[..., object], **options: Any) -> Job:
    return Job(foreach_batch_sink(options.pop("name", "out"), calls).staged_in(str(home)), **options)


def next_driver(home: Path, calls: Callable[..., object], **options: Any) -> Job:
    found = job(home, calls, resume=True, **options)
    found.committer.prepare(resume=True)
    found.generation = 100
    found.deploy()
    return found


def staged_files(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*.arrow"))


# --- calls ------------------------------------------------------------------------------------------------------------


def test_each_checkpoint_is_one_call_in_order(tmp_path: Path) -> None:
    calls = Calls()
    running = job(tmp_path, calls)
    for checkpoint in (1, 2, 5):
        running.checkpoint(checkpoint)
    assert calls.seen == [batch(1), batch(2), batch(5)]
    assert staged_files(tmp_path) == []


def test_a_checkpoint_without_rows_makes_no_call(tmp_path: Path) -> None:
    calls = Calls()
    running = job(tmp_path, calls)
    running.checkpoint(1)
    running.committer.commit(2, running.stage(2, with_rows=False))
    running.complete(2)
    running.checkpoint(3)
    assert calls.seen == [batch(1), batch(3)]


def test_what_an_aborted_checkpoint_staged_comes_with_the_next_one(tmp_path: Path) -> None:
    calls = Calls()
    running = job(tmp_path, calls)
    running.stage(1)
    running.checkpoint(2)
    assert calls.seen == [batch(1, 2)]


def test_rows_of_a_subtask_keep_their_order_and_types(tmp_path: Path) -> None:
    tables: list[pa.Table] = []
    running = job(tmp_path, lambda table, _: tables.append(table))
    words = pa.array(["b", None, "a"]).dictionary_encode()
    running.writers[1].write(rows(("x", 9)))
    for _ in range(3):
        running.writers[0].write(pa.RecordBatch.from_arrays([words, pa.array([1, 2, 3])], names=["word", "count"]))
    running.committer.commit(1, running.stage(1, with_rows=False))
    (table,) = tables
    assert table.schema == SCHEMA
    assert table.column("word").to_pylist() == ["b", None, "a"] * 3 + ["x"]
    assert table.column("count").to_pylist() == [1, 2, 3] * 3 + [9]


def test_a_commit_that_is_repeated_calls_nothing(tmp_path: Path) -> None:
    calls = Calls()
    running = job(tmp_path, calls)
    described = running.stage(1)
    for _ in range(3):
        running.committer.commit(1, described)
    assert calls.seen == [batch(1)]


def raising(table: pa.Table, batch_id: int) -> None:
    raise ValueError("no room left")


def test_an_error_names_the_batch_and_the_users_line(tmp_path: Path) -> None:
    running = job(tmp_path, raising)
    described = running.stage(1)
    line = raising.__code__.co_firstlineno + 1
    wanted = rf"sink 'out': .* batch 1 of 2 rows: ValueError: no room left \({__file__}:{line} in raising\)"
    for _ in range(2):
        with pytest.raises(OutputFunctionError, match=wanted):
            running.committer.commit(1, described)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_no_exception_of_the_function_goes_through(tmp_path: Path, kind: type[BaseException]) -> None:
    """The worker takes an ``Exception`` for a failed commit, and waits for an answer after any other."""

    def function(table: pa.Table, batch_id: int) -> None:
        raise kind("gone")

    running = job(tmp_path, function)
    with pytest.raises(OutputFunctionError, match=rf"the function raised for batch 1 .*{kind.__name__}: gone"):
        running.committer.commit(1, running.stage(1))


async def asynchronous(table: pa.Table, batch_id: int) -> None:
    raise AssertionError("never awaited")


def generating(table: pa.Table, batch_id: int) -> Iterator[pa.Table]:
    yield table


@pytest.mark.parametrize("function", [asynchronous, generating])
def test_a_function_that_did_not_run_is_an_error(tmp_path: Path, function: Callable[..., object]) -> None:
    running = job(tmp_path, function)
    described = running.stage(1)
    with pytest.raises(OutputFunctionError, match="so its body has not run"):
        running.committer.commit(1, described)
    calls = Calls()
    repeated = next_driver(tmp_path, calls)
    repeated.committer.commit(1, described)
    assert calls.seen == [batch(1)]


def test_a_function_that_recovers_is_called_with_the_same_rows(tmp_path: Path) -> None:
    calls, tries = Calls(), []

    def fail_twice(batch_id: int) -> None:
        tries.append(batch_id)
        if len(tries) < 3:
            raise RuntimeError("not yet")

    calls.before = fail_twice
    running = job(tmp_path, calls)
    described = running.stage(1)
    for _ in range(2):
        with pytest.raises(OutputFunctionError, match="not yet"):
            running.committer.commit(1, described)
    running.committer.commit(1, described)
    assert (calls.seen, tries) == ([batch(1)], [1, 1, 1])


# --- after a crash ----------------------------------------------------------------------------------------------------


def each_once_but_the_last(seen: list[Batch], crashed_at: int, *wanted: Batch) -> bool:
    """Whether ``seen`` is ``wanted``, with at most a repetition of the call that was cut short."""
    return seen in ([*wanted], [*wanted[:crashed_at], wanted[crashed_at - 1], *wanted[crashed_at:]])


@pytest.mark.parametrize("fail_after", [False, True])
@pytest.mark.parametrize("same_process", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_commit_that_is_cut_short(
    tmp_path: Path, later: bool, same_process: bool, fail_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every operation. ``later``: another checkpoint was complete by then, and only that one is resumed from."""
    for module in (file_writer, foreach_batch):
        monkeypatch.setattr(module, "OutputFiles", FaultyFiles)
    for operation in ("read", "write"):
        counted = FaultyFiles._counted(getattr(LocalDirectory, operation))
        monkeypatch.setattr(LocalDirectory, operation, functools.partialmethod(_call_counted, counted))
    FaultyFiles.plan(0, False)
    calls: dict[Path, Calls] = {}
    staged: dict[Path, list[Any]] = {}

    def begin(home: Path) -> Job:
        calls[home] = Calls()
        counted = FaultyFiles._counted(calls[home].__call__)
        running = job(home, counted)
        running.checkpoint(1)
        staged[home] = [running.stage(2), running.stage(3)]
        return running

    def step(running: Job) -> None:
        home = Path(running.sink.path)  # type: ignore[attr-defined]
        running.committer.commit(2, staged[home][0])

    for home, crashed in at_every_operation(tmp_path, fail_after, begin, step):
        seen, (second, third) = calls[home], staged[home]
        assert seen.seen in ([batch(1)], [batch(1), batch(2)])
        running = crashed if same_process else next_driver(home, seen)
        if not later:
            running.committer.commit(2, second)
        running.committer.commit(3, third)
        one_call = [batch(1), batch(2, 3)]  # nothing of checkpoint 2 was begun
        assert each_once_but_the_last(seen.seen, 2, batch(1), batch(2), batch(3)) or (later and seen.seen == one_call)
        assert staged_files(home) == []
        running.committer.finish()
        assert [path.name for path in home.iterdir()] == ["calls"]


def _call_counted(self: LocalDirectory, counted: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return counted(self, *arguments, **named)


def test_a_driver_that_dies_in_the_function_calls_it_again_first(tmp_path: Path) -> None:
    """The batch that was under way keeps its ID and its rows, although the next checkpoint has them too."""
    calls = Calls()

    def die(batch_id: int) -> None:
        calls.seen.append((batch_id, []))
        raise Crash("the driver dies")

    running = job(tmp_path, calls)
    running.checkpoint(1)
    running.stage(2)
    third, fourth = running.stage(3), running.stage(4)
    calls.before = die
    with pytest.raises(OutputFunctionError):
        running.committer.commit(3, third)
    calls.before = lambda batch_id: None
    resumed = next_driver(tmp_path, calls)
    resumed.committer.retract_after(4)
    resumed.committer.commit(4, fourth)
    assert calls.seen == [batch(1), (3, []), batch(2, 3), batch(4)]


@pytest.mark.parametrize("target", [None, 1])
def test_what_was_called_is_not_taken_back(tmp_path: Path, target: int | None) -> None:
    calls = Calls()
    running = job(tmp_path, calls)
    running.checkpoint(1)
    running.checkpoint(2)
    with pytest.raises(OutputFunctionError, match="called with the rows of checkpoint 2, which cannot be taken back"):
        running.committer.retract_after(target)
    running.committer.retract_after(2)


def test_what_may_have_been_called_is_not_taken_back(tmp_path: Path) -> None:
    running = job(tmp_path, raising)
    with pytest.raises(OutputFunctionError):
        running.committer.commit(1, running.stage(1))
    with pytest.raises(OutputFunctionError, match="cannot be taken back"):
        running.committer.retract_after(None)


def test_what_is_staged_later_goes(tmp_path: Path) -> None:
    calls = Calls()
    running = job(tmp_path, calls)
    running.checkpoint(1)
    running.stage(2)
    running.committer.retract_after(1)
    assert staged_files(tmp_path) == []
    running.deploy()
    running.checkpoint(3)
    assert calls.seen == [batch(1), batch(3)]


def test_an_earlier_driver_calls_nothing(tmp_path: Path) -> None:
    calls = Calls()
    running = job(tmp_path, calls)
    described = running.stage(1)

    def replaced() -> None:
        raise JobRunsElsewhere("another driver runs the job")

    running.committer.allow_only_if(replaced)
    with pytest.raises(JobRunsElsewhere):
        running.committer.commit(1, described)
    assert calls.seen == []


def test_a_record_that_was_being_written_never_replaces_that_of_the_next_driver(tmp_path: Path) -> None:
    """The earlier driver stands still between its check and the rename."""
    calls = Calls()
    running = job(tmp_path, calls)
    described = running.stage(1)
    taken: list[Job] = []

    def taking_over() -> None:
        if not taken:
            CheckpointStorage(tmp_path).runs.begin(2)
            taken.append(next_driver(tmp_path, calls))
            taken[0].committer.commit(1, described)

    running.committer.allow_only_if(taking_over)
    with pytest.raises(FileNotFoundError):
        running.committer.commit(1, described)
    (record,) = (tmp_path / "calls").iterdir()
    assert json.loads(record.read_text())["checkpoint"] == 1
    assert calls.seen == [batch(1)]


@pytest.mark.parametrize("damage", ["gone", "short", "record"])
def test_what_is_lost_is_an_error(tmp_path: Path, damage: str) -> None:
    calls = Calls()
    running = job(tmp_path, calls)
    described = running.stage(1)
    (path, *_) = tmp_path.rglob("part-*.arrow")
    (record,) = tmp_path.rglob("*.json")
    if damage == "gone":
        path.unlink()
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        record.write_text(json.dumps({"format": 1, "checkpoint": 0, "files": ["../x"]}))
    with pytest.raises(OutputFunctionError, match=r"is missing in|malformed"):
        next_driver(tmp_path, calls).committer.commit(1, described)
    assert calls.seen == []


# --- other runs and programs ------------------------------------------------------------------------------------------


def test_a_job_from_a_savepoint_continues_the_ids(tmp_path: Path) -> None:
    calls = Calls()
    job(tmp_path / "old", calls).checkpoint(1)
    new = job(tmp_path / "new", calls, job_id="job-2", resume=True)
    for _ in range(2):
        new.committer.check_successor("job-1", 1)
        new.committer.succeed("job-1", 1)
        new.committer.retract_after(1)
    new.deploy()
    new.checkpoint(2)
    assert calls.seen == [batch(1), batch(2)]


def test_a_resume_needs_the_record(tmp_path: Path) -> None:
    with pytest.raises(OutputFunctionError, match="does not say with which batches its function was called"):
        next_driver(tmp_path, Calls())


@pytest.mark.parametrize("begun", [False, True])
def test_a_driver_that_died_before_the_first_checkpoint_is_followed(tmp_path: Path, begun: bool) -> None:
    """It may have died before the record was made, or after."""
    calls = Calls()
    running = job(tmp_path, calls, resume=not begun)
    commits = Commits({"out": running.sink}, CheckpointStorage(tmp_path))
    commits.prepare_again()
    running.deploy()
    commits.committers["out"].commit(1, running.stage(1))
    assert calls.seen == [batch(1)]


def test_a_sink_that_is_gone_must_have_been_called(tmp_path: Path) -> None:
    running = job(tmp_path, Calls())
    described = running.stage(1)
    settings = dict(running.sink.settings())
    gone = former_sink("out", settings, "job-1", str(tmp_path))
    assert gone is not None
    with pytest.raises(ConfigurationError, match="output of checkpoint 1 waits to be committed"):
        gone.committer().commit(1, described)
    running.committer.commit(1, described)
    gone.committer().commit(1, described)
    assert former_sink("out", settings, "job-1", str(tmp_path), running.sink) is running.sink


def test_two_sinks_do_not_share_a_record(tmp_path: Path) -> None:
    one, other = Calls(), Calls()
    job(tmp_path, one, name="one").checkpoint(1)
    job(tmp_path, other, name="other").checkpoint(1)
    assert one.seen == other.seen == [batch(1)]


def test_the_function_is_loaded_where_it_is_called() -> None:
    class Unloadable:
        def __reduce__(self) -> Any:
            return int, ("not a number",)

    thing = Unloadable()
    sink = cloudpickle.loads(cloudpickle.dumps(ForeachBatchSink("out", function=DriverFunction(lambda *_: thing))))
    again = cloudpickle.loads(cloudpickle.dumps(sink))  # as a slot does, and as a resumed driver does
    with pytest.raises(ConfigurationError, match="the function of sink 'out' cannot be loaded here"):
        again.function.get("out")


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is no function of a table and a batch ID"):
        foreach_batch_sink("out", 3)
