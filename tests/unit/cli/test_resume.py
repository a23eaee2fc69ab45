"""``flinkplus resume`` before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from flinkplus.cli import main, session
from flinkplus.config import Options
from flinkplus.errors import InsufficientSlots
from flinkplus.graph import JobGraph
from flinkplus.runtime.job import plan as planning
from flinkplus.runtime.job import start
from flinkplus.runtime.job.plan import Plan, plan_bytes
from flinkplus.runtime.job.signing import find_key
from flinkplus.state.durable.blobs import PLAN_BLOB
from flinkplus.state.durable.ownership import JOB_FILE
from flinkplus.state.durable.storage import CheckpointStorage
from tests.typed import Command, typed_here


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


def begun(root: Path) -> None:
    """A job whose driver has ended."""
    storage = CheckpointStorage(root, key=find_key(None, str(root), make=True))
    storage.ownership.prepare({"name": "words", "fingerprint": "1"}, resume=False, job_id="job-1")
    storage.blobs.put_signed(PLAN_BLOB, plan_bytes(Plan("words", "job-1", JobGraph(), Options())))


def test_the_directory_is_opened_and_each_file_is_read_once(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    root = tmp_path / "checkpoints"
    begun(root)
    opened = Counter[str]()
    made = CheckpointStorage

    def counted(*arguments: Any, **named: Any) -> CheckpointStorage:
        storage = made(*arguments, **named)
        read = storage.files.read

        def counted_read(name: str) -> bytes:
            opened[name] += 1
            return read(name)

        opened["storage"] += 1
        storage.files.read = counted_read  # type: ignore[method-assign]
        return storage

    def check_cluster(_spark: object, _slots: int, _queries: bool) -> None:
        raise InsufficientSlots("no room")

    monkeypatch.setattr(planning, "CheckpointStorage", counted)
    monkeypatch.setattr(start, "check_cluster", check_cluster)
    monkeypatch.setattr(session, "session", lambda _master: nullcontext())
    assert run("resume", root) == (main.EXIT_USAGE, "", "flinkplus: no room\n")
    assert opened == {"storage": 1, JOB_FILE: 1, f"blobs/{PLAN_BLOB}": 1}


def test_another_parallelism_needs_as_many_slots_and_no_more_than_the_job_can_have(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    begun(tmp_path / "checkpoints")

    def check_cluster(_spark: object, slots: int, _queries: bool) -> None:
        raise InsufficientSlots(f"no room for {slots}")

    monkeypatch.setattr(start, "check_cluster", check_cluster)
    monkeypatch.setattr(session, "session", lambda _master: nullcontext())
    at = ("resume", tmp_path / "checkpoints", "--parallelism")
    assert run(*at, "3") == (main.EXIT_USAGE, "", "flinkplus: no room for 3\n")
    code, _, told = run(*at, "129")
    assert code == main.EXIT_USAGE and "parallelism 129 is above max_parallelism, which is 128" in told
    code, _, told = run(*at, "3", "--master", "local[2]")
    assert code == main.EXIT_USAGE and "3" in told
    assert run(*at, "0")[0] == main.EXIT_USAGE


def test_no_key_is_made_for_a_directory_without_a_job(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FLINKPLUS_KEY_FILE", raising=False)
    code, _, told = run("resume", "--trust", tmp_path / "nowhere")
    assert (code, (tmp_path / "config").exists()) == (main.EXIT_USAGE, False) and "holds no job" in told
