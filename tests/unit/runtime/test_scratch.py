"""Working directories: what dead slots left goes, what living ones use stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flinkplus.runtime.scratch import make_scratch, remove_scratch, sweep


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
