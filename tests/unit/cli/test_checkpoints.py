"""``flinkplus checkpoints``: tables for people, a document for programs, and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkplus import checkpoints
from flinkplus.cli.checkpoints import _age, _size
from flinkplus.runtime.job.signing import find_key, make_key
from flinkplus.state.durable.storage import CheckpointStorage
from tests.handles import manifest_of
from tests.typed import Command, typed_here


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


@pytest.fixture
def kept(tmp_path: Path) -> CheckpointStorage:
    """Two checkpoints, signed with the user's key."""
    kept = tmp_path / "kept"
    storage = CheckpointStorage(str(kept), key=find_key(None, str(kept), make=True))
    storage.ownership.prepare({"name": "w\x1b[31m", "fingerprint": "b"}, resume=False, job_id="job-1")
    storage.runs.begin(1)
    for number in (1, 2):
        storage.manifests.write(manifest_of(number))
    return storage


def test_tables(run: Command, kept: CheckpointStorage) -> None:
    code, out, err = run("checkpoints", kept.uri)
    assert (code, err) == (0, "") and "\x1b" not in out
    for text in ("w\\u001b[31m (job-1): 2 checkpoints", "readable", "aligned", "Operators of checkpoint 2"):
        assert text in out
    (damaged,) = Path(kept.uri, "checkpoints").glob("*2-*.json")
    damaged.write_bytes(b"")
    code, out, err = run("checkpoints", kept.uri, "--verify")
    assert (code, err) == (1, "") and "damaged" in out and "truncated" in out and "Operators of checkpoint 1" in out


def test_json_is_what_a_program_gets(run: Command, kept: CheckpointStorage) -> None:
    code, out, err = run("checkpoints", kept.uri, "--json")
    found = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert [one["number"] for one in found["checkpoints"]] == [1, 2] and found["job_id"] == "job-1"
    assert found.keys() == checkpoints(kept.uri).to_json().keys()


def test_the_key_decides_what_is_trusted(
    run: Command, kept: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "keys" / "other"
    make_key(other)
    code, out, _ = run("checkpoints", kept.uri, "--signing-key", other, "--json")
    assert code == 1 and {one["status"] for one in json.loads(out)["checkpoints"]} == {"untrusted"}
    code, _, err = run("checkpoints", kept.uri, "--signing-key", tmp_path / "none")
    assert code == 2 and "does not exist" in err
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.delenv("FLINKPLUS_KEY_FILE", raising=False)
    assert run("checkpoints", kept.uri)[0] == 0  # a user without a key: signatures are not checked
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("place", "reason"), [("none", "holds no job"), ("file", "cannot be read"), ("nonsense://x", "cannot be opened")]
)
def test_a_directory_that_is_none(run: Command, tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run("checkpoints", place if "://" in place else tmp_path / place)
    assert (code, out, err.count("\n")) == (2, "", 1) and reason in err


def test_it_needs_no_spark(kept: CheckpointStorage) -> None:
    text = f"import sys, flinkplus; flinkplus.checkpoints({kept.uri!r}); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False, timeout=60).returncode == 0


def test_numbers_for_people() -> None:
    assert [_age(s) for s in (None, 4.21, 200.0, 5 * 3600.0, 90_000.0, 1e6)] == [
        "-",
        "4.2 s",
        "3 min",
        "5.0 h",
        "25.0 h",
        "12 days",
    ]
    assert [_size(n) for n in (None, 9_999, 12_345, 1_234_567)] == ["-", "9,999", "12.3 kB", "1.2 MB"]
