"""Directories, files and jobs that a command cannot use: a line that says why, and exit code 2."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from flinkplus.runtime.job.plan import HEADER, MAGIC, PLAN_FORMAT
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.operations.access_file import ACCESS_BLOB
from flinkplus.state.durable.blobs import PLAN_BLOB
from flinkplus.state.durable.storage import CheckpointStorage
from tests.typed import Command, typed_here

ACCESS = {
    "format": 1,
    "job_id": "j",
    "name": "n",
    "address": "127.0.0.1:1",
    "host": "elsewhere",
    "pid": 1,
    "created_s": 1.0,
    "key": "00" * 32,
    "tls": None,
}
HERE = {"host": socket.gethostname()}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


def refused(run: Command, *typed: object) -> str:
    code, out, err = run(*typed)
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("flinkplus: "), (code, out, err)
    return err


@pytest.mark.parametrize("command", [("resume",), ("status", "--checkpoint-dir")])
def test_a_checkpoint_directory_that_is_none(run: Command, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be read" in refused(run, *command, tmp_path / "file")
    (tmp_path / "kept" / "JOB.json").mkdir(parents=True)
    assert "cannot be read" in refused(run, *command, tmp_path / "kept")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
@pytest.mark.parametrize(("command", "blob"), [(("resume",), PLAN_BLOB), (("status", "--checkpoint-dir"), ACCESS_BLOB)])
def test_a_blob_that_is_no_file(
    run: Command, tmp_path: Path, command: tuple[str, ...], blob: str, make: Callable[[Path], None]
) -> None:
    job_in(tmp_path)
    (tmp_path / "blobs").mkdir()
    make(tmp_path / "blobs" / blob)
    assert "cannot be read" in refused(run, *command, tmp_path)


def job_in(directory: Path) -> CheckpointStorage:
    storage = CheckpointStorage(directory, key=find_key(None, str(directory), make=False))
    storage.ownership.prepare({"name": "a", "fingerprint": "b"}, resume=False, job_id="job-1")
    return storage


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's, and a job whose functions are in it."""
    (tmp_path / "functions_of_mine.py").write_text("def key(row): return row\n")
    monkeypatch.syspath_prepend(tmp_path)
    import functions_of_mine  # type: ignore[import-not-found]

    storage = job_in(tmp_path / "kept")
    storage.blobs.put_signed(PLAN_BLOB, HEADER + b"\n" + cloudpickle.dumps({"fn": functions_of_mine.key}))
    del sys.modules["functions_of_mine"]
    yield tmp_path
    sys.modules.pop("functions_of_mine", None)


def test_a_module_that_is_not_found_is_named(run: Command, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(plan)])
    told = refused(run, "resume", plan / "kept")
    assert "that is not found here (No module named 'functions_of_mine'): resume it" in told and "PYTHONPATH" in told
    assert told.count("functions_of_mine") == 1


@pytest.mark.parametrize("now", ["", "def key(row: return row", "raise RuntimeError('not today')"])
def test_a_module_that_has_changed(run: Command, plan: Path, now: str) -> None:
    (plan / "functions_of_mine.py").write_text(now)
    assert "cannot be loaded here" in refused(run, "resume", plan / "kept")


def test_a_plan_of_another_format(run: Command, plan: Path) -> None:
    assert "it holds dict" in refused(run, "resume", plan / "kept")


@pytest.mark.parametrize(
    "change",
    [
        {"address": "nonsense"},
        {"address": "127.0.0.1:99999"},
        {"address": "127.0.0.1:-1"},
        {"address": "127.0.0.1:0"},
        {"address": ":17"},
        {"address": "a\x00b:1"},
        {"address": "\ud800:1"},
        {"address": "x" * 300 + ":1"},
        {"tls": "/nonexistent"},
        {"tls": {"a": "b"}},
        {"key": ""},
        {"key": "xy"},
        {"pid": -5, **HERE},
        {"pid": 0, **HERE},
        {"pid": 10**30, **HERE},
        {"created_s": 10**400},
    ],
    ids=str,
)
def test_an_access_file_that_was_spoilt(run: Command, tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "access.json"
    path.write_text(json.dumps({**ACCESS, **change}))
    path.chmod(0o600)
    assert str(path) in refused(run, "status", "--access", path) or "tls" in change


def test_certificates_that_are_none(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    path.write_text(json.dumps({**ACCESS, "tls": {"authority": "x", "certificate": "y", "key": "z"}}))
    path.chmod(0o600)
    code, _, err = run("status", "--access", path)
    assert code in (1, 2) and err.count("\n") == 1


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        (b"\x80\x05cmodule.that.moved\nPlan\n.", "older than that"),
        (MAGIC + b"1\nwhatever", "1"),
        (MAGIC + b"99\n\x80\x05cmodule.to.come\nPlan\n.", "99"),
        (HEADER, None),
    ],
)
def test_a_plan_of_another_version_is_not_unpickled(
    run: Command, tmp_path: Path, stored: bytes, found: str | None
) -> None:
    job_in(tmp_path).blobs.put_signed(PLAN_BLOB, stored)
    told = refused(run, "resume", tmp_path)
    if found is None:
        assert "cannot be loaded here" in told
    else:
        assert f"the format of the plan in {tmp_path} is {found}, and this version reads {PLAN_FORMAT}" in told
        assert "with the version that wrote it" in told
