"""Removal of files and directories, to which processes that are about to end may still write."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

RETRY_S = 0.05
log = logging.getLogger("flinkplus")


def clear_away(work: Callable[[], None]) -> None:
    """Run ``work``, which removes something; a failure is only logged."""
    try:
        work()
    except Exception:
        log.warning("cleanup failed", exc_info=True)


def remove_tree(path: str | Path, patience_s: float) -> None:
    """Remove a directory; while new files appear in it, try again for up to ``patience_s`` seconds."""
    deadline = time.monotonic() + patience_s
    shutil.rmtree(path, ignore_errors=True)
    while Path(path).exists():
        if time.monotonic() > deadline:
            log.warning("could not remove %s", path)
            return
        time.sleep(RETRY_S)
        shutil.rmtree(path, ignore_errors=True)
