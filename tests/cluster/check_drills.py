"""Hosts that die, hang and are cut off in every way, on a cluster in namespaces: ``make cluster-check``.

Whatever happens, every pair (word, 1..n) is in the output exactly once, and the failure is noticed in time. What is
measured stands in ``docs/cluster.md``; the limits here leave room for a machine that is busy with other things.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.cluster.control import ControlServer
from experiments.cluster.namespaces import Cluster, why_not
from flinkplus.corpus import write_corpus
from tests.integration.cluster_job import REPEAT
from tests.integration.conftest import assert_exact, expected_counts

REASON = why_not()
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}"),
]
SOON_MS = 2_000
"""To notice: some 0.5 s on a machine that is free."""
SESSION_MS = 8_000
"""To notice that a ZooKeeper session of 4 s is over."""
NOTICED_MS = {
    "peers_cut": SOON_MS,
    "peer_not_heard": SOON_MS,
    "peers_cut_for_a_while": SOON_MS,
    "all_peers_cut": SOON_MS,
    "driver_cut": SOON_MS,
    "driver_not_heard": SOON_MS,
    "driver_does_not_hear": SOON_MS,
    "zookeeper_cut": SESSION_MS,
    "cut_off": SOON_MS,
    "hangs": SOON_MS,
    "zookeeper_servers": SOON_MS,
    "master": SOON_MS,
}


class Drills:
    """The program on the job's host."""

    def __init__(self, cluster: Cluster, corpus: Path, log: Path) -> None:
        self._cluster = cluster
        self._corpus = corpus
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._runs = 0

    def run(self, name: str, **options: Any) -> dict[str, Any]:
        """What happened; the output is exact. One that failed is replaced by a new one for the next."""
        if self._process is None:
            command = self._cluster.job_command([sys.executable, "-m", "tests.cluster.drills", str(self._corpus)])
            with self._log.open("a") as log:
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._runs += 1
        directory = f"{name}-{self._runs}"
        self._process.stdin.write(f"{name} {directory} {json.dumps(options)}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                expected = expected_counts(self._corpus, REPEAT)
                assert_exact(self._cluster.volume("shared") / directory / "out", expected)
                print({key: told[key] for key in ("drill", "noticed_ms", "recovered_ms")}, told["metrics"])
                return told
        self.close()
        for host in self._cluster.hosts:
            self._cluster.revive(host)
        pytest.fail(f"{self._log.read_text()[-3000:]}\n{self._cluster.last_words()}")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait(60)
            process.stdout.close()


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> None:
    """Hosts that were killed are started again in the middle, and stay: the look is at the end of all drills."""


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drills]:
    before = set(psutil.Process().children())
    directory = tmp_path_factory.mktemp("drills")
    corpus = directory / "zipf.txt"
    write_corpus(str(corpus), words=60_000, vocabulary=3_000, seed=7)
    with Cluster() as cluster, ControlServer(cluster, cluster.volume("shared") / "control"):
        made = Drills(cluster, corpus, directory / "log")
        yield made
        made.close()
    assert not {child for child in psutil.Process().children() if child.is_running()} - before


@pytest.mark.parametrize("name", NOTICED_MS)
def test_one_host_of_four_is_out_of_reach(drills: Drills, name: str) -> None:
    told = drills.run(name)
    metrics = told["metrics"]
    assert (metrics["failovers"], metrics["fallbacks"]) == (1, 0), metrics["fallback_reasons"]
    (noticed_ms,) = told["noticed_ms"]
    assert 0 < noticed_ms < NOTICED_MS[name], told["recoveries"]
    (recovery,) = told["recoveries"]
    assert len(recovery["subtasks"]) == 2, "those of one slot: of two that do not reach each other one stays"
    if name.startswith(("peer", "all_peers")):
        assert "do not reach each other" in recovery["reason"]


def test_two_hosts_of_four_die_at_once(drills: Drills) -> None:
    """With three replicas there is one left of each chain."""
    told = drills.run("two_hosts")
    assert told["metrics"]["failovers"] >= 1
    assert told["metrics"]["fallbacks"] == 0, told["metrics"]["fallback_reasons"]


@pytest.mark.parametrize("slots", [3, 4])
def test_two_hosts_hang_at_once(drills: Drills, slots: int) -> None:
    """Of three, too, though most are silent then."""
    told = drills.run("two_hang", parallelism=slots)
    metrics = told["metrics"]
    assert metrics["failovers"] >= 1 and metrics["fallbacks"] == 0, metrics["fallback_reasons"]
    assert all(0 < noticed_ms < SOON_MS for noticed_ms in told["noticed_ms"])
    moved = {subtask for recovery in told["recoveries"] for subtask in recovery["subtasks"]}
    assert {told["before"][subtask] for subtask in moved} == {told["hosts"][1], told["hosts"][-1]}


def test_a_driver_that_is_cut_off_for_a_while_gives_nobody_up(drills: Drills) -> None:
    told = drills.run("driver_cut_off")
    metrics = told["metrics"]
    assert (metrics["failovers"], metrics["fallbacks"], told["recoveries"]) == (0, 0, [])


def test_all_slots_of_a_host_that_others_do_not_reach_go_together(drills: Drills) -> None:
    told = drills.run("peers_cut", parallelism=8)
    moved = {subtask for recovery in told["recoveries"] for subtask in recovery["subtasks"]}
    where = {told["before"][subtask] for subtask in moved}
    assert len(where) == 1 and moved == {subtask for subtask, host in told["before"].items() if host in where}


def test_a_stream_with_tls_is_watched_as_well(drills: Drills) -> None:
    assert 0 < drills.run("peers_cut", tls=True)["noticed_ms"][0] < SOON_MS


@pytest.mark.parametrize("name", ["peers_cut", "peer_not_heard", "driver_not_heard", "hangs"])
def test_streams_over_grpc_are_watched_as_well(drills: Drills, name: str) -> None:
    told = drills.run(name, transport="grpc")
    assert told["metrics"]["failovers"] == 1
    assert 0 < told["noticed_ms"][0] < SOON_MS


@pytest.mark.parametrize("name", ["cut_off", "hangs"])
def test_a_zombie_has_no_effect(drills: Drills, name: str) -> None:
    """It goes on where it was; the others have refused what it still sends."""
    metrics = drills.run(name)["metrics"]
    assert metrics["fenced_messages"] + metrics["fenced_reports"] > 0


def test_a_host_that_is_drained_can_be_shut_down(drills: Drills) -> None:
    told = drills.run("drained")
    metrics = told["metrics"]
    assert (metrics["failovers"], metrics["fallbacks"], told["recoveries"]) == (0, 0, [])
    assert metrics["handovers"] >= 1
    assert told["hosts"][1] not in told["after"].values()


def test_a_spare_slot_stands_in_for_a_host(drills: Drills) -> None:
    metrics = drills.run("scaled", parallelism=3, tls=True)["metrics"]
    assert (metrics["failovers"], metrics["fallbacks"]) == (1, 0), metrics["fallback_reasons"]
    assert metrics["handovers"] >= 2


@pytest.mark.parametrize("name", ["hangs", "cut_off", "peers_cut_for_a_while"])
def test_a_host_out_of_reach_in_a_job_without_standbys(drills: Drills, name: str) -> None:
    told = drills.run(name, recovery="rollback")
    assert told["noticed_ms"][0] < SOON_MS
    assert {recovery["mode"] for recovery in told["recoveries"]} == {"rollback"}
