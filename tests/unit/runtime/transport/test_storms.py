"""Storms of connections: strangers that connect and reset at once, and begin with TLS, as fast as they can.

A job's streams go on, and neither memory nor open files grow with how many came.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest

from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.wire.ports import FrameArrived, PeerConnected
from tests.unit.runtime.transport.test_control_planes import HEARTBEAT, REGISTER, Cluster, certificates, messages

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are counted as Linux does")

WARM_S, STORM_S = 0.2, 0.8
MOST_MORE_BYTES = 24 << 20
STORM = """
import contextlib, socket, ssl, struct, sys, time
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
until, ports, count = time.monotonic() + float(sys.argv[1]), [int(port) for port in sys.argv[2:]], 0
while time.monotonic() < until:
    port, kind = ports[count % len(ports)], count // len(ports) % 3
    count += 1
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if kind == 1:
            sock.settimeout(0.05)
            with tls.wrap_socket(sock):
                pass
        elif kind == 2:
            sock.sendall(b"PRI * HTTP/2.0")
print(count)
"""


@pytest.fixture(params=["tcp", "grpc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(request.param, Credentials(b"secret", tls=certificates()))
    yield made
    made.close()


def storm(cluster: Cluster, link: Any, one: Any, span_s: float, ports: list[str]) -> tuple[int, list[float]]:
    """How many connected, and how long each heartbeat and message took meanwhile."""
    heard = cluster.heard
    command = [sys.executable, "-I", "-c", STORM, str(span_s), *ports]
    took_s = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        while attacker.poll() is None:
            begun_s, beats, frames = time.monotonic(), len(messages(heard[0])), arrived(heard[3])
            link.send(HEARTBEAT)
            one.send(1, [b"there"])
            one.flush()
            cluster.until(partial(has_more, heard, beats, frames))
            took_s.append(time.monotonic() - begun_s)
        assert attacker.stdout is not None
        return int(attacker.stdout.read()), took_s


def has_more(heard: list[list[Any]], beats: int, frames: int) -> bool:
    return len(messages(heard[0])) > beats and arrived(heard[3]) > frames


def arrived(heard: list[Any]) -> int:
    return sum(len(event.frame) for event in heard if isinstance(event, FrameArrived))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket")  # one may break while it is wrapped
def test_a_storm_of_connections_changes_nothing(cluster: Cluster) -> None:
    link = cluster.link(1, cluster.ours)
    link.send(REGISTER)
    one, _, heard = cluster.plane(0, cluster.ours)
    other, address, _ = cluster.plane(1, cluster.ours)
    one.incarnation, other.incarnation = 3, 5
    one.connect({1: (5, address)})
    cluster.until(lambda: PeerConnected(1, 5) in heard and messages(cluster.heard[0]) == [REGISTER])
    ports = [str(parse_address(place)[1]) for place in (cluster.address, address)]

    storm(cluster, link, one, WARM_S, ports)
    bytes_before, files_before = psutil.Process().memory_info().rss, open_files()
    count, took_s = storm(cluster, link, one, STORM_S, ports)
    assert count > 20 and took_s, "each report and frame arrived during the storm"
    assert psutil.Process().memory_info().rss - bytes_before < MOST_MORE_BYTES
    cluster.until(lambda: open_files() <= files_before + 20)
