"""``flinkplus list``, ``cancel`` and ``ui``: which jobs there are, the end of one, where its page is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkplus.cli.jobs import running as jobs
from flinkplus.runtime.operations.access_file import ACCESS_FILE, read_access
from flinkplus.runtime.operations.web.page import token_of
from tests.typed import Command, typed_here
from tests.unit.cli.test_operations import STATUS, Job


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "flinkplus-a").mkdir()
    made = Job(tmp_path / "flinkplus-a")
    yield made
    made.close()


def test_jobs_are_listed(job: Job, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("list", "--json")
    (found,) = map(json.loads, out.splitlines())
    assert code == 0 and found == {
        "name": "watched",
        "job_id": "abc",
        "pid": read_access(job.file).driver[0],
        "access": str(job.file),
        "state": "running",
        "parallelism": 2,
        "running_s": 12.0,
        "ui": "http://127.0.0.1:4040/",
        "checkpoint_dir": "/data",
    }
    monkeypatch.setenv("COLUMNS", "300")
    code, out, _ = run("list")
    assert code == 0 and all(word in out for word in ("watched", "running", "http://127.0.0.1:4040/", str(job.file)))
    job.close()
    code, out, _ = run("list", "--json")
    assert code == 0 and json.loads(out)["state"] == jobs.UNANSWERED, "its port is closed, its process is there"
    (tmp_path / "flinkplus-a" / ACCESS_FILE).unlink()
    assert run("list") == (0, "no running job of yours was found on this host\n", "")


def test_a_job_is_cancelled(job: Job, run: Command) -> None:
    assert run("cancel", "--access", job.file, "--wait", 0) == (0, "job watched is ending\n", "")
    assert run("cancel", "--access", job.file) == (0, "job watched has ended\n", "")
    code, _, err = run("cancel", "--access", job.file)
    assert code == 1 and "the job is over" in err


def test_an_end_that_takes_longer_is_not_done(job: Job, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_answers", lambda _access: True)
    assert run("cancel", "--access", job.file, "--wait", 0.01) == (1, "job watched is still ending\n", "")
    code, _, err = run("cancel", "--access", job.file, "--wait", -1)
    assert code == 2 and "--wait must be from 0" in err


def test_the_address_of_the_page(job: Job, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    token = token_of(read_access(job.file).credentials)
    assert run("ui", "--access", job.file) == (0, f"http://127.0.0.1:4040/#token={token}\n", "")
    assert run("ui", "--access", job.file, "--token") == (0, f"{token}\n", "")
    monkeypatch.setitem(STATUS["job"], "ui", None)
    code, _, err = run("ui", "--access", job.file)
    assert code == 1 and "serves no page" in err


def test_an_input_is_not_taken_for_the_place_of_the_page(run: Command) -> None:
    for command in ("wordcount", "resume"):
        code, _, err = run(command, "--ui", "books/")
        assert code == 2 and "'books/' is not HOST:PORT; put other arguments before --ui" in err
