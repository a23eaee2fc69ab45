"""Removing files: names at once, the room of large ones in pieces, and never what somebody else still has."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flinkplus.state import removal
from flinkplus.state.removal import remove_file, remove_folder

PIECE = 1000


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """To what sizes files were cut."""
    found: list[int] = []
    cut: Callable[[int, int], None] = os.ftruncate

    def noted(handle: int, size: int) -> None:
        cut(handle, size)
        found.append(size)

    monkeypatch.setattr(removal, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(os, "ftruncate", noted)
    return found


def idle() -> None:
    """Wait until nothing is being removed."""
    deadline = time.monotonic() + 60
    while removal._remover._thread is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def large(path: Path) -> Path:
    path.write_bytes(bytes(3 * PIECE + 500))
    return path


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_large_file_is_given_back_in_pieces(tmp_path: Path, cuts: list[int]) -> None:
    before = open_files()
    remove_file(large(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == [], "gone at once"
    idle()
    assert cuts == [2500, 1500, 500]
    assert open_files() == before


def test_a_small_file_is_removed_as_it_is(tmp_path: Path, cuts: list[int]) -> None:
    (tmp_path / "x").write_bytes(bytes(PIECE))
    remove_file(tmp_path / "x")
    idle()
    assert list(tmp_path.iterdir()) == []
    assert cuts == []


def test_a_file_of_another_name_stays_whole(tmp_path: Path, cuts: list[int]) -> None:
    other = tmp_path / "other"
    os.link(large(tmp_path / "x"), other)
    remove_file(tmp_path / "x")
    idle()
    assert other.stat().st_size == 3 * PIECE + 500
    remove_file(other)
    idle()
    assert cuts == [2500, 1500, 500], "that was the last name"


def test_a_name_that_comes_at_the_last_moment_counts(
    tmp_path: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def late(path: Path, dir_fd: int | None = None) -> None:
        os.link(path, tmp_path / "other")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", late)
    remove_file(large(tmp_path / "x"))
    idle()
    assert (tmp_path / "other").stat().st_size == 3 * PIECE + 500
    assert cuts == []


def test_a_file_that_is_being_read_stays_whole(tmp_path: Path, cuts: list[int]) -> None:
    with large(tmp_path / "x").open("rb") as reader:
        remove_file(tmp_path / "x")
        idle()
        assert len(reader.read()) == 3 * PIECE + 500
    assert cuts == []


def test_without_leases_files_are_removed_as_they_are(
    tmp_path: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    before = open_files()
    remove_file(large(tmp_path / "x"))
    idle()
    assert (list(tmp_path.iterdir()), cuts, open_files()) == ([], [], before)


def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path, cuts: list[int]) -> None:
    outside = large(tmp_path / "outside")
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    large(folder / "inner" / "x")
    (folder / "small").write_bytes(b"1")
    (folder / "link").symlink_to(outside)
    (folder / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    remove_folder(folder)
    idle()
    assert list(tmp_path.iterdir()) == [outside]
    assert outside.stat().st_size == 3 * PIECE + 500
    assert cuts == [2500, 1500, 500]
    remove_folder(folder)


def test_what_is_not_there_or_no_file(tmp_path: Path) -> None:
    remove_file(tmp_path / "x")
    with pytest.raises(OSError, match=str(tmp_path)):
        remove_file(tmp_path)


def test_there_is_no_pause_when_much_waits(tmp_path: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "HURRY_FILES", 0)

    def asleep(_seconds: float) -> None:
        raise AssertionError("nobody has time for that")

    monkeypatch.setattr(removal, "time", type("Clock", (), {"monotonic": time.monotonic, "sleep": asleep}))
    remove_file(large(tmp_path / "x"))
    idle()
    assert cuts == [2500, 1500, 500]


def test_when_the_job_is_over_the_rest_goes_at_once(
    tmp_path: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    removal.hurry()  # nothing waits: that is for no other job
    before = open_files()
    over = iter([removal.hurry])
    clock = type("Clock", (), {"monotonic": time.monotonic, "sleep": lambda _: next(over, lambda: None)()})
    monkeypatch.setattr(removal, "time", clock)
    remove_file(large(tmp_path / "x"))
    idle()
    assert cuts == [2500]
    assert open_files() == before
    remove_file(large(tmp_path / "x"))
    idle()
    assert cuts == [2500, 2500, 1500, 500]
