"""The life of a job seen from a program: begun, ended in every way there is, and nothing left of it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.traceback_utils import SCCallSiteSync

from flinkplus import StreamEnvironment
from flinkplus.errors import ConfigurationError, JobCancelled, OutputDirectoryError, SubtaskNotRunning
from flinkplus.runtime.job.homes import Home, _executors, at_home, homes_of
from flinkplus.runtime.job.launcher import POOL
from tests.integration.conftest import PATIENCE_S, assert_exact, expected_counts, wait_for_checkpoint, wait_until
from tests.integration.programs import program, script

pytestmark = pytest.mark.integration


def endless(spark: SparkSession, directory: Path, **options: Any) -> StreamEnvironment:
    """A WordCount without end over a vocabulary of ten, drawn and not started; everything of it below ``directory``."""
    work = directory / "work"
    work.mkdir(exist_ok=True)
    env = StreamEnvironment(spark, **{"parallelism": 2, "checkpoint_interval": 0.2, "work_dir": work, **options})
    words = env.generate(lambda i: f"w{i % 10}", schema="word string", rate=2_000, name="words")
    words.key_by("word").count(name="count").to_parquet(directory / "out", name="out")
    return env


def assert_over(spark: SparkSession, directory: Path, pids: list[int]) -> None:
    """No slot, no Spark job, no thread, no temporary file of the job."""
    assert list((directory / "work").iterdir()) == []
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    for pid in pids:  # Spark keeps its worker processes; what made one a slot must be gone
        wait_until(lambda pid=pid: not _listens(pid), f"process {pid} listens no more", 5)  # type: ignore[misc]
    wait_until(lambda: not _threads(), f"the end of {_threads()}", 5)


def _listens(pid: int) -> bool:
    try:
        connections = psutil.Process(pid).net_connections(kind="inet")
    except psutil.NoSuchProcess:
        return False
    return any(connection.status == psutil.CONN_LISTEN for connection in connections)


def _threads() -> list[str]:
    """Threads of jobs; the I/O thread belongs to the process."""
    names = (thread.name for thread in threading.enumerate())
    return sorted(name for name in names if name.startswith("flinkplus-") and name != "flinkplus-io")


# --- cancelling


def test_leaving_the_block_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    with endless(spark, tmp_path).execute("left") as job:
        wait_for_checkpoint(job)
        pids = list(job.slot_pids().values())
        assert len(pids) == 2 and not job.wait(0)
    assert job.done and job.state == "cancelled"
    assert_over(spark, tmp_path, pids)
    with pytest.raises(JobCancelled, match="cancelled"):
        job.await_finish()


def test_an_error_in_the_block_ends_the_job_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), endless(spark, tmp_path).execute("left") as job:
        wait_for_checkpoint(job)
        1 // 0  # noqa: B018
    assert job.done and job.state == "cancelled"
    assert_over(spark, tmp_path, [])


def test_cancel_while_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    job = endless(spark, tmp_path).execute("early")
    job.cancel()
    assert job.done and job.state == "cancelled"
    assert job.metrics()["committed_rows"] == {"out": 0}
    assert_over(spark, tmp_path, [])
    again = endless(spark, tmp_path).execute("again")  # the directory is as good as new
    wait_until(lambda: again.metrics()["committed_rows"]["out"] > 0, "rows in a complete checkpoint")
    again.cancel()
    assert pq.read_table(tmp_path / "out").num_rows == again.metrics()["committed_rows"]["out"]


def test_cancel_twice_and_from_several_threads(spark: SparkSession, tmp_path: Path) -> None:
    job = endless(spark, tmp_path).execute("twice")
    wait_for_checkpoint(job)
    threads = [threading.Thread(target=job.cancel) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    job.cancel()
    assert job.state == "cancelled"
    assert_over(spark, tmp_path, [])


def test_cancel_after_the_end_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    job = endless(spark, tmp_path).execute("finished")
    job.drain()
    job.await_finish(PATIENCE_S)
    job.cancel()
    job.await_finish()
    assert job.state == "finished"
    assert pq.read_table(tmp_path / "out").num_rows == job.metrics()["committed_rows"]["out"]


# --- waiting, asking, after the end


def test_await_finish_with_a_timeout(spark: SparkSession, tmp_path: Path) -> None:
    with endless(spark, tmp_path).execute("patience") as job:
        wait_for_checkpoint(job)
        with pytest.raises(TimeoutError, match=r"job 'patience' has not finished within 0\.05 s; it is running"):
            job.await_finish(0.05)
        assert not job.wait(0)
        last = job.metrics()["checkpoints_completed"]
        wait_for_checkpoint(job, last + 1)  # it was not disturbed
        assert job.state == "running"


def test_a_checkpoint_on_demand(spark: SparkSession, tmp_path: Path) -> None:
    with endless(spark, tmp_path, checkpoint_interval=None).execute("on demand") as job:
        wait_until(lambda: job.state == "running", "the start")
        job.checkpoint_now()
        wait_for_checkpoint(job)
        assert [c["status"] for c in job.checkpoints()] == ["complete"]
        rows = job.metrics()["committed_rows"]["out"]
        wait_until(lambda: rows == visible_rows(tmp_path / "out"), "the output")


def visible_rows(directory: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in directory.glob("*.parquet"))


def test_a_handle_after_the_end(spark: SparkSession, tmp_path: Path) -> None:
    job = endless(spark, tmp_path).execute("over")
    wait_for_checkpoint(job)
    job.cancel()
    before = job.metrics()
    job.drain()
    job.checkpoint_now()
    assert not job.kill("count:1")
    assert job.slot_pids() == {}
    assert job.metrics() == before
    assert job.recoveries() == []
    assert job.checkpoints()[0]["status"] == "complete"
    with pytest.raises(ConfigurationError):
        job.kill("cuont:1")


# --- the program ends

PROGRAM = """
import sys, warnings
from contextlib import ExitStack
from pathlib import Path
from pyspark.sql import SparkSession
from flinkplus import StreamEnvironment

