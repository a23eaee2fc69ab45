"""In which phases of which checkpoints processes died: what the seeds have seen of failures during checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flinkplus.protocol.barriers.machine import BarrierMachine
from flinkplus.protocol.vocabulary.ids import CheckpointId

if TYPE_CHECKING:
    from flinkplus.runtime.coordinator.coordinator import Coordinator
    from tests.simulation.parameters import Fault, Parameters
    from tests.simulation.slot import SimSlot
    from tests.simulation.world import World

PHASES = (
    "trigger",
    "alignment",
    "in flight",
    "asynchronous",
    "acknowledged",
    "manifest",
    "commit",
    "put back",
    "end of input",
)
RESCALE_PHASES = ("starting", "checkpoint", "switching", "dividing", "divided", "ending", "prefetching")
"""Of a rescale: ``dividing`` and ``divided`` are parts of what the product calls switching."""
RESCALE_FAULTS = (
    "crash",
    "crash_spare",
    "crash_driver",
    "crash_host",
    "no_manifest",
    "no_upload",
    "no_commit",
    "zookeeper_away",
    "pause",
    "pause_spare",
    "hang_storage",
    "rescale",
    "cut_control",
    "throw",
)
"""What happens when a rescale comes to one of its phases (``at_rescale``)."""
MODES = ("aligned", "aligned, loops", "unaligned", "with time-out", "synchronous")
RECOVERIES = ("standby", "partial", "rollback")
SEPARATOR = " | "


def mode_of(parameters: Parameters) -> str:
    """How checkpoints are taken, one of ``MODES``."""
    if parameters.aligned_timeout_ms is not None:
        return "with time-out" if parameters.aligned_timeout_ms else "unaligned"
    if parameters.synchronous:
        return "synchronous"
    return "aligned, loops" if parameters.loops else "aligned"


def phases_of(world: World, process: SimSlot) -> frozenset[str]:
    """The phases of pending checkpoints that the subtasks in ``process`` are in, each one of ``PHASES``."""
    if world.coordinator is None:
        return frozenset()
    checkpoints = world.coordinator.parts.machines.checkpoints
    found = {
        phase for subtask in process.active for phase in _of(subtask.steps.checkpoints._machine, checkpoints.pending)
    }
    if checkpoints._storing is not None:
        found.add("manifest")
    if len(checkpoints._commits):
        found.add("commit")
    if any(end.put_back for subtask in process.active for end in subtask.inputs.channels.values()):
        found.add("put back")
    if any(subtask.ended for subtask in process.active):
        found.add("end of input")
    return frozenset(found)


def _of(machine: BarrierMachine, pending: tuple[CheckpointId, ...]) -> Iterator[str]:
    recordings: Mapping[CheckpointId, object] = getattr(machine, "_recordings", {})
    for checkpoint in pending:
        if checkpoint > machine._newest_seen:
            yield "trigger"
        elif checkpoint in recordings:
            yield "in flight"
        elif checkpoint in machine.waiting_for:
            yield "alignment"
        elif checkpoint in machine._unfinished:
            yield "asynchronous"
        else:
            yield "acknowledged"


def names_of(world: World, process: SimSlot) -> list[str]:
    """Names to count a death of ``process`` under."""
    where = world.parameters.recovery, mode_of(world.parameters)
    return [SEPARATOR.join((*where, phase)) for phase in sorted(phases_of(world, process))]


def table(counts: Counter[str]) -> str:
    """How many processes died in which phase, for each recovery and mode, as Markdown."""
    lines = [f"| recovery | checkpoints | {' | '.join(PHASES)} |", "| --- " * (len(PHASES) + 2) + "|"]
    for recovery in RECOVERIES:
        for mode in MODES:
            found = [counts[SEPARATOR.join((recovery, mode, phase))] for phase in PHASES]
            if any(found):
                lines.append(f"| {recovery} | {mode} | {' | '.join(map(str, found))} |")
    return "\n".join(lines)


def rescale_phase(coordinator: Coordinator) -> str:
    """How far the rescale under way is, one of ``RESCALE_PHASES``; empty: none is under way."""
    rescales, machine = coordinator.parts.rescales, coordinator.parts.machines.job
    status = None if rescales is None else rescales.status
    phase = "" if status is None else status.phase
    switch = getattr(machine, "_machine", machine)._rescale  # perhaps a recorded one
    if phase != "switching" or not switch.active:
        return phase
    return "divided" if switch._divided else phase if switch.until_ms is None else "dividing"


def phase_and_kind(fault: Fault) -> tuple[str, str]:
    """Of a fault ``at_rescale``: when it strikes, and what it is."""
    phases, kinds = len(RESCALE_PHASES), len(RESCALE_FAULTS)
    return RESCALE_PHASES[fault.target % phases], RESCALE_FAULTS[fault.target // phases % kinds]
