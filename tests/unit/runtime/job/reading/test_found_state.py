"""Which state is read, and what is refused: no program, no key, no checkpoint, no operator, damage, a running job."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from flinkplus import (
    CheckpointDirectoryError,
    CheckpointRemoved,
    ConfigurationError,
    CorruptCheckpoint,
    CorruptState,
    UntrustedState,
    read_state,
)
from flinkplus.api import state as api
from flinkplus.config import Options
from flinkplus.operators.base.operator import KeyedOperator, OperatorContext, OperatorInstance
from flinkplus.operators.keyed.keyed import Count
from flinkplus.operators.keyed.keyed_rows import Process
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.runtime.job.plan import Plan, plan_bytes
from flinkplus.runtime.job.reading.drawn_plan import _of_plans
from flinkplus.runtime.job.reading.found import FoundState, StateQuery, find_state
from flinkplus.runtime.job.signing import find_key
from flinkplus.state.durable.blobs import PLAN_BLOB
from flinkplus.state.durable.storage import CheckpointStorage
from tests.unit.runtime.job.reading.kept import KeptVertex, Row
from tests.unit.runtime.job.rescaling.vertices import MAX_PARALLELISM

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string())])
PROGRAM = """
import dataclasses
from flinkplus.operators.keyed.keyed_rows import Process

@dataclasses.dataclass
class Session:
    rows: int

def function(key, row, ctx):
    state = ctx.state("session")
    state.put(Session(state.get(Session(0)).rows + 1))
    ctx.state("plain").put([key])

operator = Process("op", ("k",), function, "k long")
"""


def rows_of(directory: Any, *args: Any, **options: Any) -> list[Row]:
    found: list[Row] = read_state(directory, *args, **{"trust": True, **options}).read_all().to_pylist()
    return found


def batch(numbers: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": n, "t": f"t{n}"} for n in numbers], schema=SCHEMA)


@pytest.fixture
def vertex(tmp_path: Path) -> Iterator[KeptVertex]:
    """Counts of 0 to 19 at parallelism 3: all 1 in the first checkpoint, all 2 in the second."""
    vertex = KeptVertex(Count("op", ("k",)), SCHEMA, tmp_path, 3)
    for _ in range(2):
        vertex.feed(batch(range(20)))
        vertex.store()
    yield vertex
    vertex.close()


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def test_neither_the_program_nor_its_classes_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_program.py").write_text(PROGRAM)
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        program = importlib.import_module("users_program")
        vertex = KeptVertex(program.operator, SCHEMA, tmp_path, 2)
        vertex.feed(batch([*range(5), 4]))
        vertex.store()
        vertex.close()
    del sys.modules["users_program"]
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(vertex.storage.blobs.get_signed(PLAN_BLOB).partition(b"\n")[2])
    rows = rows_of(vertex.directory, "op")
    sessions = {row["key"]["k"]: json.loads(row["value"]) for row in rows if row["state"] == "session"}
    assert sessions[4] == {"class": "users_program.Session", "state": {"rows": 2}} and len(sessions) == 5
    assert [row["value"] for row in rows if row["state"] == "plain" and row["key"]["k"] == 3] == ["[3]"]
    assert "users_program" not in sys.modules


def test_of_flinkplus_only_classes_are_loaded() -> None:
    assert _of_plans("flinkplus.operators.keyed.keyed", "Count") is Count
    assert _of_plans("flinkplus.state.removal", "remove_folder") is None
    assert _of_plans("pyarrow.lib", "schema") is pa.schema and _of_plans("pyarrow.lib", "memory_map") is None


def test_functions_that_are_pickled_by_value_do_not_run(tmp_path: Path) -> None:
    class Trap:
        def __setstate__(self, state: Any) -> None:
            raise AssertionError("code of the plan was run")

        def __getstate__(self) -> Any:
            return {"a": 1}

    trap = Trap()
    operator = Process("op", ("k",), lambda key, row, ctx: ctx.state("a").put(str(trap)[:1]), "k long")
    vertex = KeptVertex(operator, SCHEMA, tmp_path, 1)
    vertex.feed(batch([1]))
    vertex.store()
    vertex.close()
    with pytest.raises(AssertionError, match="was run"):
        pickle.loads(vertex.storage.blobs.get_signed(PLAN_BLOB).partition(b"\n")[2])
    assert [row["value"] for row in rows_of(vertex.directory)] == ['"<"']


class Mine(KeyedOperator):
    """An operator of a user's, with states of each kind."""

    pages = False

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _MineInstance(ctx, self.pages)


class Paged(Mine):
    pages = True


class _MineInstance(OperatorInstance):
    def __init__(self, ctx: OperatorContext, pages: bool) -> None:
        state = ctx.keyed_state()
        self._objects = state.object_state(ctx.operator)
        self._numbers = state.number_state(f"{ctx.operator}/half", "float64")
        if pages:
            state.page_state(f"{ctx.operator}/pages").put_many([b"a"], [b"b"])

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        numbers = batch.column("k").to_pylist()
        keys = [(n + 2**63).to_bytes(8, "big") for n in numbers]
        self._objects.put_many(keys, [[n] for n in numbers])
        rows = self._numbers.indices(keys)
        self._numbers.scatter(rows, batch.column("k").to_numpy() / 2)
        yield batch