def session(master, **conf):
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    builder = builder.config("spark.flinkplus.hangTimeout", "3")  # a busy machine may not run a process for 0.4 s
    if master:
        builder = builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()

def wordcount(spark, text, out, rate=None, repeat=1, **options):
    env = StreamEnvironment(spark, **options)
    words = env.read_text(text, repeat=repeat, name="lines").tokenize(name="tokenize")
    if rate:
        words.throttle(rate)
    words.key_by("word").count(name="count").to_parquet(out, name="out")
    return env

def wait_until(job, happened):
    import time
    until = time.monotonic() + 240
    while not happened(job.metrics()):
        assert not job.done and time.monotonic() < until, job.state
        time.sleep(0.01)

def wait_for(job, what):
    wait_until(job, lambda metrics: metrics[what] > 0)

def wait_for_checkpoint(job):
    wait_for(job, "checkpoints_completed")

def wait_for_committed_rows(job):
    wait_until(job, lambda metrics: metrics["committed_rows"]["out"] > 0)

TEXT, OUT = sys.argv[1:3]
"""


@pytest.mark.long
def test_the_interpreter_ends(corpus: Path, tmp_path: Path) -> None:
    """By an exit code and by an error, in two programs beside each other."""
    endings = ["sys.exit(3)", "raise RuntimeError('a bug of mine')"]
    with ExitStack() as running:
        runs = []
        for number, ending in enumerate(endings):
            text = f"""{PROGRAM}
