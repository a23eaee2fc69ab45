"""Hosts in namespaces: what can be done to them, that nothing of them is left, and a job on a Spark cluster of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from experiments.cluster.control import Control, ControlServer
from experiments.cluster.namespaces import PREFIX, Cluster, why_not
from experiments.cluster.network import ClusterError
from tests.integration.cluster_job import REPEAT, WORKERS
from tests.integration.conftest import assert_exact, expected_counts, wait_until
from tests.integration.programs import program, script

REASON = why_not()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}"),
]

ECHO = """\
import socket, sys, threading
def echo(connection):
    while data := connection.recv(100):
        connection.sendall(data)
server = socket.create_server(("", 7000))
while True:
    threading.Thread(target=echo, args=server.accept()[:1], daemon=True).start()
"""
ASK = """\
import socket, sys
with socket.create_connection((sys.argv[1], 7000), 0.3) as connection:
    connection.sendall(b"x")
    sys.exit(connection.recv(1) != b"x")
"""
HOSTS = ("a", "b", "c")


def small(directory: Path) -> Path:
    """A compose file of three hosts that answer on port 7000, and a job's."""
    (directory / "echo.py").write_text(ECHO)
    (directory / "ask.py").write_text(ASK)
    services = "".join(f"  {name}:\n    command: python echo.py\n    volumes: [shared:/mnt/shared]\n" for name in HOSTS)
    job = "  job:\n    command: sleep infinity\n    volumes: [shared:/mnt/shared]\n"
    path = directory / "docker-compose.yml"
    path.write_text(f"services:\n{services}{job}volumes:\n  shared:\n")
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where clusters of this test have their directories; there must be none in the end."""
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return path


@pytest.fixture
def hosts(tmp_path: Path, temporary: Path) -> Iterator[Cluster]:
    with Cluster(compose=small(tmp_path)) as cluster:
        for name in HOSTS:
            wait_until(lambda name=name: hears("job", name, cluster), f"{name} answers")  # type: ignore[misc]
        yield cluster
    assert not list(temporary.iterdir())


def hears(asking: str, asked: str, cluster: Cluster) -> bool:
    """Whether a host gets an answer from another."""
    command = cluster.hosts[asking].command(["python", "-S", str(cluster._compose.parent / "ask.py"), asked])
    return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=20, check=False).returncode == 0


def test_hosts_die_hang_and_are_cut_off(hosts: Cluster) -> None:
    a, b, c = HOSTS
    name = subprocess.run(hosts.hosts[a].command(["cat", "/proc/sys/kernel/hostname"]), capture_output=True, check=True)
    assert name.stdout.decode().strip() == a
    subprocess.run(hosts.hosts[a].command(["touch", "/mnt/shared/seen"]), check=True)
    assert (hosts.volume("shared") / "seen").exists() and hosts.shared("/mnt/shared/seen").exists()

    hosts.cut(a, b)
    assert not hears(a, b, hosts) and not hears(b, a, hosts) and hears(a, c, hosts) and hears(c, b, hosts)
    hosts.network.heal()
    assert hears(a, b, hosts)
    hosts.network.lose(a, b)
    assert not hears(a, b, hosts) and hears(a, c, hosts)
    hosts.revive(a)
    assert hears(a, b, hosts)
    hosts.cut(a)
    assert not hears(a, c, hosts) and not hears(b, a, hosts) and hears(b, c, hosts)
    hosts.revive(a)
    assert hears(b, a, hosts)

    hosts.pause(b)
    assert all(process.status() == psutil.STATUS_STOPPED for process in hosts.hosts[b].processes())
    assert not hears(a, b, hosts)
    hosts.resume(b)
    assert hears(a, b, hosts)

    running = list(hosts.hosts[c].processes())
    assert len(running) >= 2
    hosts.kill(c)
    assert not any(process.is_running() for process in running)
    assert not hears(a, c, hosts) and hears(a, b, hosts)
    hosts.revive(c)
    wait_until(lambda: hears(a, c, hosts), "the host is back")
    hosts.pause(b)  # what is paused when the cluster ends, ends with it


WATCH = """\
import contextlib, socket, sys, time
from flinkplus.runtime.transport.tcp.silence import Silence
silence, was, looks = Silence(), None, 0
with socket.create_connection((sys.argv[1], 7000)) as connection:
    connection.setblocking(False)
    while True:
        with contextlib.suppress(BlockingIOError):
            connection.send(b"x")
        with contextlib.suppress(BlockingIOError):
            connection.recv(1000)
        looks += 1
        print(looks, int(silence.lasts_s(connection, time.monotonic(), 0.3) >= 0.3), flush=True)
        time.sleep(0.05)
