"""Parses ``local`` master URLs."""

from __future__ import annotations

import os
import re

LOCAL_MASTER = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*([0-9]+)\s*)?\])?$")


def local_master(master: str | None) -> int | None:
    """The number of threads of a ``local`` master; ``None`` for any other master."""
    match = LOCAL_MASTER.match(master or "")
    if match is None:
        return None
    threads = match[1]
    return (os.cpu_count() or 1) if threads == "*" else int(threads or 1)