spark = session("local[4]")
job = wordcount(spark, TEXT, OUT, rate=50_000, repeat=10_000, parallelism=2, checkpoint_interval=0.2).execute("left")
wait_for_committed_rows(job)
print("running", flush=True)
{ending}
"""
            own = tmp_path / str(number)
            own.mkdir()
            arguments = [sys.executable, script(own, text), str(corpus), str(own / "out")]
            runs.append((ending, own, running.enter_context(program(arguments, own))))
        for ending, own, run in runs:
            code = run.wait()
            run.assert_nothing_left()
            assert run.out == "running\n"
            assert code == (1 if "raise" in ending else 3)
            assert run.err.count("Traceback") == (1 if "raise" in ending else 0), run.err
            assert pq.read_table(own / "out").num_rows > 0
            assert not (own / "out" / "_staging").exists()


@pytest.mark.long
def test_the_session_is_stopped_under_a_job(corpus: Path, tmp_path: Path) -> None:
    text = f"""{PROGRAM}
import time
spark = session("local[4]")
job = wordcount(spark, TEXT, OUT, rate=50_000, repeat=10_000, parallelism=2, checkpoint_interval=0.2).execute("cut off")
wait_for_checkpoint(job)
spark.stop()
begun = time.monotonic()
try:
    job.await_finish(50)
except Exception as error:
    print(type(error).__name__, job.state, job.done, error, sep="|")
print(time.monotonic() - begun < 10)
"""
    with program([sys.executable, script(tmp_path, text), str(corpus), str(tmp_path / "out")], tmp_path) as run:
        assert run.wait(90) == 0, run.err
        run.assert_nothing_left()
    error, quick = run.out.splitlines()
    assert error.startswith("JobFailed|failed|True|")
    assert "Spark" in error and "stopped" in error
    assert quick == "True"
    assert "Traceback" not in run.err, run.err


# --- masters


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_spark_submit_and_a_local_master_that_retries_nothing(corpus: Path, tmp_path: Path) -> None:
    """With Spark's own log: a slot that is killed leaves nothing in it, one that cannot start a line."""
    text = f"""{PROGRAM}
spark = session(None)
spark.sparkContext.setLogLevel("WARN")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    job = wordcount(spark, TEXT, OUT, rate=30_000).execute("submitted")
print([str(w.message) for w in said if "FlinkPlus" in str(w.message) or "failure" in str(w.message)])
wait_for_checkpoint(job)
print(sorted(job.slot_pids()))
job.kill("count:1")
wait_for(job, "slot_restarts")
job.await_finish(240)
print(job.recoveries()[0]["mode"], job.metrics()["slot_restarts"])

Path("only_here").mkdir()
Path("only_here/shop.py").write_text("def price(row): return row.n * 2")
sys.path.insert(0, "only_here")
import shop
env = StreamEnvironment(spark, parallelism=2)
env.generate(lambda i: i, schema="n long", count=10).map(shop.price, schema="n long").discard()
try:
    env.execute("not everywhere").await_finish(240)
except Exception as error:
    print(type(error).__name__, type(error.__cause__).__name__, error, sep="|")
spark.stop()
"""
    conf = ["spark.flinkplus.parallelism=3", "spark.flinkplus.checkpointInterval=0.2", "spark.ui.enabled=false"]
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[4]"]
    submit += [part for setting in conf for part in ("--conf", setting)]
    arguments = [*submit, script(tmp_path, text), str(corpus), str(tmp_path / "out")]
    with program(arguments, tmp_path) as run:
        assert run.wait(400) == 0, run.err
        run.assert_nothing_left()
    warned, slots, recovered, *starts, failed = run.out.splitlines()  # it has one stream for all that Python says
    assert "\tat " not in run.err + run.out and "Traceback" not in run.err + run.out
    assert len(starts) <= 2 and all("cannot start" in line for line in starts), "a line for each slot"
    kind, cause, reason = failed.split("|")
    assert (kind, cause) == ("JobFailed", "SlotStartError")
    assert "cannot start on" in reason and "No module named 'shop'; install" in reason
    assert warned == "[]"
    assert slots == "[0, 1, 2]"
    assert recovered == "standby 1"
    assert_exact(tmp_path / "out", expected_counts(corpus))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_local_cluster(corpus: Path, tmp_path: Path) -> None:
    text = f"""{PROGRAM}
from flinkplus.errors import InsufficientSlots
import psutil
all_there = {{"spark_scheduler_minRegisteredResourcesRatio": "1.0", "spark_cores_max": "4"}}
spark = session("local-cluster[2,2,1024]", spark_executor_memory="1g", **all_there)
options = {{"rate": 12_000, "checkpoint_interval": 0.2}}
try:
    wordcount(spark, TEXT, OUT, parallelism=5, **options).execute("too wide")
except InsufficientSlots as error:
    print(error)
job = wordcount(spark, TEXT, OUT, parallelism=2, **options).execute("cluster")
wait_for_checkpoint(job)
executors = {{psutil.Process(pid).parents()[2].pid for pid in job.slot_pids().values()}}  # keeper, daemon, executor
print(len(executors))
job.kill("count:1")
wait_for(job, "slot_restarts")
job.await_finish(240)
print(job.recoveries()[0]["mode"], job.metrics()["slot_restarts"])
spark.stop()
"""
    with program([sys.executable, script(tmp_path, text), str(corpus), str(tmp_path / "out")], tmp_path) as run:
        assert run.wait(400) == 0, run.err
        run.assert_nothing_left()
    refused, executors, recovered = run.out.splitlines()
    assert "needs 5 slots but master 'local-cluster[2,2,1024]' runs 4 tasks at once" in refused
    assert (executors, recovered) == ("2", "standby 1")
    assert_exact(tmp_path / "out", expected_counts(corpus))


