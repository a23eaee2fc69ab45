"""Jobs that write to PostgreSQL: slots and the server killed with SIGKILL, a resume, a rescale; a reader finds each row
once, and the rows that the same program collects."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import JobFailed, JobHandle, StreamEnvironment
from flinkplus.corpus import write_corpus
from flinkplus.sinks.postgres.committer import PostgresCommitter
from tests.documents import all_blocks
from tests.integration.conftest import PATIENCE_S, expected_counts, wait_for_checkpoint, wait_until
from tests.integration.programs import SESSION, kill_again_and_again
from tests.postgres_server import PASSWORD, PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("empty_postgres")]
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")

ROWS, KEYS = 6_000, 37
BEGIN = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)
EXPECTED = Counter((f"w{i % KEYS}", i // KEYS + 1) for i in range(ROWS))
LAST = {f"w{key}": len(range(key, ROWS, KEYS)) for key in range(KEYS)}


def counting(spark: SparkSession, postgres: PostgresServer, rate: float, **options: Any) -> StreamEnvironment:
    """Counts of words, to a table of all rows, to one of the last row for each word, and collected."""
    env = StreamEnvironment(spark, checkpoint_interval=0.15, **{"parallelism": 2, **options})
    words = env.generate(lambda i: f"w{i % KEYS}", schema="word string", count=ROWS, rate=rate, name="words")
    counts = words.key_by("word").count(name="count")
    counts.to_postgres(postgres.dsn, "every", name="every")
    counts.to_postgres(postgres.dsn, "last", mode="upsert", key="word", name="last")
    counts.collect(name="collected")
    return env


def every(postgres: PostgresServer) -> Counter[Any]:
    return Counter(postgres.execute("SELECT word, count FROM every"))


def assert_exact(postgres: PostgresServer) -> None:
    assert every(postgres) == EXPECTED
    assert dict(postgres.execute("SELECT word, count FROM last")) == LAST


def read_while(postgres: PostgresServer, stop: threading.Event, wrong: list[Any]) -> None:
    """At any moment a reader finds whole checkpoints: for each word the counts 1 to n, and never fewer than before."""
    seen: Counter[str] = Counter()
    while not stop.wait(0.02):
        try:
            rows = postgres.execute("SELECT word, count(*), max(count), min(count) FROM every GROUP BY word")
        except Exception:  # the server is away, or the table is not made yet
            continue
        for word, number, highest, lowest in rows:
            if number != highest or lowest != 1 or number < seen[word]:
                wrong.append((word, number, highest, lowest, seen[word]))
            seen[word] = number


def kill_in_a_commit(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The server gets SIGKILL in the next commit, once its rows are in the transaction, and comes back."""
    killed, commit = threading.Event(), PostgresCommitter._commit

    def killing(committer: PostgresCommitter, *arguments: Any) -> int:
        through = commit(committer, *arguments)
        if not killed.is_set():
            postgres.kill()
            killed.set()
            threading.Timer(0.5, postgres.start).start()
        return through

    monkeypatch.setattr(PostgresCommitter, "_commit", killing)
    return killed


