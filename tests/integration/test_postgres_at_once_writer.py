"""The writer of rows that are visible at once, and the driver's side of it, against a real server and without Spark."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flinkplus.errors import (
    InputError,
    JobRunsElsewhere,
    NondeterministicOperator,
    OutputTableError,
    OutputUnavailable,
)
from flinkplus.protocol.determinants.recipe import StoredOutput
from flinkplus.sinks.at_once import writer as at_once_writer
from flinkplus.sinks.at_once.store import StepsUpdate
from flinkplus.sinks.at_once.writer import AtOnceWriter
from flinkplus.sinks.postgres import spare
from flinkplus.sinks.postgres.at_once import AtOnceKeeper, PostgresAtOnceSink
from flinkplus.sinks.postgres.recipe_tables import RecipeTables, writer_name
from flinkplus.sinks.postgres.run_keeper import application
from flinkplus.sinks.postgres.sink import postgres_sink
from tests.integration.conftest import wait_until
from tests.postgres_server import PostgresServer
from tests.unit.sinks.harness import SCHEMA, context, entry, put, rows

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("empty_postgres")]
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")


class Bench:
    """One subtask of a sink, generation after generation."""

    def __init__(self, postgres: PostgresServer, **options: Any) -> None:
        given = {"table": "counts", "mode": "append", "key": (), "dsn": postgres.dsn, **options}
        sink = postgres_sink("out", visibility="at_once", **given).bind(SCHEMA, "job-1")
        assert isinstance(sink, PostgresAtOnceSink)
        self.postgres, self.sink = postgres, sink
        self.keepers: list[AtOnceKeeper] = []
        self.keeper = self.new_driver(resume=False)
        self.writers: list[AtOnceWriter] = []
        self.woken: queue.Queue[Exception | None] = queue.Queue()

    def new_driver(self, resume: bool = True) -> AtOnceKeeper:
        keeper = self.sink.committer()
        self.keepers.append(keeper)
        keeper.prepare(resume)
        return keeper

    def begin(
        self, generation: int, digest: str = "", has_successors: bool = False
    ) -> tuple[AtOnceWriter, StoredOutput]:
        """The next generation is deployed, from a snapshot with ``digest``."""
        stored = self.keeper.fence(generation, [0, 1], 2, 5.0)[0]
        made = self.sink.with_secrets(self.sink.secrets()).writer(context(0), generation)
        assert isinstance(made, AtOnceWriter)
        self.writers.append(made)
        made.restore({"digest": digest})
        made.begin(stored.recorded, self.woken.put, has_successors)
        return made, stored

    def recorded(self) -> int:
        ((step,),) = self.postgres.execute("SELECT step FROM flinkplus_steps WHERE subtask = 0")
        return int(step)

    def await_recorded(self, step: int) -> None:
        wait_until(lambda: self.recorded() == step, f"step {step}", 10.0)

    @property
    def content(self) -> list[tuple[Any, ...]]:
        return self.postgres.execute("SELECT word, count FROM counts ORDER BY count")


@pytest.fixture
def bench(postgres: PostgresServer) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(postgres, **options))
        return made[-1]

    yield make
    for one in made:
        for writer in one.writers:
            writer.close()
        for keeper in one.keepers:
            keeper.close()


def test_rows_come_with_their_recipe_and_a_successor_goes_on_behind_them(bench: Callable[..., Bench]) -> None:
    one = bench()
    first, stored = one.begin(1)
    assert stored == StoredOutput(0, ())
    put(first, 1)
    put(first, 3, ("a", 1), ("b", 2))
    one.await_recorded(3)
    assert one.content == [("a", 1), ("b", 2)]
    second, stored = one.begin(2)
    assert stored == StoredOutput(3, (entry(1), entry(3)))
    put(first, 4, ("late", 9))  # of the generation before
    second.write(rows(("a", 1), ("b", 2)))
    second.repeated(3)
    put(second, 4, ("c", 3))
    one.await_recorded(4)
    wait_until(lambda: not first.accepts, "the fence", 10.0)
    assert one.content == [("a", 1), ("b", 2), ("c", 3)]
    assert one.woken.empty()


def test_a_snapshot_waits_for_its_barrier_and_a_complete_checkpoint_trims(bench: Callable[..., Bench]) -> None:
    one = bench()
    writer, _ = one.begin(1)
    put(writer, 1, ("a", 1))
    writer.stage(7)
    put(writer, 2)  # at the barrier, without rows
    digest = writer.settled(7)["digest"]  # type: ignore[index, call-overload]
    assert one.recorded() == 2
    put(writer, 3, ("b", 2), checkpoint=7)
    writer.checkpoint_complete(7)
    put(writer, 4, ("c", 3), checkpoint=7)
    wait_until(lambda: one.recorded() == 4, "step 4", 10.0)
    _, stored = one.begin(2)
    assert stored == StoredOutput(4, (entry(3, 7), entry(4, 7)))
    one.keeper.retract_after(7)
    with pytest.raises(OutputTableError, match=r"from checkpoint 7 on only.* cannot continue from checkpoint 6"):
        one.keeper.retract_after(6)
    third, _ = one.begin(3, digest=str(digest))
    third.write(rows(("b", 2)))
    third.repeated(3)
    third.write(rows(("c", 3)))
    third.repeated(4)
    put(third, 5, ("d", 4), checkpoint=7)
    one.await_recorded(5)
    assert one.content == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    one.keeper.finish()
    assert one.postgres.execute("SELECT count(*) FROM flinkplus_recipe") == [(0,)]


def test_other_rows_than_those_in_the_table_end_the_subtask(bench: Callable[..., Bench]) -> None:
    one = bench()
    first, _ = one.begin(1)
    put(first, 1, ("a", 1))
    one.await_recorded(1)
    second, _ = one.begin(2)
    second.write(rows(("a", 2)))
    second.repeated(1)
    put(second, 2, ("b", 2))
    assert isinstance(one.woken.get(timeout=10), NondeterministicOperator)
    assert one.content == [("a", 1)]


def test_of_a_key_the_last_row_counts_in_and_across_transactions(bench: Callable[..., Bench]) -> None:
    one = bench(mode="upsert", key="word")
    writer, _ = one.begin(1)
    put(writer, 1, ("a", 1), ("b", 2), ("a", 3))
    one.await_recorded(1)
    put(writer, 2, ("b", 4))
    one.await_recorded(2)
    assert one.content == [("a", 3), ("b", 4)]
    put(writer, 3, (None, 5))  # type: ignore[arg-type]
    error = one.woken.get(timeout=10)
    assert isinstance(error, InputError) and "key column 'word' holds a null" in str(error)


def test_what_is_under_way_when_the_connection_breaks_is_stored_once(bench: Callable[..., Bench]) -> None:
    one = bench()
    writer, _ = one.begin(1)
    name = writer_name("job-1", "public.counts", 0)
    for step in range(1, 60):
        put(writer, step, (f"w{step}", step))
        if step % 10 == 5:
            one.postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [name]
            )
        time.sleep(0.005)
    one.await_recorded(59)
    assert one.content == [(f"w{step}", step) for step in range(1, 60)]
    assert one.woken.empty()


def test_a_transaction_that_hangs_does_not_hold_a_fence_back(bench: Callable[..., Bench]) -> None:
    import psycopg

    one = bench()
    one.begin(1)
    name = writer_name("job-1", "public.counts", 0)
    with psycopg.connect(one.postgres.dsn, application_name=name) as hanging:
        hanging.execute("UPDATE flinkplus_steps SET step = 99 WHERE subtask = 0")
        _, stored = one.begin(2)
        assert stored == StoredOutput(0, ())
        with pytest.raises(psycopg.Error):
            hanging.execute("SELECT 1")
        hanging.close()


def test_a_transaction_of_a_fenced_generation_or_from_another_step_is_refused(bench: Callable[..., Bench]) -> None:
    """Also when its connection was not ended."""
    import psycopg

    one = bench()
    one.keeper.fence(1, [0, 1], 2, 5.0)
    with psycopg.connect(one.postgres.dsn) as connection:
        table = one.sink.output_table()
        assert table.found(connection)
        tables, update = RecipeTables(table, "job-1"), StepsUpdate(0, 1, b"", 0, [(1, entry(1))], 0)
        connection.commit()
        one.keeper.fence(2, [0], 2, 5.0)
        assert not tables.update(connection, 0, 1, update)
        assert tables.update(connection, 0, 2, update)
        assert not tables.update(connection, 0, 2, update), "from step 0 on, once more"
        connection.commit()
    assert one.keeper.fence(3, [0], 2, 5.0) == {0: StoredOutput(1, (entry(1),))}


def test_a_table_that_was_restored_to_an_earlier_time_ends_the_subtask(bench: Callable[..., Bench]) -> None:
    one = bench()
    writer, _ = one.begin(1)
    put(writer, 1, ("a", 1))
    put(writer, 2, ("b", 2))
    one.await_recorded(2)
    one.postgres.execute("UPDATE flinkplus_steps SET step = 1 WHERE subtask = 0")
    put(writer, 3, ("c", 3))
    error = one.woken.get(timeout=10)
    assert isinstance(error, OutputTableError) and "step 1 is recorded of subtask 0 instead of step 2" in str(error)
    assert one.content == [("a", 1), ("b", 2)]


@pytest.mark.long
def test_a_table_that_was_restored_to_an_earlier_generation_ends_the_subtask(bench: Callable[..., Bench]) -> None:
    """Its writer was not replaced, so none would end its subtask."""
    one = bench()
    writer, _ = one.begin(2)
    put(writer, 1, ("a", 1))
    one.await_recorded(1)
    one.postgres.execute("UPDATE flinkplus_steps SET generation = 1 WHERE subtask = 0")
    put(writer, 2, ("b", 2))
    error = one.woken.get(timeout=10)
    assert isinstance(error, OutputTableError) and "generation 1 is recorded of subtask 0 instead of 2" in str(error)
    assert one.content == [("a", 1)]


def test_another_driver_or_parallelism_is_recognised(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.begin(5)
    with pytest.raises(OutputTableError, match="a later generation than 4 writes already"):
        one.keeper.fence(4, [0], 2, 5.0)  # of an attempt of the same driver that has been given up
    with pytest.raises(OutputTableError, match="at parallelism 2: resume it at that"):
        one.keeper.fence(6, [0, 1, 2], 3, 5.0)
    other = one.new_driver()
    with pytest.raises(JobRunsElsewhere):
        one.keeper.fence(6, [0, 1], 2, 5.0)
    assert other.fence(6, [1], 2, 5.0) == {1: StoredOutput(0, ())}
    with pytest.raises(OutputTableError, match="give another table"):
        other.check_successor("job-1", 9)


def test_a_job_that_began_with_a_savepoint_goes_on_where_it_was(bench: Callable[..., Bench]) -> None:
    """Its driver died before the first checkpoint of its own, and rows are visible."""
    one = bench()
    writer, _ = one.begin(5)
    put(writer, 1, ("a", 1))
    one.await_recorded(1)
    resumed = one.sink.committer()
    one.keepers.append(resumed)
    resumed.succeed("another job", 4)
    assert resumed.fence(6, [0, 1], 2, 5.0)[0] == StoredOutput(1, (entry(1),))
    with pytest.raises(JobRunsElsewhere):
        one.keeper.fence(7, [0, 1], 2, 5.0)


def test_a_full_queue_stops_the_stream_until_the_server_is_back(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_once_writer, "MAX_PENDING_CUTS", 3)
    monkeypatch.setattr(at_once_writer, "SETTLE_S", 0.2)
    one = bench()
    writer, _ = one.begin(1)
    put(writer, 1, ("a", 1))
    one.await_recorded(1)
    one.postgres.kill()
    try:
        for step in range(2, 6):
            assert writer.accepts == (step < 5)
            put(writer, step, ("a", step))
        writer.stage(1)
        put(writer, 6)
        with pytest.raises(OutputUnavailable, match="not stored yet"):
            writer.settled(1)
    finally:
        one.postgres.start()
    assert one.woken.get(timeout=20) is None
    one.await_recorded(6)
    assert writer.accepts and one.content == [("a", number) for number in range(1, 6)]


# --- connections that are ready


def backends(postgres: PostgresServer, name: str) -> list[int]:
    """The server's processes of the connections that have this name."""
    found = postgres.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY pid", name)
    return [pid for (pid,) in found]