def test_an_operator_of_a_user_is_shown_as_it_is_stored(tmp_path: Path) -> None:
    vertex = KeptVertex(Mine("op", ("k",)), SCHEMA, tmp_path, 2)
    vertex.feed(batch([1, 4]))
    vertex.store()
    vertex.close()
    rows = rows_of(vertex.directory)
    found = sorted((row["key"], row["state"] or "", row["value"]) for row in rows)
    assert found == [
        ('{"k": 1}', "", "[1]"),
        ('{"k": 1}', "half", '{"value": 0.5}'),
        ('{"k": 4}', "", "[4]"),
        ('{"k": 4}', "half", '{"value": 2.0}'),
    ]
    assert {row["key"]["k"] for row in rows_of(vertex.directory, "op", key=4)} == {4}


def test_a_form_of_its_own_is_refused(tmp_path: Path) -> None:
    vertex = KeptVertex(Paged("op", ("k",)), SCHEMA, tmp_path, 2)
    vertex.feed(batch([1]))
    vertex.store()
    vertex.close()
    with pytest.raises(ConfigurationError, match="'op' keeps state 'op/pages' in a form of its own"):
        rows_of(vertex.directory)


def test_an_operator_whose_keys_are_not_known_is_refused(tmp_path: Path) -> None:
    """It is fused with another one, so that its rows are not split by its key."""
    vertex = KeptVertex(Mine("op", ("k",)), SCHEMA, tmp_path, 2)
    graph = vertex.graph
    graph.nodes[1].name, graph.nodes[2].name = "first", "op"
    plan = Plan("job", "job-1", graph, Options(max_parallelism=MAX_PARALLELISM))
    vertex.storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))
    vertex.feed(batch([1]))
    vertex.store()
    vertex.close()
    with pytest.raises(ConfigurationError, match=r"'op' is of a class .* select another operator"):
        rows_of(vertex.directory)


def test_each_checkpoint_has_its_state(vertex: KeptVertex) -> None:
    numbers = vertex.storage.manifests.checkpoints()
    for count, number in enumerate(numbers, 1):
        rows = rows_of(vertex.directory, "op", checkpoint=number)
        assert {row["value"]["count"] for row in rows} == {count} and {row["checkpoint"] for row in rows} == {number}
        assert sorted(row["key"]["k"] for row in rows) == list(range(20))
    assert {row["checkpoint"] for row in rows_of(vertex.directory)} == {numbers[-1]}
    missing = f"has no checkpoint 77; those there are: {', '.join(map(str, numbers))}"
    with pytest.raises(ConfigurationError, match=missing):
        rows_of(vertex.directory, checkpoint=77)


def test_any_file_system_and_uri(vertex: KeptVertex) -> None:
    wanted = rows_of(vertex.directory)
    other = fs.SubTreeFileSystem(str(vertex.directory.parent), fs.LocalFileSystem())
    assert rows_of("checkpoints", filesystem=other) == wanted
    assert rows_of(vertex.directory.as_uri()) == wanted and len(wanted) == 20


