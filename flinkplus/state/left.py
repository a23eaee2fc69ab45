"""State files that a dead process of a slot has left on its host, for the slot's next process there.

Rules:
- files are moved, not linked; only regular files of this user count, under the whole name of a state file: unfinished
  ones have another name;
- such a file may be torn or altered. So its size and its checksum are checked, after the move, before it is used;
- a checksum that no thread waits for is calculated with pauses: at most ``SHARE`` of one processor.

Layout: ``<work_dir>/<subtask>/left/<generation>-<checkpoint>-<n>.sst``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

FILES_FOLDER = "files"
REPLICA_FOLDER = "replica"
LEFT_FOLDER = "left"
FOLDERS = (FILES_FOLDER, REPLICA_FOLDER, LEFT_FOLDER)
FILE_NAME = re.compile(r"(?P<generation>[0-9]+)-(?P<checkpoint>[0-9]+)-[0-9]+\.sst\Z")
SHARE = 0.5


def take_over(dead: Path, work_dir: Path) -> int:
    """Move the state files below ``dead``, the work directory of a dead process, to ``work_dir``; returns how many.

    A file that cannot be moved stays where it is: its content is fetched instead.
    """
    taken = 0
    for file in _state_files(dead):
        target = work_dir / file.parent.parent.name / LEFT_FOLDER
        with contextlib.suppress(OSError):
            if not (target / file.name).exists():
                target.mkdir(parents=True, exist_ok=True)
                file.rename(target / file.name)
                taken += 1
    return taken


def has_state(work_dir: Path) -> bool:
    """Whether the next process of a slot could take state files over from ``work_dir``."""
    return any(True for _ in _state_files(work_dir))


def newest_checkpoint(names: Iterable[str]) -> int:
    """The newest checkpoint that a state file of ``names`` (without folder) was made for; 0: none is a state file."""
    matches = (FILE_NAME.match(name) for name in names)
    return max((int(match["checkpoint"]) for match in matches if match), default=0)


def _state_files(work_dir: Path) -> Iterator[Path]:
    """The state files below a work directory; no link is followed."""
    subtasks = [Path(entry) for entry in _entries(work_dir) if entry.is_dir(follow_symlinks=False)]
    for folder in (subtask / name for subtask in subtasks for name in FOLDERS):
        for entry in () if folder.is_symlink() else _entries(folder):
            if FILE_NAME.match(entry.name) and _is_ours(Path(entry)):
                yield Path(entry)


def _entries(path: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return sorted(entries, key=lambda entry: entry.name)
    return []


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return False


def paced(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """``chunks``, with pauses, so that reading and using them takes ``SHARE`` of a processor at most."""
    begun = time.perf_counter()
    for chunk in chunks:
        yield chunk
        time.sleep((time.perf_counter() - begun) * (1 - SHARE) / SHARE)
        begun = time.perf_counter()