def test_fences_use_one_connection_until_it_breaks(bench: Callable[..., Bench]) -> None:
    """The one after that connects again, at once."""
    one = bench()
    name = application("job-1")
    one.keeper.fence(1, [0, 1], 2, 0.0)
    (first,) = backends(one.postgres, name)
    one.keeper.fence(2, [0], 2, 0.0)
    assert backends(one.postgres, name) == [first]
    with pytest.raises(OutputTableError, match="a later generation"):
        one.keeper.fence(1, [0], 2, 0.0)
    one.keeper.fence(3, [0], 2, 0.0)
    (second,) = backends(one.postgres, name)
    one.postgres.execute("SELECT pg_terminate_backend(%s)", second)
    assert one.keeper.fence(4, [0], 2, 0.0) == {0: StoredOutput(0, ())}
    (third,) = backends(one.postgres, name)
    assert len({first, second, third}) == 3
    one.keeper.close()
    wait_until(lambda: not backends(one.postgres, name), "the end of the connection", 10.0)


def test_a_lock_that_is_not_given_in_time_is_tried_again_only_if_there_is_time(bench: Callable[..., Bench]) -> None:
    """The connection is in order: a new one would wait for the same lock."""
    import psycopg

    one = bench()
    one.keeper.fence(1, [0, 1], 2, 5.0)
    (kept,) = backends(one.postgres, application("job-1"))
    one.keeper._kept._connection.execute("SET lock_timeout = '50ms'")
    with psycopg.connect(one.postgres.dsn) as locking:
        locking.execute("SELECT FROM flinkplus_steps WHERE subtask = 0 FOR UPDATE")
        with pytest.raises(OutputUnavailable, match="lock timeout"):
            one.keeper.fence(2, [0], 2, 0.0)
    assert one.keeper.fence(2, [0], 2, 0.0) == {0: StoredOutput(0, ())}
    assert backends(one.postgres, application("job-1")) != [kept]


