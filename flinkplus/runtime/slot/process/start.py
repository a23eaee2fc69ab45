"""The first thing that a slot's Spark task runs: nothing is imported here that a module of the user's may hide."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from flinkplus.shadows import LIBRARIES, find_shadow, use_own_packages

if TYPE_CHECKING:
    from pyspark.core.broadcast import Broadcast

    from flinkplus.runtime.slot.process.config import SlotConfig


def start_slot(index: int, config: Broadcast[SlotConfig]) -> None:
    """Keep slot ``index`` running until the job ends (``keep_slot``), or report which package it cannot import."""
    shadow = find_shadow(LIBRARIES)
    if shadow is not None:
        use_own_packages(LIBRARIES)  # to report; then this process ends
    from flinkplus.runtime.slot.process.keeper import keep_slot
    from flinkplus.runtime.slot.process.slot_process import refuse_slot

    if shadow is None:
        keep_slot(index, config.value)
    else:
        keep_slot(index, config.value, partial(refuse_slot, shadow))
        raise shadow