"""


def test_what_the_network_loses_is_silent_and_a_host_that_hangs_is_not(hosts: Cluster, tmp_path: Path) -> None:
    (tmp_path / "watch.py").write_text(WATCH)
    command = hosts.hosts["a"].command([sys.executable, str(tmp_path / "watch.py"), "b"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        lines = watch.stdout

        def looks(count: int, until: bool = False) -> bool:
            """So many looks, or fewer if one finds it silent; whether that is so (``until``: until it is not)."""
            return any(next(lines).split()[1] != str(int(until)) for _ in range(count))

        assert not looks(10)
        hosts.pause("b")
        assert not looks(20), "its system answers"
        hosts.resume("b")
        hosts.lose("b", "a")
        assert looks(40)
        hosts.heal("a")
        assert looks(100, until=True), "it is heard again"
        hosts.lose("a", "b")
        assert looks(40)
        watch.kill()


def test_orders_are_given_through_a_socket(hosts: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "control"
    control = Control(str(path))
    with pytest.raises(ClusterError, match="no answer from the harness"):
        control.order("kill", "a")
    with ControlServer(hosts, path):
        running = list(hosts.hosts["a"].processes())
        control.order("kill", "a")
        assert not any(process.is_running() for process in running)
        control.order("revive", "a")
        wait_until(lambda: hears("b", "a", hosts), "the host is back")
        control.order("cut", "a", "b")
        assert not hears("b", "a", hosts)
        control.order("heal", "a")
        assert hears("b", "a", hosts)
        control.order("lose", "a", "b")
        assert not hears("b", "a", hosts) and hears("c", "a", hosts)
        with pytest.raises(ClusterError, match="there is no host 'd'"):
            control.order("pause", "d")
        with pytest.raises(ClusterError, match="'reboot' is none of"):
            control.order("reboot", "a")


HARNESS = f"""\
import sys, time
from pathlib import Path
from experiments.cluster.namespaces import Cluster
with Cluster(compose=Path({{compose!r}})) as cluster:
    cluster.pause("{HOSTS[1]}")
    print("up", *(p.pid for host in cluster.hosts.values() for p in host.processes()), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_of_a_harness_that_is_killed_is_left(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    compose = small(tmp_path)
    text = HARNESS.format(compose=str(compose))
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with program([sys.executable, script(tmp_path, text)], tmp_path, env=env) as harness:
        harness.wait_for(lambda: harness.out.endswith("\n"), "the cluster is up")  # the whole line, not its first word
        processes = [psutil.Process(int(pid)) for pid in harness.out.split()[1:]]
        assert len(processes) > len(HOSTS)
        os.kill(harness.process.pid, number)
        harness.wait()
        if number == signal.SIGKILL:  # the paused host has not noticed: it is for the next cluster to find it
            assert any(process.is_running() for process in processes)
            assert list(harness.temporary.glob(f"{PREFIX}*"))
            monkeypatch.setenv("TMPDIR", str(harness.temporary))
            monkeypatch.setattr(tempfile, "tempdir", None)
            wait_until(lambda: _next_cluster_removes(compose, harness.temporary), "the next cluster removes it")
        harness.assert_nothing_left(processes)


def _next_cluster_removes(compose: Path, directory: Path) -> bool:
    with Cluster(compose=compose):
        pass
    return not list(directory.iterdir())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_host_of_a_spark_cluster_is_killed_and_one_hangs(corpus: Path, temporary: Path) -> None:
    with Cluster() as cluster:
        control = cluster.volume("shared") / "control"
        command = cluster.job_command([sys.executable, "-m", "tests.integration.cluster_job", str(corpus)])
        with ControlServer(cluster, control):
            done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{cluster.last_words()}"
        told = json.loads((cluster.volume("shared") / "told.json").read_text())
        assert_exact(cluster.volume("shared") / "out", expected_counts(corpus, REPEAT))
    before, after, chains = told["before"], told["after"], told["chains"]
    assert sorted({before[f"count+out[{i}]"] for i in range(WORKERS)}) == cluster.workers, "slots are on all hosts"
    assert set(chains) == set(before)
    for subtask, members in chains.items():
        assert members[0] == before[subtask] and len(set(members)) == len(members) == 3, f"{subtask}: {members}"
    killed = before["count+out[1]"]
    assert after["count+out[1]"] in chains["count+out[1]"][1:], "a standby took over"
    assert killed not in after.values()
    metrics = told["metrics"]
    assert (metrics["failovers"], metrics["fallbacks"]) == (2, 0), metrics["fallback_reasons"]
    first, second = told["recoveries"]
    assert first["mode"] == second["mode"] == "standby"
    assert set(first["subtasks"]) == {subtask for subtask, host in before.items() if host == killed}
    assert {subtask for subtask, host in after.items() if host == told["hung"]} <= set(second["subtasks"])
    assert "hangs" in second["reason"] and second["begin_s"] > told["hung_s"]
    assert not list(temporary.iterdir())
