"""``flinkplus check-upgrade``: a program is run up to its ``execute``, compared, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkplus import CheckpointDirectoryError, StreamEnvironment
from flinkplus.config import Options
from flinkplus.protocol.program.description import Program
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.runtime.job.plan import Plan, identity_of, plan_bytes
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.job.upgrading.programs import put_program
from flinkplus.state.durable.blobs import PLAN_BLOB
from flinkplus.state.durable.storage import CheckpointStorage
from tests.typed import Command, typed_here
from tests.unit.api.drawing import environment, numbers

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from tests.unit.api.drawing import environment, numbers
env = environment(checkpoint_dir={directory!r})
rows = numbers(env, "rows")
counted = rows.key_by("k").count(name="count") if {operator!r} == "count" else rows.deduplicate("k", name="count")
counted.discard(name="out")
print("something of the program's own")
env.execute("words", resume="auto")
raise AssertionError("the program goes on")
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One checkpoint of a job that counts."""
    directory = tmp_path / "checkpoints"
    storage = CheckpointStorage(str(directory), key=find_key(None, str(directory), make=True))
    env = environment()
    numbers(env, "rows").key_by("k").count(name="count").discard(name="out")
    plan = Plan("words", "job-1", env.graph.fuse(), Options())
    identity = identity_of("words", plan.graph, plan.options)
    storage.ownership.prepare(identity, resume=False, job_id="job-1")
    storage.runs.begin(1)
    storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))
    put_program(storage, plan)
    storage.manifests.write(manifest(plan.graph.program(128)))
    return directory


def manifest(program: Program) -> Manifest:
    nothing = OperatorPart(rows_in=0, rows_out=0)
    handles = {}
    for vertex in program.vertices:
        state = OperatorState(operators=dict.fromkeys(vertex.split("+"), nothing))
        for name in (f"{vertex}[0]", f"{vertex}[1]"):
            handles[name] = SnapshotHandle(subtask=name, generation=1, checkpoint=1, files=(), operator_state=state)
    return Manifest(checkpoint=1, generation=1, subtasks=handles, program=program)


def program(tmp_path: Path, directory: Path, operator: str) -> Path:
    path = tmp_path / f"{operator}.py"
    path.write_text(PROGRAM.format(root=str(ROOT), directory=str(directory), operator=operator))
    return path


def content(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_what_fits_and_what_does_not(run: Command, tmp_path: Path, directory: Path) -> None:
    before = content(directory)
    code, out, _ = run("check-upgrade", program(tmp_path, directory, "count"))
    assert code == 0 and "unchanged" in out and "the program can be resumed" in out
    code, out, _ = run("check-upgrade", "--json", program(tmp_path, directory, "deduplicate"))
    assert code == 1
    found = json.loads(out)
    assert (found["job"], found["begun"], found["permitted"]) == ("words", True, False)
    assert {one["operator"]: one["verdict"] for one in found["changes"]}["count"] == "refused"
    assert content(directory) == before
    for path in (directory / "checkpoints").iterdir():
        path.unlink()
    upgrade = drawn(directory, "deduplicate").execute("words", dry_run=True)
    assert upgrade.permitted and upgrade.begun, "nothing has been kept yet"
    with pytest.raises(CheckpointDirectoryError, match=r"name 'words', this job has 'letters'.*renamed_from='words'"):
        drawn(directory, "count").execute("letters", dry_run=True)
    assert drawn(directory, "count").execute("letters", dry_run=True, renamed_from="words").permitted


def drawn(directory: Path, operator: str) -> StreamEnvironment:
    env = environment(checkpoint_dir=directory)
    rows = numbers(env, "rows")
    counted = rows.key_by("k").count(name="count") if operator == "count" else rows.deduplicate("k", name="count")
    counted.discard(name="out")
    return env


def test_a_directory_without_a_job_and_a_program_without_execute(run: Command, tmp_path: Path) -> None:
    code, out, _ = run("check-upgrade", program(tmp_path, tmp_path / "nowhere", "count"))
    assert code == 0 and "no job has begun" in out and not (tmp_path / "nowhere").exists()
    (tmp_path / "empty.py").write_text("import sys; sys.exit(3)")
    code, _, told = run("check-upgrade", tmp_path / "empty.py")
    assert code == 2 and "exit code 3 before it called execute" in told
    code, _, told = run("check-upgrade", tmp_path / "missing")
    assert code == 2 and "cannot be started" in told
