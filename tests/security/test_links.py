"""Who may write in a directory of the job's puts links there: they lead the driver and the slots nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flinkplus.errors import CheckpointDirectoryError, ConfigurationError
from flinkplus.local_files import NoRegularFile, open_regular
from flinkplus.runtime.job.directory import LOCK_FILE, Claim
from flinkplus.runtime.operations.access_file import read_access
from flinkplus.sinks.files import OutputFiles
from flinkplus.state.durable.ownership import JOB_FILE
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.file_system import LocalDirectory
from tests.handles import manifest_of

pytestmark = pytest.mark.security

MINE = b"of the user's, and nobody else's\n"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of the user's elsewhere."""
    path = tmp_path / "home" / "profile"
    path.parent.mkdir()
    path.write_bytes(MINE)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_the_drivers_lock_is_no_link(own: Path, shared: Path, link: object) -> None:
    assert callable(link)
    link(own, shared / LOCK_FILE)
    with pytest.raises(CheckpointDirectoryError, match="is a link"):
        Claim(str(shared))
    assert own.read_bytes() == MINE


def test_only_its_owner_can_open_the_lock(shared: Path) -> None:
    (shared / LOCK_FILE).touch(0o644)
    claim = Claim(str(shared))
    assert (shared / LOCK_FILE).stat().st_mode & 0o777 == 0o600
    claim.release()


def test_a_lock_that_is_a_pipe_keeps_nobody_waiting(shared: Path) -> None:
    os.mkfifo(shared / LOCK_FILE)
    with pytest.raises(CheckpointDirectoryError, match="is a link or not a file"):
        Claim(str(shared))


@pytest.mark.parametrize("name", ["blobs/plan", "elsewhere/profile"])
def test_checkpoints_are_neither_written_nor_read_through_links(own: Path, shared: Path, name: str) -> None:
    (shared / "blobs").mkdir()
    (shared / "blobs/plan").symlink_to(own)
    (shared / "elsewhere").symlink_to(own.parent)
    directory = LocalDirectory(shared)
    for act in (
        lambda: directory.write(name, b"x"),
        lambda: directory.read(name),
        lambda: directory.put(own, name),
        lambda: directory.size(name),
    ):
        with pytest.raises(OSError, match="symbolic link"):
            act()
    with pytest.raises(OSError, match="symbolic link"):
        directory.delete_unfinished("elsewhere")
    directory.delete("blobs/plan")
    assert own.read_bytes() == MINE and not (shared / "blobs/plan").is_symlink()


def test_no_two_writes_have_the_same_temporary_file(shared: Path) -> None:
    """Who has seen the name of one can put nothing in the place of the next."""
    directory = LocalDirectory(shared)
    names: set[str] = set()
    for _ in range(2):
        directory.write("file", b"x", check=lambda: names.update(path.name for path in shared.glob("*.tmp")))
    assert len(names) == 2


def test_nothing_waits_for_a_pipe_and_no_device_is_read(shared: Path) -> None:
    storage = CheckpointStorage(shared)
    storage.ownership.prepare({"name": "a", "fingerprint": "b"}, resume=False)
    for checkpoint in (1, 2):
        storage.manifests.write(manifest_of(checkpoint))
    newest = max((shared / "checkpoints").iterdir())
    newest.unlink()
    os.mkfifo(newest)
    found = CheckpointStorage(shared).manifests.latest_valid()
    assert found is not None and found[0] == 1 and "no regular file" in found[2][0]
    (shared / ".runs").mkdir()
    os.mkfifo(shared / ".runs/00000001")
    with pytest.raises(CheckpointDirectoryError, match="no regular file"):
        storage.runs.look()
    os.unlink(shared / JOB_FILE)
    os.mkfifo(shared / JOB_FILE)
    with pytest.raises(CheckpointDirectoryError, match="no regular file"):
        storage.ownership.job()
    directory = LocalDirectory(shared)
    for act in (
        lambda: directory.fetch(JOB_FILE, shared / "copy"),
        lambda: list(directory.chunks(JOB_FILE)),
        lambda: OutputFiles(str(shared)).read(JOB_FILE),
        lambda: open_regular("/dev/zero"),
    ):
        with pytest.raises(NoRegularFile):
            act()
    os.mkfifo(shared / "access.json", 0o600)
    with pytest.raises(ConfigurationError, match="no regular file"):
        read_access(shared / "access.json")


@pytest.mark.parametrize("act", ["read", "size", "delete", "names", "write", "output", "move", "remove"])
def test_a_link_that_is_put_there_after_the_look_leads_nowhere(
    own: Path, shared: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last moment, before the system is asked for the file itself, its folder is replaced by a link."""
    (shared / "blobs").mkdir()
    (shared / "blobs/profile").write_bytes(b"of the job\n")
    directory, files = LocalDirectory(shared), OutputFiles(str(shared))
    acts: dict[str, Callable[[], object]] = {
        "read": lambda: directory.read("blobs/profile"),
        "size": lambda: directory.size("blobs/profile"),
        "delete": lambda: directory.delete("blobs/profile"),
        "names": lambda: directory.names("blobs"),
        "write": lambda: directory.write("blobs/profile", b"new"),
        "output": lambda: files.open_output("blobs/profile").close(),
        "move": lambda: files.move("blobs/profile", "blobs/other"),
        "remove": lambda: files.delete("blobs/profile"),
    }

    swapped: list[object] = []

    def swapping(call: Callable[..., Any]) -> Callable[..., Any]:
        def late(path: Any, *arguments: Any, **named: Any) -> Any:
            if not swapped and (isinstance(path, int) or "profile" in str(path)):
                swapped.append(path)
                os.rename(shared / "blobs", shared / "away")
                (shared / "blobs").symlink_to(own.parent)
            return call(path, *arguments, **named)

        return late

    with monkeypatch.context() as patch:
        for name in ("open", "stat", "unlink", "replace", "scandir"):
            patch.setattr(os, name, swapping(getattr(os, name)))
        found = acts[act]()
    assert swapped and own.read_bytes() == MINE and os.listdir(own.parent) == [own.name]
    assert found in (None, b"of the job\n", len(b"of the job\n"), ["blobs/profile"])


def test_a_hard_link_in_the_place_of_output_is_not_written_through(own: Path, shared: Path) -> None:
    os.link(own, shared / "open.txt")
    with OutputFiles(str(shared)).open_output("open.txt") as stream:
        stream.write(b"output")
    assert own.read_bytes() == MINE and (shared / "open.txt").read_bytes() == b"output"


def test_output_is_written_and_removed_in_its_directory_only(own: Path, shared: Path) -> None:
    (shared / "_staging").mkdir()
    (shared / "_staging/job").symlink_to(own.parent)
    (shared / "_staging/open.txt").symlink_to(own)
    files = OutputFiles(str(shared))
    for act in (
        lambda: files.entries("_staging/job"),
        lambda: files.open_output("_staging/open.txt"),
        lambda: files.open_output("_staging/job/new.txt"),
        lambda: files.delete("_staging/job/profile"),
        lambda: files.delete_dir("_staging/job"),
        lambda: files.move("_staging/job/profile", "part"),
    ):
        with pytest.raises(OSError, match="symbolic link"):
            act()
    files.delete("_staging/open.txt")
    assert own.read_bytes() == MINE and os.listdir(own.parent) == [own.name]
