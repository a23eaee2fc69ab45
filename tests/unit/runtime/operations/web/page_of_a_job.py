"""A job's page without a job: commands that are carried out in a thread of their own, and a status that is made up."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from flinkplus.config import Options
from flinkplus.errors import CommandRefused
from flinkplus.graph import JobGraph, Node
from flinkplus.operators.base.schema import parse_schema
from flinkplus.runtime.coordinator.commands.moves import RescaleCommand
from flinkplus.runtime.coordinator.record.status import Status
from flinkplus.runtime.operations.commands import Body, Commands, Later
from flinkplus.runtime.operations.web.page import JobPage, token_of
from flinkplus.runtime.operations.web.site import Site
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.tls import Certificates
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sources.generator import Generator

CREDENTIALS = Credentials(b"k" * 32)
TOKEN = token_of(CREDENTIALS)


def a_status(parallelism: int = 2) -> dict[str, Any]:
    """The status of a job with one vertex of each kind, which has failed over once."""
    phases = {"detect_ms": 1.5, "fence_ms": 10.0, "promote_ms": 5.0, "restore_ms": 2.5, "replay_ms": 30.0}
    move = {
        "failure": "slot",
        "subtasks": ["count[0]"],
        "restarted": ["count[0]"],
        "reason": "its process ended",
        "checkpoint": 4,
        "begin_s": 1_700_000_000.0,
        **phases,
        "registry_ms": 3.0,
        "recovery_ms": 49.0,
        "caught_up_ms": 60.0,
        "fallback": None,
    }
    return {
        "job": {
            "job_id": "1f0c3a5e9b77",
            "name": 'words <script>"x"</script>',
            "host": "here",
            "pid": 4711,
            "recovery": "standby",
            "guarantee": "exactly-once",
            "parallelism": parallelism,
            "replicas": 2,
            "checkpoint_interval_s": 1.0,
            "checkpoint_dir": "/tmp/kept",
            "restored_from": None,
            "ui": "http://127.0.0.1:1/",
        },
        "metrics": {
            "state": "running",
            "elapsed_s": 12.5,
            "running_s": 12.0,
            "operators": {"numbers": {"rows_in": 0, "rows_out": 100}, "gone": {"rows_in": 90, "rows_out": 0}},
            "committed_rows": {"gone": 80},
            "state_keys": 7,
            "state_bytes": 2048,
            "payload_bytes": 1000,
            "determinant_bytes": 100,
            "checkpoints_completed": 5,
            "checkpoints_aborted": 1,
            "savepoints_completed": 0,
            "failovers": 1,
            "handovers": 0,
            "fallbacks": 0,
            "recoveries": 1,
            "slot_restarts": 1,
            "refused_connections": 0,
            "malformed_frames": 0,
            "fenced_messages": 2,
            "copied_bytes": {"received": 10, "from_storage": 0, "kept": 0},
        },
        "slots": [
            {
                "slot": f"slot-{index}",
                "spare": False,
                "state": "working" if index else "away",
                "host": "here" if index else None,
                "pid": 4000 + index if index else None,
                "address": None,
                "restarts": 0,
                "heard_ms": 12.5 if index else None,
                "subtasks": 1,
                "standbys": 1,
            }
            for index in range(parallelism)
        ],
        "subtasks": [
            {
                "subtask": f"numbers+gone[{index}]",
                "vertex": "numbers+gone",
                "index": index,
                "slot": f"slot-{index}",
                "generation": 1,
                "state": "running" if index else "away",
                "rows_in": 0,
                "rows_out": 100 * index if index else None,
                "behind_rows": 5,
                "waiting_messages": 3,
                "keys": 7,
                "state_bytes": 1024,
                "busy_s": 1.5,
                "watermark_ms": 1_700_000_000_500 if index else None,
                "blocked": "",
            }
            for index in range(parallelism)
        ],
        "chains": [
            {
                "subtask": "numbers+gone[0]",
                "generation": 1,
                "newest": 5,
                "members": [
                    {"slot": "slot-1", "role": "head", "version": 5, "lag": 0, "catching_up": False},
                    {"slot": "slot-0", "role": "standby", "version": 3, "lag": 2, "catching_up": True},
                ],
            }
        ],
        "drained_hosts": [],
        "checkpoints": [
            {
                "id": 5,
                "status": "complete",
                "final": False,
                "mode": "aligned",
                "reason": "",
                "cause": "",
                "triggered_s": 1_700_000_001.25,
                "duration_ms": 120.0,
                "trigger_ms": 1.0,
                "alignment_ms": 2.0,
                "sync_ms": 3.0,
                "async_ms": 40.0,
                "durable_ms": 90.0,
                "chain_ms": None,
                "bytes_new": 512,
                "bytes_total": 4096,
                "keys": 7,
                "in_flight_bytes": 0,
            }
        ],
        "recoveries": [{"mode": "standby", **move}],
        "handovers": [],
        "rescaling": None,
        "rescales": [],
        "savepoints": [],
    }


@dataclass(frozen=True)
class StatusCommand:
    """The status."""


@dataclass(frozen=True)
class StuckCommand:
    """A command that is answered at the end of the job."""


class FakeJob:
    """A job that has a page. ``status``: what it reports; ``asked``: how often. ``soon``: as of ``JobPage.start``."""

    def __init__(self, linger_s: float = 0.0, host: str = "127.0.0.1", tls: Certificates | None = None) -> None:
        self.status, self.asked, self.rescaled_to = a_status(), 0, [0]
        self.stuck: list[Later] = []
        self.taken = False
        self.commands = Commands()
        self.commands.add(StatusCommand, lambda _request: self._report())
        self.commands.add(RescaleCommand, self._rescale)
        self.commands.add(StuckCommand, lambda _request: self._wait())
        self._actions: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        graph, schema = JobGraph(), parse_schema("n long")
        source = graph.add(Node("numbers", "source", Generator("numbers", lambda i: {"n": i}, "n long"), schema))
        graph.add(Node("gone", "sink", DiscardSink("gone"), schema), source)
        credentials = replace(CREDENTIALS, tls=tls)
        self.page = JobPage(Site(host, 0), Options(ui_linger=linger_s), credentials, "driver.example")
        self.soon = self._actions.put
        self.page.start(graph.fuse(), self.commands, self.soon, ("StatusCommand", Status))
        self.port = int(self.page.address.rstrip("/").rpartition(":")[2])

    def _report(self) -> Body:
        self.asked += 1
        return self.status

    def _rescale(self, request: RescaleCommand) -> Body:
        if request.parallelism > 8:
            raise CommandRefused("the job can have a parallelism from 1 to 8")
        self.rescaled_to.append(request.parallelism)
        return {"number": 1}

    def _wait(self) -> Later:
        self.stuck.append(Later(lambda later: later.give({"taken": True}) if self.taken else None))
        return self.stuck[-1]

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            action()

    def close(self) -> None:
        self.page.end(None)
        self._actions.put(None)
        self._thread.join()


@contextlib.contextmanager
def a_job(linger_s: float = 0.0, host: str = "127.0.0.1", tls: Certificates | None = None) -> Iterator[FakeJob]:
    job = FakeJob(linger_s, host, tls)
    try:
        yield job
    finally:
        job.close()


def ask(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the response. ``headers``: ``_`` for ``-``."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def command(port: int, name: str, body: Any, token: str = TOKEN, **headers: str) -> tuple[int, Any]:
    """Status and JSON of the response to a command."""
    given = {"Content_Type": "application/json", "Authorization": f"Bearer {token}", **headers}
    status, _, found = ask(port, "POST", f"/api/commands/{name}", json.dumps(body).encode(), **given)
    return status, json.loads(found)
