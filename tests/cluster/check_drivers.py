"""A driver that dies, hangs, or is not alone, on a cluster in namespaces: ``make cluster-check``.

Whatever happens to the driver in mid-job, ``flinkplus resume`` on another host finishes the job; its output holds every
pair (word, 1..n) exactly once. Of two drivers one runs the job.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from experiments.cluster.namespaces import JOB, Cluster, why_not
from flinkplus.corpus import write_corpus
from tests.integration.conftest import assert_exact, expected_counts, wait_until

REASON = why_not()
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}"),
]
WORKERS, PARALLELISM, REPEAT, WORDS, RATE = 3, 3, 4, 60_000, 4_000
MASTER, ENSEMBLE = "spark://master:7077", "zk-1:2181,zk-2:2181,zk-3:2181"
HALF = "spark.cores.max=6 spark.executor.memory=480m spark.deploy.defaultCores=6"
"""Room for two applications: one that hangs gives nothing back."""
CLI = (sys.executable, "-m", "flinkplus.cli.main")
END_S = 120.0
RECOVERIES = ("standby", "rollback")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=WORKERS) as cluster:
        write_corpus(str(cluster.volume("shared") / "zipf.txt"), WORDS, 3_000, 7)
        yield cluster


@pytest.fixture
def job(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[WordCount]:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    yield WordCount(cluster, name)
    wait_until(lambda: not slots(cluster), "no slot is left")


def spark_settings() -> dict[str, str]:
    conf = " ".join(f"--conf {entry}" for entry in HALF.split())
    return {"PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell"}


class WordCount:
    """A job at a steady rate, a minute of it, and what drivers of it say."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.shared = f"/mnt/flinkplus/{name}"
        self.directory = cluster.volume("shared") / name
        self.logs: dict[str, int] = {}

    def start(self, recovery: str = "standby") -> subprocess.Popen[bytes]:
        options = {
            "--repeat": REPEAT,
            "--rate": RATE,
            "--parallelism": PARALLELISM,
            "--replicas": 2,
            "--recovery": recovery,
            "--checkpoint-interval": 0.4,
            "--checkpoint-dir": f"{self.shared}/checkpoints",
            "--output": f"{self.shared}/out",
            "--zookeeper": ENSEMBLE,
            "--master": MASTER,
        }
        arguments = [str(part) for option in options.items() for part in option]
        ready = ["sh", "scripts/cluster/job.sh"]
        return self.run(JOB, *ready, *CLI, "wordcount", "/mnt/flinkplus/zipf.txt", "--no-check", *arguments)

    def resume(self, host: str) -> subprocess.Popen[bytes]:
        return self.run(host, *CLI, "resume", f"{self.shared}/checkpoints", "--master", MASTER)

    def run(self, host: str, *command: str) -> subprocess.Popen[bytes]:
        log = self.cluster.hosts[host].log
        self.logs[host] = log.stat().st_size if log.exists() else 0
        return self.cluster.hosts[host].start(command, spark_settings())

    def said(self, host: str) -> str:
        """What the last command on a host has said."""
        return self.cluster.hosts[host].log.read_bytes()[self.logs[host] :].decode(errors="replace")

    def checkpoints(self) -> list[int]:
        return sorted(
            int(path.stem.partition("-")[0]) for path in (self.directory / "checkpoints/checkpoints").glob("*.json")
        )

    def await_checkpoints(self, count: int, process: subprocess.Popen[bytes], host: str) -> None:
        """Wait for so many more."""
        newest = max(self.checkpoints(), default=0)

        def there() -> bool:
            assert process.poll() is None, self.said(host)
            return max(self.checkpoints(), default=0) >= newest + count

        deadline = time.monotonic() + END_S
        while not there():
            assert time.monotonic() < deadline, f"{self.said(host)}\n{self.cluster.last_words()}"
            time.sleep(0.05)

    def finished(self, process: subprocess.Popen[bytes], host: str) -> None:
        assert process.wait(END_S) == 0, f"{self.said(host)}\n{self.cluster.last_words()}"

    def assert_exact(self) -> None:
        expected: Counter[str] = expected_counts(self.cluster.volume("shared") / "zipf.txt", REPEAT)
        assert_exact(self.directory / "out", expected)
        assert not (self.directory / "out/_staging").exists()
        assert not list(self.directory.rglob("*.tmp"))


