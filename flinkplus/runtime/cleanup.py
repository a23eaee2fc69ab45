"""Removing directories that others may still be writing to: processes that were told to end and are about to."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flinkplus.state.removal import remove_folder

RETRY_S = 0.05
log = logging.getLogger("flinkplus")


def remove_tree(path: str | Path, patience_s: float) -> None:
    """Remove a directory, again and again for up to ``patience_s`` seconds while something puts new files into it."""
    deadline = time.monotonic() + patience_s
    while True:
        remove_folder(path)
        if not Path(path).exists():
            return
        if time.monotonic() > deadline:
            log.warning("%s could not be removed", path)
            return
        time.sleep(RETRY_S)
