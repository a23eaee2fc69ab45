"""The page of a job that does not start."""

from __future__ import annotations

import socket
import urllib.parse
from typing import Any, cast

import pytest

from flinkplus.config import Options
from flinkplus.runtime.job import start
from flinkplus.runtime.job.plan import Plan
from flinkplus.runtime.job.running import RunningJob
from flinkplus.runtime.operations.web.page import JobPage
from flinkplus.runtime.transport.auth.credentials import Credentials


class _Plan:
    options, output_id = Options(ui=True), "job-1"


def test_a_job_that_does_not_start_leaves_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "coordinator_hosts", lambda _spark: ("127.0.0.1", "driver"))
    found: list[JobPage] = []

    def run(_shells: Credentials, page: JobPage | None) -> RunningJob:
        assert page is not None
        found.append(page)
        raise OSError("no port for slots")

    spark: Any = None
    with pytest.raises(OSError, match="no port for slots"):
        start._run(spark, cast(Plan, _Plan), Credentials(b"k" * 32), run)
    place = urllib.parse.urlsplit(found[0].address)
    assert place.hostname is not None and place.port is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place.hostname, place.port), timeout=1)
