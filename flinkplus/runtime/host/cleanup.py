"""Removing what is not needed any more, also what others may still be writing to, as they are about to end."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

RETRY_S = 0.05
log = logging.getLogger("flinkplus")


def clear_away(work: Callable[[], None]) -> None:
    """Run ``work``, which removes something. No caller waits for it, so a failure is only logged."""
    try:
        work()
    except Exception:
        log.warning("cleanup failed", exc_info=True)


def remove_tree(path: str | Path, patience_s: float) -> None:
    """Remove a directory, again and again for up to ``patience_s`` seconds while something puts new files into it."""
    deadline = time.monotonic() + patience_s
    while True:
        shutil.rmtree(path, ignore_errors=True)
        if not Path(path).exists():
            return
        if time.monotonic() > deadline:
            log.warning("could not remove %s", path)
            return
        time.sleep(RETRY_S)
