"""The first thing that a slot's Spark task runs: nothing is imported here that a module of the user's may hide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkplus.shadows import LIBRARIES, find_shadow, use_own_packages

if TYPE_CHECKING:
    from pyspark.core.broadcast import Broadcast

    from flinkplus.runtime.slot_config import SlotConfig


def start_slot(index: int, config: Broadcast[SlotConfig]) -> None:
    """Run slot ``index`` until the job ends; see ``run_slot``. A slot that cannot import its packages reports it."""
    shadow = find_shadow(LIBRARIES)
    if shadow is not None:
        use_own_packages(LIBRARIES)  # to report; then this process ends
    from flinkplus.runtime.slot import refuse_slot, run_slot

    if shadow is None:
        run_slot(index, config.value)
    else:
        refuse_slot(index, config.value, shadow)
        raise shadow
