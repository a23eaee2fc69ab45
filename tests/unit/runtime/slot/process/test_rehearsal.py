"""A new process does once what its first deployment and steps need, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flinkplus.errors import StateError
from flinkplus.runtime.slot.process import rehearsal
from flinkplus.runtime.slot.process.rehearsal import rehearse

FIRST_STEPS = """
import sys
from pathlib import Path
import flinkplus.runtime.slot.process.slot
from flinkplus.runtime.slot.process import rehearsal
work = Path(sys.argv[1])
if sys.argv[2] == "rehearsed":
    rehearsal.rehearse(work)
before = set(sys.modules)
rehearsal._exchange(8)
rehearsal._exchange(4096)
rehearsal._keep_state(work / "first")
print(len(set(sys.modules) - before))
"""


def modules_loaded_in_first_steps(work: Path, how: str) -> int:
    command = [sys.executable, "-c", FIRST_STEPS, str(work), how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_first_steps_load_no_modules_any_more(tmp_path: Path) -> None:
    assert modules_loaded_in_first_steps(tmp_path, "at once") > 0
    assert modules_loaded_in_first_steps(tmp_path, "rehearsed") == 0


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    rehearse(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fails_is_left_to_what_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path) -> None:
        folder.mkdir()
        raise StateError("no space left on device")

    monkeypatch.setattr(rehearsal, "_keep_state", fails)
    rehearse(tmp_path)
    assert not list(tmp_path.iterdir())
