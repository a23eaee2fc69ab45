"""Working directories: what dead slots left goes, what living ones use stays."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkplus.runtime.host.scratch import LOCK_FILE, make_scratch, mark_running, remove_scratch, sweep, sweep_jobs
from flinkplus.state.left import take_over


def test_what_dead_slots_of_the_job_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import sys; from flinkplus.runtime.host.scratch import make_scratch; print(make_scratch(sys.argv[1], 1, '.'))"
    )
    for job in ("mine", "other"):
        subprocess.run(
            [sys.executable, "-c", code, job], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
    assert len(list(tmp_path.iterdir())) == 2
    mine = make_scratch("mine", 0, str(tmp_path))
    left = sorted(path.name.split("-")[1] for path in tmp_path.iterdir())
    assert left == ["mine", "mine", "other"], "the next process of slot 1 has a use for it"
    sweep("mine", tmp_path)
    left = sorted(path.name.split("-")[1] for path in tmp_path.iterdir())
    assert left == ["mine", "other"] and mine.path.is_dir(), "the process that made it lives"
    remove_scratch(mine)
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == ["other"]


MAKE_AND_STAY = (
    "import sys; from flinkplus.runtime.host.scratch import make_scratch; made = make_scratch('mine', 1, sys.argv[1])\n"
    "print('made', flush=True); sys.stdin.read()"
)


def test_a_living_slot_of_another_container_keeps_its_directory(tmp_path: Path) -> None:
    """The process has a number there that no process has here."""
    code = "import os; os.getpid = lambda: 2**22 - 1\n" + MAKE_AND_STAY
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as slot:
        assert slot.stdout is not None and slot.stdout.readline() == b"made\n"
        (theirs,) = tmp_path.iterdir()
        mine = make_scratch("mine", 0, str(tmp_path))
        assert sorted(tmp_path.iterdir()) == sorted([theirs, mine.path])
        slot.kill()
    sweep("mine", tmp_path)
    assert list(tmp_path.iterdir()) == [mine.path]
    remove_scratch(mine)


def test_a_directory_without_a_lock_file_is_of_a_process_that_died_early(tmp_path: Path) -> None:
    (tmp_path / "flinkplus-mine-slot-1-abc").mkdir()
    sweep("mine", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_sweep_that_comes_between_takes_no_directory_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdtemp = tempfile.mkdtemp
    swept: list[str] = []

    def make(**where: str) -> str:
        path = mkdtemp(**where)
        if len(swept) < 2:
            swept.append(path)
            sweep("mine", tmp_path)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    mine = make_scratch("mine", 0, str(tmp_path))
    assert len(swept) == 2 and list(tmp_path.iterdir()) == [mine.path] and (mine.path / LOCK_FILE).exists()
    remove_scratch(mine)


def test_without_locks_no_slot_is_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    one, other = make_scratch("mine", 0, str(tmp_path)), make_scratch("mine", 1, str(tmp_path))
    sweep("mine", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([one.path, other.path])
    one.close()
    remove_scratch(other)
    assert list(tmp_path.iterdir()) == [one.path]


def contents(left: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in left.iterdir()}


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process of slot 1, and its directory, with files in it."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_STAY, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"made\n"
        (path,) = tmp_path.iterdir()
        for name in ("files/1-1-1.sst", "files/1-2-2.sst.tmp", "replica/1-1-1.sst", "replica/1-3-1.sst.part"):
            (path / "count[0]" / name).parent.mkdir(parents=True, exist_ok=True)
            (path / "count[0]" / name).write_bytes(b"half")
        for name in ("count[1]/replica/1-3-1.sst", "count[1]/left/1-2-1.sst", "count[1]/db-1-1/taken-1.sst"):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(name.encode())
        (path / "count[1]/replica/9-9-9.sst").symlink_to("/etc/passwd")
        (path / "count[2]").symlink_to(path / "count[1]")
        yield process, path
        process.kill()


def test_a_successor_takes_over_the_state_files_of_a_dead_process(
    tmp_path: Path, slot: tuple[subprocess.Popen[bytes], Path]
) -> None:
    process, _theirs = slot
    process.kill()
    process.wait()
    mine = make_scratch("mine", 1, str(tmp_path))
    assert list(tmp_path.iterdir()) == [mine.path]
    assert sorted(path.name for path in mine.path.iterdir()) == ["LOCK", "count[0]", "count[1]"]
    assert contents(mine.path / "count[0]/left") == {"1-1-1.sst": b"half"}
    assert contents(mine.path / "count[1]/left") == {
        "1-3-1.sst": b"count[1]/replica/1-3-1.sst",
        "1-2-1.sst": b"count[1]/left/1-2-1.sst",
    }
    mine.tidy()
    assert (mine.path / "count[0]/left").exists()
    mine.tidy()
    assert not list(mine.path.glob("*/left")), "what was not used by then is not needed"
    remove_scratch(mine)


def test_nothing_is_taken_from_a_process_that_hangs(tmp_path: Path, slot: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, theirs = slot
    process.send_signal(signal.SIGSTOP)
    mine = make_scratch("mine", 1, str(tmp_path))
    mine.tidy()
    mine.tidy()
    assert sorted(tmp_path.iterdir()) == sorted([mine.path, theirs])
    assert [path.name for path in mine.path.iterdir()] == ["LOCK"] and contents(theirs / "count[1]/left")
    process.kill()
    process.wait()
    mine.tidy()
    assert theirs.exists(), "a successor may come"
    mine.tidy()
    assert list(tmp_path.iterdir()) == [mine.path]
    remove_scratch(mine)


def test_nothing_is_taken_from_another_user(
    tmp_path: Path, slot: tuple[subprocess.Popen[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, theirs = slot
    process.kill()
    process.wait()
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    mine = make_scratch("mine", 1, str(tmp_path))
    assert sorted(tmp_path.iterdir()) == sorted([mine.path, theirs])
    assert take_over(theirs, mine.path) == 0
    monkeypatch.undo()
    remove_scratch(mine)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    scratch = make_scratch("mine", 0, str(tmp_path))
    shutil.rmtree(scratch.path)
    tmp_path.rmdir()
    remove_scratch(scratch)


@pytest.mark.parametrize("over", [False, True])
def test_what_a_dead_driver_left_is_removed_by_the_next_job(tmp_path: Path, over: bool) -> None:
    code = (
        "import sys; from pathlib import Path; from flinkplus.runtime.host.scratch import mark_over, mark_running\n"
        "job = Path(sys.argv[1]); job.mkdir(); handle = mark_running(job)\n"
        f"if {over}: mark_over(job)\n"
        "print('marked', flush=True); sys.stdin.read()"
    )
    job, mine, foreign = (tmp_path / name for name in ("flinkplus-dead", "flinkplus-mine", "flinkplus-foreign"))
    mine.mkdir()
    (foreign / "something").mkdir(parents=True)
    handle = mark_running(mine)
    command = [sys.executable, "-c", code, str(job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"marked\n"
        sweep_jobs(str(tmp_path))
        assert job.is_dir(), "its driver lives"
        driver.kill()
    sweep_jobs(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [foreign.name, mine.name]
    os.close(handle)
    sweep_jobs(str(tmp_path / "nowhere"))