def test_a_start_that_fails_claims_nothing(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    checkpoints, taken = tmp_path / "checkpoints", tmp_path / "taken"
    taken.mkdir()
    (taken / "data.txt").write_text("mine")

    def draw(parallelism: int, out: Path) -> StreamEnvironment:
        env = StreamEnvironment(spark, parallelism=parallelism, checkpoint_dir=str(checkpoints))
        lines = env.from_spark(spark.read.text(str(corpus)))
        lines.tokenize().key_by("word").count().to_parquet(out)
        return env

    with pytest.raises(OutputDirectoryError):
        draw(2, taken).execute("first try")
    with draw(3, tmp_path / "out").execute("another name and parallelism") as job:
        job.await_finish(PATIENCE_S)
    assert_exact(tmp_path / "out", expected_counts(corpus))


def test_slots_have_homes_where_there_are_several_executors(spark: SparkSession) -> None:
    """A local master has none, and is none the slower for it; here the executors are made up."""
    context = spark.sparkContext
    assert homes_of(context, threading.Event()) == []
    assert at_home(context, 2, None).collect() == [2]
    rows = at_home(context, 1, Home("executor_worker-2_7"))
    rdd = rows._jrdd.rdd()
    assert [rdd.preferredLocations(part).mkString(",") for part in rdd.partitions()] == ["executor_worker-2_7"]
    assert rows.mapPartitionsWithIndex(lambda index, values: [(index, *values)]).collect() == [(0, 1)]
    assert [executor for _, executor in _executors(context, threading.Event())] == ["driver"]


# --- the user's session and jobs

CLUSTER_PATIENCE_S = 240.0


def settings_of(spark: SparkSession) -> dict[str, object]:
    """Everything of a session, of this thread in it and of this process that a job could change."""
    context = spark.sparkContext
    assert context._jvm is not None and context._jsc is not None
    log4j = context._jvm.org.apache.logging.log4j.LogManager
    return {
        "conf": sorted(context.getConf().getAll()),
        "sql": sorted(spark.conf.getAll.items()),
        "properties": dict(context._jsc.sc().getLocalProperties()),
        "python": (context.pythonExec, context.pythonVer, dict(context.environment)),
        "call sites": SCCallSiteSync._spark_stack_depth,
        "log level": log4j.getRootLogger().getLevel().toString(),
        "checkpoints": context.getCheckpointDir(),
        "process": (dict(os.environ), os.getcwd(), sys.getswitchinterval()),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
        "warnings": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers)),
    }