def test_slots_and_the_server_killed(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, wrong = threading.Event(), []  # type: ignore[var-annotated]
    reader = threading.Thread(target=read_while, args=(postgres, stop, wrong))
    reader.start()
    try:
        with counting(spark, postgres, 2_000.0).execute("killed") as job:
            wait_for_checkpoint(job, 2)
            assert job.kill("count:1", at="commit")
            wait_until(lambda: bool(job.recoveries()), "a failover")
            assert kill_in_a_commit(postgres, monkeypatch).wait(PATIENCE_S)
            wait_until(lambda: job.missing_standbys() == 0 or job.done, "standbys")
            assert job.kill("count:0")
            job.await_finish(PATIENCE_S)
            collected = job.collected("collected")
            assert job.metrics()["committed_rows"] == {"every": ROWS, "last": ROWS, "collected": ROWS}
    finally:
        stop.set()
        reader.join()
    assert wrong == []
    assert_exact(postgres)
    assert every(postgres) == Counter((row["word"], row["count"]) for row in collected.to_pylist())
    ((rows,),) = postgres.execute("SELECT rows FROM flinkplus_progress WHERE sink = 'every'")
    assert rows == ROWS


def test_a_job_is_resumed_and_rescaled(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At other parallelisms, live, from a savepoint and by a resume. No password is in the checkpoint directory, nor in
    the log."""
    caplog.set_level("DEBUG", "flinkplus")
    savepoint = tmp_path / "savepoint"

    def run(rate: float, parallelism: int, home: Path, **begin: Any) -> JobHandle:
        env = counting(spark, postgres, rate, parallelism=parallelism, checkpoint_dir=home)
        return env.execute("resumed", resume="auto", **begin)

    with run(300.0, 2, tmp_path / "first") as job:
        wait_for_checkpoint(job, 2)
        job.rescale(3).await_done(PATIENCE_S)
        wait_for_checkpoint(job, 4)
        job.stop_with_savepoint(savepoint).await_done(PATIENCE_S)
    assert 0 < sum(every(postgres).values()) < ROWS
    home = tmp_path / "second"
    with run(300.0, 2, home, start_from=savepoint) as job:
        wait_for_checkpoint(job, 2)
    with run(1e6, 1, home, start_from=savepoint) as job:
        assert job.restored_from is not None
        assert_no_secret(home, str(job.metrics()))
        job.await_finish(PATIENCE_S)
    assert_exact(postgres)
    assert PASSWORD not in caplog.text
    assert not [path for path in home.rglob("*.csv")]


def assert_no_secret(home: Path, status: str) -> None:
    assert PASSWORD not in status
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.name == "plan" for path in files)
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_a_server_that_stays_away_ends_the_job_and_nothing_is_lost(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresCommitter, "patience_s", 0.3)
    home = tmp_path / "checkpoints"
    with counting(spark, postgres, 2_000.0, checkpoint_dir=home).execute("away") as job:
        wait_for_checkpoint(job, 2)
        postgres.kill()
        try:
            with pytest.raises(JobFailed, match=r"output not committed: OutputUnavailable: table 127.0.0.1.*attempt 5"):
                job.await_finish(PATIENCE_S)
        finally:
            postgres.start()
    with counting(spark, postgres, 1e6, checkpoint_dir=home).execute("away", resume="auto") as job:
        job.await_finish(PATIENCE_S)
    assert_exact(postgres)


def test_the_program_of_the_page(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = (block for block in all_blocks() if block.page == "docs/postgres.md" and block.language == "python")
    monkeypatch.chdir(tmp_path)
    Path("books").mkdir()
    write_corpus("books/zipf.txt", words=2_000, vocabulary=100, seed=5)
    text = block.text.replace("postgresql://me@db.example/shop", postgres.dsn)
    assert PASSWORD in text
    exec(compile(text, str(block), "exec"), {"__name__": "__main__"})
    assert Counter(dict(postgres.execute("SELECT * FROM word_counts"))) == expected_counts(Path("books/zipf.txt"))


def test_the_program_of_the_readme(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files come after the slot is killed; then the input is declared to be over."""
    (block,) = (block for block in all_blocks() if block.page == "README.md" and "to_postgres" in block.text)
    monkeypatch.chdir(tmp_path)
    Path("orders").mkdir()
    expected: Counter[tuple[str, datetime]] = Counter()

    def write(file: int) -> None:
        rows = [(f"shop {i % 5}", i, BEGIN + timedelta(seconds=i)) for i in range(file * 60, (file + 1) * 60)]
        for shop, amount, at in rows:
            expected[shop, at.replace(second=0)] += amount
        hidden = Path(f"orders/.{file}.json")
        texts = [json.dumps({"shop": shop, "amount": n, "at": at.isoformat()}) for shop, n, at in rows]
        hidden.write_text("\n".join(texts))
        hidden.rename(f"orders/{file}.json")

    def until_all_is_read(job: JobHandle) -> None:
        wait_until(lambda: bool(job.recoveries()), "a failover")
        for file in range(3, 6):
            write(file)
        wait_until(lambda: job.metrics()["operators"]["files"]["rows_out"] == 360, "all files")
        job.drain()
        job.await_finish(PATIENCE_S)
        assert [recovery["fallback"] for recovery in job.recoveries()] == [None]

    for file in range(3):
        write(file)
    text = block.text.replace("postgresql://me@db.example/shop", postgres.dsn)
    text = text.replace("job.await_finish()", "until_all_is_read(job)")
    exec(compile(text, str(block), "exec"), {"__name__": "__main__", "until_all_is_read": until_all_is_read})
    found = postgres.execute("SELECT shop, window_start, orders, amount FROM turnover")
    assert len(found) == 6 * 5 and {orders for _, _, orders, _ in found} == {12}
    assert {(shop, start): amount for shop, start, _, amount in found} == expected


PROGRAM = (
    SESSION
    + """env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.1, checkpoint_dir="checkpoints")
words = env.generate(lambda i: f"w{i % 37}", schema="word string", count=6_000, rate=float(sys.argv[2]), name="words")
counts = words.key_by("word").count(name="count")
counts.to_postgres(sys.argv[1], "every", name="every")
counts.to_postgres(sys.argv[1], "last", mode="upsert", key="word", name="last")
with env.execute("program", resume="auto") as job:
    job.await_finish()
"""
)


@pytest.mark.long
def test_a_driver_killed_again_and_again(postgres: PostgresServer, tmp_path: Path) -> None:
    """Each run is killed at some moment after it has committed more than the one before."""

    def committed() -> int:
        is_made = postgres.execute("SELECT to_regclass('every') IS NOT NULL") == [(True,)]
        return sum(every(postgres).values()) if is_made else 0

    kill_again_and_again(PROGRAM, tmp_path, postgres.dsn, committed, PASSWORD)
    assert_exact(postgres)
    assert postgres.execute("SELECT run FROM flinkplus_progress") == [(4,), (4,)]