def test_what_is_not_there(vertex: KeptVertex, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'po' is not in the job; the operators with state are: op"):
        rows_of(vertex.directory, "po")
    with pytest.raises(ConfigurationError, match="'out' has no keyed state; the operators with state are: op"):
        rows_of(vertex.directory, "out")
    with pytest.raises(ConfigurationError, match="key column 'k' is int64, and 'x' cannot be read as that"):
        rows_of(vertex.directory, key="x")
    assert rows_of(vertex.directory, key=20) == []
    with pytest.raises(CheckpointDirectoryError, match="holds no job"):
        rows_of(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointDirectoryError):
        rows_of(tmp_path / "file")
    for number in vertex.storage.manifests.checkpoints():
        vertex.storage.manifests.remove(number)
    with pytest.raises(CheckpointDirectoryError, match="no complete checkpoint yet"):
        rows_of(vertex.directory)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damage_is_named(vertex: KeptVertex) -> None:
    older, newer = vertex.storage.manifests.checkpoints()
    manifest = vertex.storage.manifests.read(newer)
    file = vertex.directory / "state" / manifest.files[-1].name
    kept = file.read_bytes()
    damage(file)
    with pytest.raises(CorruptState, match=f"{file.name} does not match its checksum"):
        rows_of(vertex.directory)
    file.unlink()
    with pytest.raises(CorruptState, match=f"{file.name} is missing"):
        rows_of(vertex.directory)
    file.write_bytes(kept)
    damage(next(vertex.directory.glob(f"checkpoints/{newer:08d}*.json")))
    with pytest.raises(CorruptCheckpoint, match=f"{newer:08d}.*other checkpoints here: {older}"):
        rows_of(vertex.directory)
    assert len(rows_of(vertex.directory, checkpoint=older)) == 20
    damage(vertex.directory / "blobs" / "plan")
    with pytest.raises(CorruptCheckpoint, match="plan"):
        rows_of(vertex.directory, checkpoint=older)


def test_content_that_the_operator_does_not_store(vertex: KeptVertex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole files of another operator's state: an error that names the operator."""
    query = StateQuery(str(vertex.directory), "op")
    found = find_state(query, trust=True)
    (reading, *_) = found.readings
    wrong = Process("op", ("k",), print, "k long").state_views(SCHEMA, ["op/op"])
    object.__setattr__(wrong[0], "name", "op")
    object.__setattr__(reading.operators[0], "views", wrong)
    with pytest.raises(CorruptState, match="state 'op': the name of an entry"):
        list(reading.batches())


def test_signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    directory = str(tmp_path / "checkpoints")
    vertex = KeptVertex(Count("op", ("k",)), SCHEMA, tmp_path, 2)
    vertex.feed(batch(range(3)))
    vertex.store()
    vertex.close()
    with pytest.raises(UntrustedState, match=r"no code that is in it is run"):
        read_state(directory)
    assert not (tmp_path / "config").exists()
    key = find_key(None, directory, make=True)
    storage = CheckpointStorage(directory, key=key, trust=True)
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=True)
    storage.signed.job_id = "job-1"
    storage.manifests.read(storage.manifests.checkpoints()[0])
    storage.blobs.get_signed(PLAN_BLOB)
    storage.begin()
    storage.sign_again()
    assert read_state(directory).read_all().num_rows == 3
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    other.chmod(0o600)
    with pytest.raises(UntrustedState):
        read_state(directory, signing_key=other)
    assert read_state(directory, signing_key=other, trust=True).read_all().num_rows == 3
    damage(next(Path(directory).glob("checkpoints/*.json")))
    with pytest.raises(CorruptCheckpoint):
        read_state(directory)


def remove(vertex: KeptVertex, number: int) -> None:
    """As a job removes a checkpoint that is not retained any more."""
    manifests = vertex.storage.manifests
    names = {file.stored for file in manifests.read(number).files}
    manifests.remove(number)
    vertex.storage.state_files.remove(names - manifests.all_named())


def gone(handle: SnapshotHandle) -> SnapshotHandle:
    """Its files are not there any more: no newer checkpoint shares them."""
    return replace(handle, files=tuple(replace(file, stored_as=f"{file.stored}-gone") for file in handle.files))


def test_a_job_that_goes_on_meanwhile(vertex: KeptVertex, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest checkpoint is gone before it is read: the next one is read. A named one is an error."""
    found_by = find_state

    def found_too_late(*args: Any) -> FoundState:
        found = found_by(*args)
        if found.checkpoint == newest:
            vertex.rescale(2)
            vertex.store()
            for number in numbers:
                remove(vertex, number)
            return replace(found, readings=tuple(replace(one, handle=gone(one.handle)) for one in found.readings))
        return found

    numbers = vertex.storage.manifests.checkpoints()
    newest = numbers[-1]
    monkeypatch.setattr(api, "find_state", found_too_late)
    rows = rows_of(vertex.directory, "op")
    assert {row["checkpoint"] for row in rows} == {vertex.storage.manifests.checkpoints()[-1]} != {newest}
    assert {row["value"]["count"] for row in rows} == {2} and len(rows) == 20
    newest = vertex.storage.manifests.checkpoints()[-1]
    numbers = [newest]
    with pytest.raises(CheckpointRemoved, match=f"checkpoint {newest} was removed"):
        rows_of(vertex.directory, "op", checkpoint=newest)


def test_a_checkpoint_that_goes_while_it_is_read(vertex: KeptVertex) -> None:
    newest = vertex.storage.manifests.checkpoints()[-1]
    reader = read_state(vertex.directory, trust=True)
    assert reader.read_next_batch().num_rows
    for number in vertex.storage.manifests.checkpoints():
        remove(vertex, number)
    with pytest.raises(CheckpointRemoved, match=f"checkpoint {newest} was removed while it was read"):
        reader.read_all()


def test_a_reader_that_is_given_up_leaves_nothing(vertex: KeptVertex) -> None:
    reader = read_state(vertex.directory, trust=True)
    reader.read_next_batch()
    assert len(list(Path(tempfile.gettempdir()).iterdir())) == 1
    del reader


def test_entries_of_key_groups_that_the_subtask_does_not_own_do_not_count(vertex: KeptVertex) -> None:
    (reading, *_) = find_state(StateQuery(str(vertex.directory), "op"), trust=True).readings
    assert reading.owned == {"op": (0, 7)}
    narrow = replace(reading, owned={"op": (2, 4)})
    kept = [row for batch in reading.batches() for row in batch.to_pylist() if 2 <= row["key_group"] < 4]
    assert kept and [row for batch in narrow.batches() for row in batch.to_pylist()] == kept


def test_only_the_subtask_of_a_key_is_read(vertex: KeptVertex) -> None:
    query = StateQuery(str(vertex.directory), key=7)
    (reading,) = find_state(query, trust=True).readings
    assert [batch.num_rows for batch in reading.batches()] == [1]
    assert pickle.loads(pickle.dumps(reading)) == reading