@pytest.mark.timeout(500)
def test_the_session_and_the_users_own_jobs_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Before a job, while it runs and a slot of it is killed, and after it."""
    context = spark.sparkContext
    context.setJobGroup("mine", "what I do")
    context.addJobTag("my-tag")
    context.setLocalProperty("spark.scheduler.pool", "my-pool")
    tries, go = tmp_path / "tries", tmp_path / "go"

    def failing(row: int) -> int:
        with tries.open("a") as file:
            file.write(f"{os.environ.get('FLINKPLUS_SLOT')}\n")
        raise ValueError("a bug of mine")

    def waiting(row: int) -> int:
        while not go.exists():
            time.sleep(0.01)
        return row

    settings_of(spark)  # Spark sets what it has put off when it is asked for the first time
    before = settings_of(spark)

    def changed() -> dict[str, object]:
        return {name: (before[name], now) for name, now in settings_of(spark).items() if now != before[name]}

    try:
        with endless(spark, tmp_path).execute("beside") as job, ThreadPoolExecutor(1) as pool:
            job.await_running(CLUSTER_PATIENCE_S)
            assert changed() == {}
            jobs, pids = sorted(context.statusTracker().getActiveJobsIds()), job.slot_pids()
            assert len(jobs) == 2, "a Spark job for each slot"
            with pytest.raises(Exception, match="a bug of mine"):
                context.parallelize([1], 1).map(failing).collect()
            assert tries.read_text() == "None\n", "once, in a worker that is no slot's"
            context.cancelJobGroup("mine")
            context.cancelJobsWithTag("my-tag")

            query = pool.submit(context.parallelize(range(40), 40).map(waiting).collect)  # has all other cores
            try:
                tracker = context.statusTracker()
                wait_until(lambda: len(tracker.getActiveJobsIds()) == 3, "the query runs", CLUSTER_PATIENCE_S)
                job.kill("count:1")
                wait_until(lambda: job.slot_pids().get(1, pids[1]) != pids[1], "slot 1 is back", CLUSTER_PATIENCE_S)
                assert not query.done(), "the slot did not have to wait for the query"
            finally:
                go.touch()
            assert query.result() == list(range(40))
            assert sorted(context.statusTracker().getActiveJobsIds()) == jobs, "to Spark nothing has failed"
            assert job.slot_pids()[0] == pids[0], "what the user cancelled was the user's"
            assert changed() == {}
        assert changed() == {}
    finally:
        context.clearJobTags()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", POOL):
            context._jsc.setLocalProperty(name, None)
    assert_over(spark, tmp_path, list(pids.values()))


def test_a_kill_right_after_execute_waits_for_its_target(spark: SparkSession, tmp_path: Path) -> None:
    job = endless(spark, tmp_path, recovery="rollback").execute("early kill")
    try:
        with pytest.raises(SubtaskNotRunning, match=r"count\+out\[1\] cannot be killed: it has not run within 0 s"):
            job.kill("count:1", timeout=0)
        with pytest.raises(TimeoutError, match="is not running after 0 s; it is starting"):
            job.await_running(0)
        assert job.kill("count:1")
        wait_until(lambda: len(job.recoveries()) == 1, "the slot is lost", CLUSTER_PATIENCE_S)
        job.await_running(CLUSTER_PATIENCE_S)
        assert job.state == "running"
        for wrong in (job.kill, lambda name: job.migrate(name, 0), lambda name: job.rows_out(name.partition(":")[0])):
            with pytest.raises(ConfigurationError, match=r"no operator is called 'cuont'.*did you mean 'count'"):
                wrong("cuont:1")
    finally:
        job.cancel()
    assert not job.kill("count:1")
    with pytest.raises(JobCancelled):
        job.await_running()
    assert_over(spark, tmp_path, [])