@pytest.mark.long
def test_a_fence_connects_again_when_the_server_is_back(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.keeper.fence(1, [0, 1], 2, 0.0)
    one.postgres.kill()
    try:
        with pytest.raises(OutputUnavailable):
            one.keeper.fence(2, [0], 2, 0.0)
    finally:
        one.postgres.start()
    assert one.keeper.fence(2, [0], 2, 5.0) == {0: StoredOutput(0, ())}


def test_a_fence_beside_another_one_has_a_connection_of_its_own(bench: Callable[..., Bench]) -> None:
    """One in an attempt that was given up, and that the database does not answer, does not hold back the next one."""
    one = bench()
    one.keeper.fence(1, [0, 1], 2, 5.0)
    name = application("job-1")
    with one.keeper._kept._in_use:
        assert one.keeper.fence(3, [1], 2, 5.0) == {1: StoredOutput(0, ())}
        one.keeper.close()
        assert len(backends(one.postgres, name)) == 1, "its user closes it"
    one.keeper.fence(4, [1], 2, 5.0)
    wait_until(lambda: not backends(one.postgres, name), "the end of all connections", 10.0)


@pytest.mark.parametrize("mode", ["append", pytest.param("upsert", marks=pytest.mark.long)])
def test_a_successor_continues_on_the_spare_connection(
    mode: str, bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare, "REST_S", 0.05)
    one = bench(mode=mode, key="word" if mode == "upsert" else ())
    name = spare.spare_name("job-1")
    first, _ = one.begin(1, has_successors=True)
    put(first, 1, ("a", 1))
    one.await_recorded(1)
    wait_until(lambda: bool(backends(one.postgres, name)), "the spare connection", 10.0)
    (ready,) = backends(one.postgres, name)
    second, stored = one.begin(2, has_successors=True)
    second.write(rows(("a", 1)))
    second.repeated(1)
    put(second, 2, ("b", 2))
    one.await_recorded(2)
    assert backends(one.postgres, writer_name("job-1", "public.counts", 0)) == [ready]
    assert stored.recorded == 1 and one.content == [("a", 1), ("b", 2)] and one.woken.empty()
    wait_until(lambda: bool(backends(one.postgres, name)), "the next spare connection", 10.0)
    for writer in one.writers:
        writer.close()
    wait_until(lambda: not backends(one.postgres, name), "the end of the spare connection", 10.0)
    assert not spare._spares


@pytest.mark.long
def test_a_spare_connection_that_is_broken_is_replaced(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the successor that takes it, or before that."""
    monkeypatch.setattr(spare, "REST_S", 0.05)
    monkeypatch.setattr(spare, "CHECK_S", 60.0)
    one = bench()
    name = spare.spare_name("job-1")
    one.begin(1, has_successors=True)
    wait_until(lambda: bool(backends(one.postgres, name)), "the spare connection", 10.0)
    one.postgres.kill()
    one.postgres.start()
    monkeypatch.setattr(spare, "CHECK_S", 0.05)
    second, _ = one.begin(2, has_successors=True)
    put(second, 1, ("a", 1))
    one.await_recorded(1)
    wait_until(lambda: bool(backends(one.postgres, name)), "the next spare connection", 10.0)
    (broken,) = backends(one.postgres, name)
    one.postgres.execute("SELECT pg_terminate_backend(%s)", broken)
    wait_until(lambda: backends(one.postgres, name) not in ([], [broken]), "a new spare connection", 10.0)
    assert one.woken.empty()


def test_a_fenced_writer_that_takes_the_spare_connection_stores_nothing(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took it before the fence, and reads its row after that."""
    monkeypatch.setattr(spare, "REST_S", 0.05)
    one = bench()
    one.begin(1, has_successors=True)
    wait_until(lambda: bool(backends(one.postgres, spare.spare_name("job-1"))), "the spare connection", 10.0)
    one.keeper.fence(3, [0], 2, 5.0)
    late = one.sink.with_secrets(one.sink.secrets()).writer(context(0), 2)
    assert isinstance(late, AtOnceWriter)
    one.writers.append(late)
    put(late, 1, ("late", 1))
    late.begin(0, one.woken.put, has_successors=True)
    wait_until(lambda: not late.accepts, "the fence", 10.0)
    assert one.content == [] and one.recorded() == 0
