"""Working directories: what dead slots left goes, what living ones use stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flinkplus.runtime.scratch import make_scratch, mark_running, remove_scratch, sweep, sweep_jobs


def test_what_dead_slots_of_the_job_left_is_removed(tmp_path: Path) -> None:
    code = "import sys; from flinkplus.runtime.scratch import make_scratch; print(make_scratch(sys.argv[1], 1, '.'))"
    for job in ("mine", "other"):
        subprocess.run(
            [sys.executable, "-c", code, job], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
    assert len(list(tmp_path.iterdir())) == 2
    mine = make_scratch("mine", 0, str(tmp_path))
    left = sorted(path.name.split("-")[1] for path in tmp_path.iterdir())
    assert left == ["mine", "other"] and mine.is_dir()
    sweep("mine", str(tmp_path))
    assert mine.is_dir(), "the process that made it lives"
    remove_scratch(mine, "mine")
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == ["other"]


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    scratch = make_scratch("mine", 0, str(tmp_path))
    scratch.rmdir()
    tmp_path.rmdir()
    remove_scratch(scratch, "mine")


@pytest.mark.parametrize("over", [False, True])
def test_what_a_dead_driver_left_is_removed_by_the_next_job(tmp_path: Path, over: bool) -> None:
    code = (
        "import sys; from pathlib import Path; from flinkplus.runtime.scratch import mark_over, mark_running\n"
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
