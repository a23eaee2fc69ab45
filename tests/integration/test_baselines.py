"""The baselines for real and small: FlinkPlus always, Flink and Spark where Java programs can be compiled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.baselines.case import (
    EXCEPTION,
    FAILURES,
    FLINKPLUS,
    RECOVERY,
    SPARK,
    STEADY,
    TASKMANAGER,
    THROUGHPUT,
    Case,
)
from experiments.baselines.engines import engines, run_directory
from experiments.baselines.failures import drawn, failures_of
from experiments.baselines.java_tools import BaselineMissing, default_home
from experiments.baselines.jobs import JOBS, THREE_SUMS, WORDCOUNT
from flinkplus.corpus import write_corpus
from tests.integration.conftest import wait_until

pytestmark = pytest.mark.integration


def case(engine: str, job: str, measure: str, rate: float = 5_000.0, seconds: float = 1.0, settle: float = 1.0) -> Case:
    kinds = failures_of(engine) if measure == RECOVERY else ()
    return Case(
        engine=engine,
        job=job,
        parallelism=2,
        measure=measure,
        run=0,
        seconds=seconds,
        settle=settle,
        interval=0.5,
        rate=rate,
        failures=tuple(failure for kind in kinds for failure in drawn(kind, 1, 2, (1,))),
    )


def figures(given: Case, tmp_path: Path) -> list[dict[str, Any]]:
    engine = engines((given.engine,), default_home())[given.engine]
    try:
        engine.prepare(print)
    except BaselineMissing as missing:
        pytest.skip(str(missing))
    text = tmp_path / "text"
    write_corpus(text, 20_000, 2_000, 1)
    with run_directory(tmp_path) as directory:
        return engine.run(given, directory, text, threading.Event())


@pytest.mark.long
def test_latency_of_flinkplus(tmp_path: Path) -> None:
    (found,) = figures(case(FLINKPLUS, THREE_SUMS, STEADY, rate=2_000.0), tmp_path)
    assert 200 < found["rows_per_s"] < 20_000 and found["cpu_s_per_million"] > 0, found
    assert 0 <= found["latency_p50_ms"] <= found["latency_p99_ms"] < 20_000, found
    assert not list(tmp_path.glob("run-*")), "what a run made is gone"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_throughput_of_flinkplus(job: str, tmp_path: Path) -> None:
    (found,) = figures(case(FLINKPLUS, job, THROUGHPUT), tmp_path)
    assert found["rows_per_s"] > 1_000 and found["latency_p50_ms"] is None


@pytest.mark.long
@pytest.mark.slow
def test_recoveries_of_flinkplus(tmp_path: Path) -> None:
    found = figures(case(FLINKPLUS, WORDCOUNT, RECOVERY), tmp_path)
    assert [one["failure"] for one in found] == list(FAILURES)
    assert all(0 < one["recovery_ms"] < 20_000 and one["hit"] == 1 for one in found)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["flink-memory", "flink-rocksdb", "spark"])
@pytest.mark.parametrize("job", JOBS)
def test_throughput_and_latency_of_others(engine: str, job: str, tmp_path: Path) -> None:
    seconds = 10.0 if engine == SPARK else 3.0  # several micro-batches, on a busy machine as well
    (unlimited,) = figures(case(engine, job, THROUGHPUT, seconds=seconds, settle=5.0), tmp_path)
    assert unlimited["rows_per_s"] > 1_000 and unlimited["cpu_s_per_million"] > 0
    (steady,) = figures(case(engine, job, STEADY, rate=1_000.0, seconds=seconds, settle=5.0), tmp_path)
    assert 0 <= steady["latency_p50_ms"] <= steady["latency_p99_ms"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["flink-memory", "flink-rocksdb", "spark"])
def test_recoveries_of_others(engine: str, tmp_path: Path) -> None:
    found = figures(case(engine, WORDCOUNT, RECOVERY, rate=1_000.0, settle=5.0), tmp_path)
    assert [one["failure"] for one in found] == [EXCEPTION, TASKMANAGER]
    assert all(one["recovery_ms"] >= one["first_output_ms"] > 0 and one["hit"] == 2 for one in found)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["flinkplus", "flink-memory", "spark"])
def test_ctrl_c_leaves_nothing(engine: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "flinkplus", "experiment", "baselines", "--engines", engine, "--jobs", WORDCOUNT]
    command += ["--measures", RECOVERY, "--parallelism", "2", "--runs", "1", "--rate", "1000", "--out", str(out)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: any(tmp_path.rglob("noted-0.out")) or program.poll() is not None, "rows", 120)
        if program.poll() is not None and program.stderr is not None and b"javac" in (said := program.stderr.read()):
            pytest.skip(said.decode())
        below = psutil.Process(program.pid).children(recursive=True)
        assert below
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    finally:
        program.kill()
        program.communicate()
    _, left = psutil.wait_procs(below, 10)
    assert not left
    assert not list(tmp_path.glob("flinkplus-baselines-*"))
    assert json.loads((out / "baselines.json").read_text())["interrupted"] is True
