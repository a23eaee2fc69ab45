"""One contract for every file system that can hold checkpoints."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

import flinkplus.state.file_system
from flinkplus.state.file_system import ArrowDirectory, Files, LocalDirectory, open_directory


@pytest.fixture(params=["local", "arrow", "arrow without a root"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    root = tmp_path / "root"
    match request.param:
        case "local":
            made: Files = LocalDirectory(root)
        case "arrow":
            made = ArrowDirectory(fs.LocalFileSystem(), str(root))
        case _:
            made = ArrowDirectory(fs.SubTreeFileSystem(str(root), fs.LocalFileSystem()), "")
            root.mkdir()
    made.make_root()
    return made


def test_what_is_written_is_read(files: Files) -> None:
    files.write("a/b/c", b"one")
    files.write("a/b/c", b"two")
    assert files.read("a/b/c") == b"two"
    assert files.size("a/b/c") == 3
    assert b"".join(files.chunks("a/b/c")) == b"two"


def test_put_and_fetch_copy_whole_files(files: Files, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "from").write_bytes(content)
    files.put(tmp_path / "from", "state/x")
    files.fetch("state/x", tmp_path / "to")
    assert (tmp_path / "to").read_bytes() == content
    assert files.size("state/x") == len(content)


def test_what_cannot_be_read_is_not_put(files: Files, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        files.put(tmp_path, "state/x")  # a folder
    assert files.names("") == []


def test_what_cannot_be_read_to_its_end_is_not_put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(path: Path) -> Iterator[bytes]:
        yield b"the first chunk"
        raise OSError(errno.EIO, "the disk is bad")

    monkeypatch.setattr(flinkplus.state.file_system, "file_chunks", breaks)
    files = ArrowDirectory(fs.LocalFileSystem(), str(tmp_path / "root"))
    with pytest.raises(OSError, match="the disk is bad"):
        files.put(tmp_path / "from", "state/x")
    assert files.names("") == []


def test_names_are_relative_recursive_and_sorted(files: Files) -> None:
    for name in ("s/b/2", "s/a/1", "other", "s/0"):
        files.write(name, b"")
    assert files.names("s") == ["s/0", "s/a/1", "s/b/2"]
    assert files.names("nothing") == []
    assert files.names("") == ["other", "s/0", "s/a/1", "s/b/2"]


def test_missing_files(files: Files, tmp_path: Path) -> None:
    for attempt in (
        lambda: files.read("no"),
        lambda: files.size("no"),
        lambda: list(files.chunks("no")),
        lambda: files.fetch("no", tmp_path / "to"),
    ):
        with pytest.raises(FileNotFoundError):
            attempt()
    files.delete("no")


def test_deleted_is_gone(files: Files) -> None:
    files.write("a/x", b"1")
    files.delete("a/x")
    assert files.names("a") == []


def test_odd_names(files: Files) -> None:
    files.write("state/count+out[1]/1-1-1.sst", b"1")
    files.write("state/a%2Fb ü/1-1-1.sst", b"2")
    assert files.names("state") == ["state/a%2Fb ü/1-1-1.sst", "state/count+out[1]/1-1-1.sst"]
    assert files.read("state/a%2Fb ü/1-1-1.sst") == b"2"


def test_failed_local_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalDirectory(tmp_path / "root")
    files.write("a", b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write("a", b"new")
    (tmp_path / "from").write_bytes(b"new")
    with pytest.raises(OSError, match="No space"):
        files.put(tmp_path / "from", "a")
    assert files.names("") == ["a"]
    assert files.read("a") == b"old"


def test_a_uri_or_a_path_names_the_same_directory(tmp_path: Path) -> None:
    root = tmp_path / "with space"
    open_directory(str(root)).write("x", b"1")
    assert open_directory(root.as_uri()).read("x") == b"1"
    assert open_directory(root).read("x") == b"1"
    assert isinstance(open_directory("mock:///a"), ArrowDirectory)
    with pytest.raises(ValueError, match="nosuch"):
        open_directory("nosuch://a/b")


@pytest.mark.parametrize("folder", ["checkpoints", "checkpoints/of/a/subtask"])
def test_a_folder_that_cannot_be_listed_is_no_empty_one(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = LocalDirectory(tmp_path)
    files.write("checkpoints/1", b"one")
    files.write("checkpoints/of/a/subtask/2", b"two")
    scandir = os.scandir

    def fails(opened: int) -> object:
        if os.path.samestat(os.fstat(opened), (tmp_path / folder).stat()):
            raise OSError(errno.EIO, "the disk is bad", folder)
        return scandir(opened)

    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(OSError, match="the disk is bad"):
        files.names("checkpoints")
    assert files.names("state") == []


@pytest.mark.parametrize("folder", ["checkpoints", "checkpoints/of/a/subtask"])
def test_what_hdfs_does_not_answer_is_no_empty_folder(folder: str) -> None:
    """Arrow's HDFS answers that a path is not there when it cannot be asked for."""

    class AwayHdfs:
        type_name = "hdfs"

        def get_file_info(self, asked: str | fs.FileSelector) -> object:
            if isinstance(asked, str):
                return fs.FileInfo(asked, fs.FileType.NotFound)
            if not asked.allow_not_found:
                raise OSError(errno.EIO, "the name node does not answer")
            found = [] if folder == asked.base_dir else [fs.FileInfo(f"{asked.base_dir}/1", fs.FileType.File)]
            return found

    filesystem: Any = AwayHdfs()
    with pytest.raises(OSError, match="does not answer"):
        ArrowDirectory(filesystem, "").names("checkpoints")


def test_a_folder_that_is_not_there_is_empty(files: Files) -> None:
    files.write("a/b", b"one")
    assert files.names("nowhere") == []
    assert files.names("a/nowhere") == []


def test_the_file_systems_own_folder_is_nobodys(tmp_path: Path) -> None:
    files = LocalDirectory(tmp_path)
    files.write("lost+found/#1234", b"of no job")
    files.write("a", b"one")
    assert files.names("") == ["a"]


def test_a_file_is_linked_only_where_no_other_user_can_change_it(tmp_path: Path) -> None:
    files = LocalDirectory(tmp_path / "root")
    files.write("state/x", b"one")
    source, local = tmp_path / "root" / "state" / "x", tmp_path / "to"
    local.write_bytes(b"of before")
    assert files.link("state/x", local) and local.samefile(source)
    for mode in (0o664, 0o646):
        source.chmod(mode)
        assert not files.link("state/x", local) and not local.exists()
    source.chmod(0o644)
    os.symlink(source, source.with_name("link"))
    assert not files.link("state/link", local) and not local.exists()
    with pytest.raises(FileNotFoundError):
        files.link("state/gone", local)


def test_what_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    files = LocalDirectory(tmp_path / "root")
    files.write("state/x", b"one")
    monkeypatch.setattr(os, "link", refuse)
    assert not files.link("state/x", tmp_path / "to") and not (tmp_path / "to").exists()
    assert not ArrowDirectory(fs.LocalFileSystem(), str(tmp_path / "root")).link("state/x", tmp_path / "to")
