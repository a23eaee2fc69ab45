"""Failures of hosts, ordered from within the cluster: a socket of the harness, in a directory that both see.

A request is one line of JSON, ``{"order": "kill", "host": "worker-2"}``, and so is the answer: ``{"time_s": ...}``, the
moment right before it was carried out, or ``{"error": ...}``. The order ``usage`` changes nothing; its answer has the
host's memory and disk, as ``Cluster.usage`` gives it, under ``usage``. The order ``processes``, of no host, has what
each process of the whole cluster has used so far.

Rules: orders are carried out one after the other. A process that can open the socket may give them: it is the user's.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from experiments.cluster.namespaces import Cluster
from experiments.cluster.network import ClusterError
from experiments.cluster.processes import ProcessTable, Reading
from experiments.cluster.usage import kind_of
from flinkplus.errors import FlinkPlusError

ORDERS = ("kill", "pause", "resume", "revive", "cut", "lose", "heal")
USAGE, PROCESSES = "usage", "processes"
CONTROL_FILE = "control"
TIMEOUT_S = 60.0
MAX_REQUEST_BYTES = 10_000
LOOK_S = 0.3
"""How late a new process may be found, in seconds."""


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Another name of ``path``: those of sockets are at most 107 bytes long."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


class ControlServer:
    """A context manager: takes orders for ``cluster`` at ``path`` inside the block."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._table = ProcessTable(own=None, kind=kind_of, look_s=LOOK_S)
        self._table_lock = threading.Lock()
        carry_out = self._carry_out

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = carry_out(self.rfile.readline(MAX_REQUEST_BYTES))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        with _short(path) as address:
            self._server = socketserver.ThreadingUnixStreamServer(address, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="cluster-control", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _carry_out(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            order, host, peer = request["order"], request["host"], request.get("peer")
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"not a request: {error!r}"}
        if order not in (*ORDERS, USAGE, PROCESSES):
            return {"error": f"{order!r} is none of {', '.join(ORDERS)}"}
        try:
            if order == USAGE:
                return {"time_s": time.time(), USAGE: self._cluster.usage(host)}
            if order == PROCESSES:
                with self._table_lock:
                    return {"time_s": time.time(), PROCESSES: self._table.read()}
            with self._lock:
                time_s = time.time()
                targets = [host, peer] if order in ("cut", "lose") else host.split(",")
                getattr(self._cluster, order)(*targets)
        except (FlinkPlusError, OSError) as error:
            return {"error": str(error)}
        return {"time_s": time_s}


class Control:
    """The other end, on the job's host."""

    def __init__(self, path: str) -> None:
        self._path = path

    def order(self, order: str, host: str, peer: str | None = None) -> float:
        """Have it done; when that began, in seconds since the Unix epoch. ``kill`` takes several hosts, with commas
        between them. Raises ``ClusterError``.
        """
        return float(self._ask(order, host, peer)["time_s"])

    def usage(self, host: str) -> dict[str, float]:
        """Memory and disk of a host; see ``Cluster.usage``. Raises ``ClusterError``."""
        found: dict[str, float] = self._ask(USAGE, host)[USAGE]
        return found

    def processes(self) -> list[Reading]:
        """All processes of the cluster that are alive. Raises ``ClusterError``."""
        return [Reading(*fields) for fields in self._ask(PROCESSES, "")[PROCESSES]]

    def _ask(self, order: str, host: str, peer: str | None = None) -> dict[str, Any]:
        request = {"order": order, "host": host, "peer": peer}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(TIMEOUT_S)
                with _short(Path(self._path)) as address:
                    connection.connect(address)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    answer = json.loads(answers.readline() or b"{}")
        except (OSError, ValueError) as error:
            raise ClusterError(f"{order} {host}: no answer from the harness: {error}") from error
        if "time_s" not in answer:
            raise ClusterError(f"{order} {host}: {answer.get('error', 'no answer from the harness')}")
        answered: dict[str, Any] = answer
        return answered
