"""A running job among strangers: they learn nothing, change nothing, and make nobody fail over; they are counted."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.runtime.liveness import lifeline
from flinkplus.runtime.liveness.pulse_process import datagram
from flinkplus.runtime.operations import command_server as command_door
from flinkplus.runtime.transport.auth import credentials as credentials_module
from flinkplus.runtime.transport.auth.handshake import Connecting, slot_name
from flinkplus.runtime.transport.tcp import control as tcp_control
from flinkplus.runtime.transport.tcp import data as tcp_data
from flinkplus.runtime.transport.wire.frames import framed
from flinkplus.runtime.transport.wire.ports import COORDINATOR
from tests.integration.conftest import (
    PATIENCE_S,
    assert_each_count_once,
    running_job,
    wait_for_checkpoint,
    wait_until,
)

pytestmark = pytest.mark.integration

DATAGRAMS = 2_000
SECRET = b"a secret that is easy to look for in files"


def ports_of(pids: list[int]) -> list[int]:
    """The TCP ports that processes listen on."""
    return [
        connection.laddr.port
        for pid in pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def datagram_ports() -> set[int]:
    """The UDP ports of this process."""
    return {connection.laddr.port for connection in psutil.Process().net_connections("udp")}


def zookeeper_of(job: JobHandle) -> str:
    """The server that the job has for itself."""
    registry = running_job(job)._registry
    assert registry is not None
    return registry.hosts()


def lets_in(hosts: str) -> bool:
    """Whether a ZooKeeper server gives a stranger a session: who has one can end those of others."""
    client = KazooClient(hosts)
    try:
        client.start(1.0)
    except KazooTimeoutError:
        return False
    finally:
        client.stop()
        client.close()
    return True


def flood(port: int) -> None:
    """Datagrams of a stranger, so many that they fill a socket's buffer again and again."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(DATAGRAMS):
            sock.sendto(datagram("0-0123456789abcdef", number, b"guessed"), ("127.0.0.1", port))


def attack(port: int, held: list[socket.socket]) -> int:
    """Everything a stranger may try at one port; returns how many connections that took."""
    hellos = [
        Connecting(b"guessed", protocol, name, target)
        for protocol, name, target in (
            (tcp_data.PROTOCOL, slot_name(0, 1000), slot_name(1, 1)),
            (tcp_control.PROTOCOL, slot_name(1, 0), COORDINATOR),
            (lifeline.PROTOCOL, "1-0123456789abcdef", COORDINATOR),
            (command_door.PROTOCOL, command_door.SHELL, COORDINATOR),
        )
    ]
    said = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, b"\0\0\0\0" * 1000]
    said += [framed(hello.hello) + framed(b"p" * 32) for hello in hellos]
    said += [framed(hello.hello) for hello in hellos]
    for data in said:
        sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        held.append(sock)
        with contextlib.suppress(OSError):  # refused while it still sends: so it is to be
            sock.sendall(data)
    return len(said)


def start(spark: SparkSession, corpus: Path, out: Path, **options: Any) -> JobHandle:
    env = StreamEnvironment(spark, parallelism=3, checkpoint_interval=0.3, **options)
    words = env.read_text(str(corpus), repeat=10_000, name="lines").tokenize(name="tokenize").throttle(30_000.0)
    words.key_by("word").count(name="count").to_parquet(str(out), name="out")
    return env.execute("among-strangers")


@pytest.mark.parametrize(
    ("transport", "tls"),
    [
        pytest.param("tcp", False, id="secret"),
        pytest.param("tcp", True, id="tls", marks=pytest.mark.long),
        pytest.param("grpc", True, id="grpc-tls"),
    ],
)
def test_strangers_on_every_port_of_a_job(
    spark: SparkSession, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str, tls: bool
) -> None:
    monkeypatch.setattr(credentials_module, "make_secret", lambda: SECRET)
    mine, pulses = set(ports_of([os.getpid()])), datagram_ports()
    options = {"work_dir": str(tmp_path), "transport": transport, "tls": tls}
    held: list[socket.socket] = []
    tried = 0
    kept = str(tmp_path / "kept")
    with start(spark, corpus, tmp_path / "out", checkpoint_dir=kept, **options) as job:
        wait_for_checkpoint(job)
        slots = list(job.slot_pids().values())
        kept_files = [Path(folder, name) for folder, _, names in os.walk(tmp_path) for name in names]  # some vanish
        keys = [path for path in kept_files if path.is_file() and b"PRIVATE KEY" in read(path)]
        assert sorted(path.name for path in keys) == (["COMMANDS.json", "server.pem"] if tls else ["server.pem"])
        assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
        assert not [path for path in kept_files if path.is_file() and SECRET in read(path)]
        ports = [*ports_of(slots), *(set(ports_of([os.getpid()])) - mine)]
        assert len(ports) == 3 + 3, "each slot's; the coordinator's, that of the lifelines, and that of commands"
        (pulse_port,) = datagram_ports() - pulses
        attackers = [threading.Thread(target=flood, args=(pulse_port,))]
        attackers[0].start()
        for port in [*ports, int(zookeeper_of(job).rpartition(":")[2])]:
            attackers.append(threading.Thread(target=attack, args=(port, held)))
            attackers[-1].start()
        for attacker in attackers:
            attacker.join()
        tried = len(held) * len(ports) // (len(ports) + 1)
        before = job.metrics()["last_checkpoint"]
        wait_until(lambda: job.metrics()["last_checkpoint"] > before, "the job goes on")
        assert list(job.slot_pids().values()) == slots and job.recoveries() == []
        job.kill("count:1")
        wait_until(lambda: job.metrics()["failovers"] == 1, "a failover among strangers")
        assert not lets_in(zookeeper_of(job))
        for pid in [os.getpid(), *job.slot_pids().values()]:
            with contextlib.suppress(FileNotFoundError):  # the one that was killed may be gone by now
                assert SECRET not in Path(f"/proc/{pid}/cmdline").read_bytes()
                assert SECRET not in Path(f"/proc/{pid}/environ").read_bytes()
        time.sleep(0.2)  # two heartbeats: what slots have counted is known
        metrics = job.metrics()
        job.drain()
        job.await_finish(PATIENCE_S)
    for sock in held:
        sock.close()
    table = pq.read_table(tmp_path / "out")
    assert_each_count_once(table)
    assert table.num_rows == job.metrics()["operators"]["tokenize"]["rows_out"]
    # Those that say nothing are still held when this is counted, or only just not; at the four ports of gRPC there were
    # no calls, and of connections only those are counted that gRPC itself has not refused before.
    least = (tried if transport == "tcp" else tried * 2 // len(ports)) * 6 // 10
    assert least <= metrics["refused_connections"] <= tried
    assert metrics["refused_datagrams"] >= DATAGRAMS
    assert metrics["malformed_frames"] == 0
    assert [recovery["mode"] for recovery in job.recoveries()] == ["standby"]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has just been removed
        return b""