def slots(cluster: Cluster) -> list[psutil.Process]:
    """The Python processes of all workers."""
    found = []
    for worker in cluster.workers:
        for process in cluster.hosts[worker].processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "flinkplus.runtime" in " ".join(process.cmdline()):
                    found.append(process)
    return found


def scratch(cluster: Cluster) -> list[Path]:
    """What slots have on the disks of their hosts."""
    return [path for worker in cluster.workers for path in cluster.hosts[worker].scratch.glob("flinkplus-*")]


def drivers(cluster: Cluster) -> list[psutil.Process]:
    """The drivers on the job's host."""
    found = []
    for process in cluster.hosts[JOB].processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if CLI[2] in process.cmdline() and "python" in process.name():
                found.append(process)
    return found


def in_zookeeper(cluster: Cluster) -> list[str]:
    """Names of jobs there."""
    code = (
        "import json; from kazoo.client import KazooClient; k = KazooClient('zk-1:2181,zk-2:2181'); k.start(20); "
        "print(json.dumps(k.get_children('/flinkplus') if k.exists('/flinkplus') else [])); k.stop()"
    )
    command = cluster.hosts[JOB].command([sys.executable, "-c", code])
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    names: list[str] = json.loads(done.stdout)
    return names


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_driver_is_killed(job: WordCount, cluster: Cluster, recovery: str) -> None:
    first = job.start(recovery)
    job.await_checkpoints(5, first, JOB)
    assert slots(cluster) and scratch(cluster)
    (driver,) = drivers(cluster)
    driver.kill()
    assert first.wait(30) != 0
    wait_until(lambda: not slots(cluster), "the slots end by themselves")
    wait_until(lambda: not scratch(cluster), "and leave nothing behind")
    second = job.resume("worker-1")
    job.finished(second, "worker-1")
    assert "resumed job" in job.said("worker-1") and "from the start" not in job.said("worker-1")
    job.assert_exact()
    assert in_zookeeper(cluster) == []


def test_the_drivers_host_is_killed_and_two_resume_at_once(job: WordCount, cluster: Cluster) -> None:
    first = job.start()
    job.await_checkpoints(5, first, JOB)
    refused = job.resume("worker-1")
    assert refused.wait(END_S) == 1, job.said("worker-1")
    assert "end that driver first" in job.said("worker-1")
    job.await_checkpoints(2, first, JOB)
    cluster.kill(JOB)
    hosts = ("worker-2", "worker-3")
    both = {host: job.resume(host) for host in hosts}
    codes = {host: process.wait(END_S) for host, process in both.items()}
    cluster.revive(JOB)
    assert sorted(codes.values()) == [0, 1], {host: job.said(host) for host in hosts}
    (loser,) = [host for host in hosts if codes[host] == 1]
    (winner,) = [host for host in hosts if codes[host] == 0]
    assert f"on {winner}, which is alive; end that driver first" in job.said(loser)
    job.assert_exact()
    assert in_zookeeper(cluster) == []


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_driver_hangs_and_goes_on_as_a_zombie(job: WordCount, cluster: Cluster, recovery: str) -> None:
    first = job.start(recovery)
    job.await_checkpoints(5, first, JOB)
    cluster.pause(JOB)
    second = job.resume("worker-1")
    job.await_checkpoints(3, second, "worker-1")
    cluster.resume(JOB)
    assert first.wait(60) == 1, job.said(JOB)
    assert "another driver has taken" in job.said(JOB)
    job.finished(second, "worker-1")
    job.assert_exact()
    assert in_zookeeper(cluster) == []


def test_a_driver_is_cut_off_from_zookeeper(job: WordCount, cluster: Cluster) -> None:
    """It reaches its slots and the storage, and is replaced all the same."""
    first = job.start()
    job.await_checkpoints(5, first, JOB)
    for server in ("zk-1", "zk-2", "zk-3"):
        cluster.cut(JOB, server)
    second = job.resume("worker-1")
    assert first.wait(60) == 1, job.said(JOB)
    assert "another driver has taken" in job.said(JOB)
    job.finished(second, "worker-1")
    job.assert_exact()
