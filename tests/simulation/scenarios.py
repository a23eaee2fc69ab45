"""Short histories as files: what happens (commands), and all that comes of it (the trace), kept as documentation.

A file has comments (``#``), one setting a line as ``Parameters.story`` writes them, faults (``fault AT KIND TARGET
DURATION``, milliseconds) or faults at a point (``when POINT SUBTASK [#N] KIND TARGET DURATION``), a line ``---``, and
the trace. ``python -m tests.simulation.scenarios --write`` writes the traces anew; read what changed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from flinkplus.protocol.vocabulary.ids import SubtaskId
from tests.simulation.parameters import Fault, Parameters
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot

DIRECTORY = Path(__file__).parent / "scenarios"
SEPARATOR = "---"
COUNTED = ("failovers", "handovers", "fallbacks")


@dataclass
class PointFault:
    """A fault that strikes when ``point`` of ``subtask`` is reached for the ``count``-th time."""

    point: str
    subtask: str
    count: int
    kind: str
    target: int
    duration_ms: int


@dataclass
class Scenario:
    """One file, taken apart."""

    path: Path
    commands: list[str]
    expected: list[str]
    parameters: Parameters
    point_faults: list[PointFault]


def read(path: Path) -> Scenario:
    """Take a file apart. Raises ``ValueError`` for what is no command."""
    above, _, below = path.read_text().partition(f"{SEPARATOR}\n")
    commands = above.splitlines()
    settings: dict[str, object] = {}
    faults: list[Fault] = []
    at_points: list[PointFault] = []
    known = {setting.name for setting in fields(Parameters)}
    for line in commands:
        match line.split():
            case [] | ["#", *_]:
                continue
            case ["fault", at_ms, kind, target, duration_ms]:
                faults.append(Fault(int(at_ms), kind, int(target), int(duration_ms)))
            case ["when", point, subtask, count, kind, target, duration_ms] if count.startswith("#"):
                at_points.append(PointFault(point, subtask, int(count[1:]), kind, int(target), int(duration_ms)))
            case ["when", point, subtask, kind, target, duration_ms]:
                at_points.append(PointFault(point, subtask, 1, kind, int(target), int(duration_ms)))
            case [name, *_] if name in known:
                text = line.partition(" ")[2]
                settings[name] = text if isinstance(getattr(Parameters(), name), str) else ast.literal_eval(text)
            case _:
                raise ValueError(f"{path}: {line!r} is no command")
    parameters = Parameters().with_changes(**settings, faults=tuple(faults))
    return Scenario(path, commands, below.splitlines(), parameters, at_points)


def play(scenario: Scenario) -> list[str]:
    """The trace of a scenario, with a last line that counts. Raises whatever is wrong."""
    trace: list[str] = []
    world = World(scenario.parameters, trace)
    faults = world.faults
    left = list(scenario.point_faults)

    def on_point(point: str, slot: SimSlot, name: SubtaskId) -> None:
        for fault in [f for f in left if (f.point, f.subtask) == (point, str(name))]:
            fault.count -= 1
            if fault.count == 0:
                left.remove(fault)
                struck = Fault(world.now_ms, fault.kind, fault.target, fault.duration_ms)
                world.at(world.now_ms, faults.strike, struck)

    world.on_point = on_point
    world.run()
    counts = ", ".join(f"{world.counts[name]} {name}" for name in COUNTED)
    trace.append(f"       {counts}, {len(world.checks.completions)} checkpoints")
    if left:
        trace.append(f"       never struck: {left}")
    return trace


def all_scenarios() -> list[Path]:
    """The files there are."""
    return sorted(DIRECTORY.glob("*.txt"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scenarios", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write every trace anew")
    options = parser.parse_args(arguments)
    changed = 0
    for path in all_scenarios():
        scenario = read(path)
        trace = play(scenario)
        if trace != scenario.expected:
            changed += 1
            print(f"{path.name}: another trace; {trace[-1].strip()}")
            if options.write:
                path.write_text("\n".join([*scenario.commands, SEPARATOR, *trace]) + "\n")
    return 0 if options.write or not changed else 1


if __name__ == "__main__":
    sys.exit(main())
