"""The C library's allocator in a slot: one arena, as far as it can still be chosen.

A slot's threads take turns (the interpreter lets one run at a time), so arenas of their own would win them nothing, and
each keeps the memory it once needed: with the pool that writes snapshots, resident memory grew by some 4 % over 600
checkpoints, and by 1 to 2 % with a single arena.
"""

from __future__ import annotations

import ctypes
import logging

M_ARENA_MAX = -8  # malloc.h of the GNU C library

log = logging.getLogger("flinkplus.slot")


def use_one_arena() -> bool:
    """Have threads to come share the arenas there are; false where the C library knows no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        log.info("the C library has no mallopt; keeping the default allocator settings")
        return False
    return bool(mallopt(M_ARENA_MAX, 1))
