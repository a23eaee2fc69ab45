"""Names in files and messages that somebody else wrote lead nowhere but into the directory they are meant for."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from chain_backup.replication import frames
from chain_backup.zookeeper.errors import BadRecord
from chain_backup.zookeeper.records import unquote
from flinkplus.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    CorruptCheckpoint,
    CorruptState,
    OutputDirectoryError,
    PeerProtocolError,
    UnsafeName,
)
from flinkplus.graph import JobGraph, Node
from flinkplus.path_names import checked_name
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import START, SnapshotHandle
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.operations.access_file import Access, access_of, publish, running_jobs, write_access
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.spark_log import SparkFileLog
from flinkplus.state.durable.manifests import MANIFEST_MAGIC
from flinkplus.state.durable.seals import signed
from flinkplus.state.durable.storage import CheckpointStorage
from tests.handles import manifest_of

pytestmark = pytest.mark.security

JOB = {"name": "words", "fingerprint": "1"}
OUTSIDE = "../../victim"
NOT_ONE = ("", ".", "..", "a/b", "../x", "/x", ".x", "a\n", "a\0", "é", "a\\b", "x" * 201)
NOT_TWO = ("a", "a/", "/a", "../a", "a/..", "a/../b", "a//b", "a/b/c", "a/.b", "./a", "a/b\n", OUTSIDE)


def state_file(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "delta", "entries": 1, "bytes": 1, "checksum": "0" * 40, **more}


def staged(name: str) -> dict[str, Any]:
    return {
        "operators": {
            "out": {"rows_in": 0, "rows_out": 0, "staged": [{"name": name, "rows": 1, "bytes": 1, "checkpoint": 1}]}
        }
    }


BAD_HANDLES = tuple(
    {**START.to_json(), **change}
    for change in (
        {"files": [state_file(OUTSIDE)]},
        {"files": [state_file("a/1-1-1.sst", replaces=[[OUTSIDE, 1, "0"]])]},
        {"operator_state": staged(OUTSIDE)},
        {"operator_state": staged("_spark_metadata/0")},
    )
)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    made = CheckpointStorage(tmp_path / "checkpoints")
    made.ownership.prepare(JOB, resume=False)
    (tmp_path / "checkpoints/state").mkdir()
    return made


def forge(storage: CheckpointStorage, checkpoint: int, **manifest: Any) -> None:
    """What somebody writes who can write the directory: with a checksum that is right."""
    body = json.dumps({"format": 1, "checkpoint": checkpoint, "generation": 1, **manifest}).encode()
    folder = Path(storage.uri) / "checkpoints"
    folder.mkdir(exist_ok=True)
    (folder / f"{checkpoint:08d}.json").write_bytes(signed(MANIFEST_MAGIC, body, "", None, None))


def test_one_function_says_what_is_a_name() -> None:
    for name in ("a", "count+out[1]", "a%2Fb", "1-2-3.sst", "part-c00000001-s0-g1-0.parquet", "a b,c=d~", "x" * 200):
        assert checked_name(name) == name
    assert checked_name("count+out[1]/1-2-3.sst", 2) == "count+out[1]/1-2-3.sst"
    for name in NOT_ONE:
        with pytest.raises(UnsafeName):
            checked_name(name)
    for name in NOT_TWO:
        with pytest.raises(UnsafeName):
            checked_name(name, 2)
    for no_text in (None, 3, b"a", ["a"]):
        with pytest.raises(UnsafeName):
            checked_name(no_text)


@pytest.mark.parametrize("handle", BAD_HANDLES)
def test_a_manifest_that_names_what_is_elsewhere_is_refused(
    storage: CheckpointStorage, victim: Path, handle: dict[str, Any]
) -> None:
    forge(storage, 1, subtasks={"count[0]": handle})
    storage.manifests.write(manifest_of(2))
    with pytest.raises(CorruptCheckpoint, match="may become a path"):
        storage.manifests.read(1)
    assert storage.retention.drop(1) == [] and victim.read_text() == "precious"
    found = storage.manifests.latest_valid()
    assert found is not None and found[0] == 2


def test_a_manifest_that_commits_what_is_elsewhere_is_refused(storage: CheckpointStorage) -> None:
    files = staged(OUTSIDE)["operators"]["out"]["staged"]
    forge(storage, 1, subtasks={}, commits={"out": {"files": files, "rows": 1}})
    with pytest.raises(CorruptCheckpoint, match="may become a path"):
        storage.manifests.latest_valid()


def test_nothing_outside_the_store_is_read_or_written(storage: CheckpointStorage, victim: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsafeName):
        storage.state_files.download(StateFile(OUTSIDE, "base", 0, 1, ""), tmp_path / "out")
    with pytest.raises(UnsafeName):
        shared = StateFile("a/1-1-1.sst", "base", 0, 1, "", stored_as=OUTSIDE)
        storage.state_files.download(shared, tmp_path / "out")
    with pytest.raises(UnsafeName):
        storage.state_files.upload(victim, "../../other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "victim"]


@pytest.mark.parametrize("folder", ["state", "blobs", "checkpoints"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path, folder: str) -> None:
    precious = tmp_path / "home" / "a" / "1-1-1.sst"
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.ownership.prepare(JOB, resume=False)
    (tmp_path / "checkpoints" / folder).symlink_to(tmp_path / "home")
    with pytest.raises(CheckpointDirectoryError, match="symbolic link"):
        storage.ownership.prepare(JOB, resume=folder == "blobs" and "auto")
    assert precious.read_text() == "precious"


def order() -> PromotionOrder:
    return PromotionOrder(version=1, handle=START, received={}, marks={}, digests={}, determinants=[], ancestors={})


@pytest.mark.parametrize("handle", BAD_HANDLES)
def test_handles_in_messages_are_checked_when_they_arrive(handle: dict[str, Any]) -> None:
    with pytest.raises(CorruptState):
        SnapshotHandle.from_json(handle)
    good = json.dumps(START.to_json()).encode()
    messages: list[control.ControlMessage] = [
        control.Acknowledged(1, 1, "count[0]", START),
        control.Deploy(1, 1, {"count[0]": 0}, {}, {"count[0]": START}),
        control.Promote(1, 2, 0, 0.0, False, 1, {"count[0]": order()}),
    ]
    for message in messages:
        encoded = control.encode(message)
        assert good in encoded and control.decode(encoded) == message
        with pytest.raises(PeerProtocolError, match="may become a path"):
            control.decode(encoded.replace(good, json.dumps(handle).encode()))


@pytest.mark.parametrize("name", ["../x[0]", "/x[0]", "", ".x[0]", "a/b[0]", "a\n[0]"])
def test_subtasks_in_messages_are_checked_when_they_arrive(name: str) -> None:
    messages: list[control.ControlMessage] = [
        control.Chains({name: [1, [0, 1]]}),
        control.Deploy(1, None, {name: 0}, {}),
        control.Join(1, {}, {name: 1}),
        control.Fence(1, 2, {name: 1}),
        control.Promote(1, 2, 0, 0.0, False, 1, {name: order()}),
        control.Acknowledged(1, 1, name, START),
        control.Trigger(1, 1, [name]),
    ]
    for message in messages:
        with pytest.raises(PeerProtocolError, match="UnsafeName"):
            control.decode(control.encode(message))
    with pytest.raises(PeerProtocolError):
        parse_subtask(name)


@pytest.mark.parametrize("name", ["../1-1-1.sst", "", ".a", "a/1-1-1.sst", 3])
def test_files_in_frames_of_replication_are_checked_when_they_arrive(name: Any) -> None:
    topic = frames.Topic("count[0]", 1, 2, 3)
    told: dict[frames.FrameKind, dict[str, Any]] = {
        frames.FrameKind.OFFER: {"base": 1, "lacks": [name]},
        frames.FrameKind.WANT: {"files": [[name, 0]], "asked": 1},
        frames.FrameKind.CHUNK: {"name": name, "offset": 0, "asked": 1},
    }
    for kind, fields in told.items():
        with pytest.raises(PeerProtocolError):
            frames.decode(frames.encode(kind, 1, 0, topic, fields))
    with pytest.raises(PeerProtocolError):
        frames.decode(frames.encode(frames.FrameKind.STAGED, 1, 0, topic._replace(subtask="../x[0]")))


@pytest.mark.parametrize("step", ["%2E%2E%2Fx", "..", "", "%2Fetc", "a%00"])
def test_nodes_of_strangers_in_zookeeper_are_no_subtasks(step: str) -> None:
    with pytest.raises(BadRecord):
        unquote(step)


@pytest.mark.parametrize("path", ["..%2Fvictim", "..", "", "a%00", ".hidden"])
def test_the_list_of_output_names_files_of_the_output(tmp_path: Path, path: str) -> None:
    files = OutputFiles(str(tmp_path))
    log = SparkFileLog(files)
    log.create()
    line = {"size": 1, "isDir": False, "modificationTime": 1, "blockReplication": 1, "blockSize": 1, "action": "add"}
    told = json.dumps({"path": f"file://{tmp_path}/{path}", **line})
    (tmp_path / log.layout.file(log.layout.first_batch)).write_text(f"v1\n{told}")
    log.load()
    with pytest.raises(OutputDirectoryError, match="is no name of a file that can be listed"):
        log.last_batch()


@pytest.mark.parametrize("name", [".", "..", ".x", "a/b", "x" * 201])
def test_operators_have_names_that_may_become_paths(name: str) -> None:
    with pytest.raises(ConfigurationError, match="operator name"):
        JobGraph().add(Node(name, "sink", DiscardSink(name), pa.schema([])))


# --- whose job it is


def an_access(name: str) -> Access:
    driver = (os.getpid(), psutil.Process().create_time())
    return Access(f"job-{name}", name, "127.0.0.1:1", os.uname().nodename, driver, Credentials(b"key"))


def test_a_checkpoint_directory_cannot_have_another_job_commanded(storage: CheckpointStorage, tmp_path: Path) -> None:
    """Its writer points to the access file of another job of the same user."""
    (tmp_path / "flinkplus-other").mkdir()
    mine, other = an_access("mine"), an_access("other")
    path = write_access(tmp_path / "flinkplus-other", other)
    publish(storage, path, mine)
    with pytest.raises(ConfigurationError, match="it is that of job 'job-other'"):
        access_of(storage.uri)
    publish(storage, path, other)
    assert access_of(storage.uri) == other


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.parent / "id_rsa",
        lambda path: path.parent / ".." / "flinkplus-other" / path.name,
        lambda path: Path(path.name),
    ],
)
def test_a_checkpoint_directory_points_to_access_files_only(
    storage: CheckpointStorage, tmp_path: Path, change: Callable[[Path], Path]
) -> None:
    (tmp_path / "flinkplus-other").mkdir()
    other = an_access("other")
    path = write_access(tmp_path / "flinkplus-other", other)
    publish(storage, change(path), other)
    with pytest.raises(Exception, match="no job runs on the checkpoint directory"):
        access_of(storage.uri)


@pytest.mark.parametrize("how", ["link to the directory", "directory with a link to the file"])
def test_a_link_of_a_strangers_is_no_second_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Anybody may put a link into the temporary space, under any name that is free."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "flinkplus-mine").mkdir()
    path = write_access(tmp_path / "flinkplus-mine", an_access("mine"))
    strange = tmp_path / "flinkplus-a"
    if how == "link to the directory":
        strange.symlink_to(path.parent)
    else:
        strange.mkdir()
        (strange / path.name).symlink_to(path)
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(strange, 1, 1)
    assert [found for found, _ in running_jobs()] == [path]
