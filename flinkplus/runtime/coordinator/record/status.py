"""How a running job is, for ``flinkplus status``: slots, subtasks and chains; a plain document, JSON-able.

Rules: read in the coordinator's thread; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess

STARTING, LEAVING, ENDING = "starting", "leaving", "ending"
WORKING, STANDBY, IDLE, AWAY = "working", "standby", "idle", "away"
RUNNING, MOVING = "running", "moving"
ChainStatus = tuple[SubtaskId, int, int, Sequence[tuple[int, int | None, bool]]]
"""A subtask, the generation of its chain, the newest version that the head has, and the members, head first: slot, the
newest version that it has (``None``: none) and whether it is still catching up."""


def slots_of(
    needed: Sequence[int],
    spares: Mapping[int, str],
    processes: Sequence[SlotProcess],
    incarnations: Mapping[int, int],
    assignment: Mapping[SubtaskId, int],
    chains: Iterable[ChainStatus],
    now_s: float,
) -> list[dict[str, Any]]:
    """Every slot, with what is on it. ``spares``: the spare ones, and how far each is (``runtime.spares``). ``now_s``:
    monotonic clock."""
    present = {process.slot: process for process in processes}
    copies = [slot for *_, held in chains for slot, _, _ in held[1:]]
    found = []
    for slot in (*needed, *sorted(spares)):
        process = present.get(slot)
        at_work = sum(at == slot for at in assignment.values())
        standbys = copies.count(slot)
        state = WORKING if at_work else STANDBY if standbys else IDLE
        if spares.get(slot) in (STARTING, LEAVING, ENDING):
            state = spares[slot]
        elif process is None:
            state = AWAY
        found.append(
            {
                "slot": f"slot-{slot}",
                "spare": slot in spares,
                "state": state,
                "host": None if process is None else process.host,
                "pid": None if process is None else process.pid,
                "address": None if process is None else process.address,
                "restarts": max(0, incarnations.get(slot, 0) - 1),
                "heard_ms": None if process is None else round((now_s - process.heard_s) * 1e3, 1),
                "subtasks": at_work,
                "standbys": standbys,
            }
        )
    return found


def subtasks_of(
    assignment: Mapping[SubtaskId, int],
    generations: Mapping[SubtaskId, int],
    present: Iterable[int],
    moving: Iterable[SubtaskId],
    counters: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Every subtask. ``moving``: those that a failover or handover has under way; ``counters``: as last reported."""
    there, on_their_way = set(present), set(moving)
    found = []
    for subtask, slot in sorted(assignment.items()):
        heard = counters.get(str(subtask), {})
        operators = list(heard.get("operators", {}).values())
        found.append(
            {
                "subtask": str(subtask),
                "vertex": subtask.vertex,
                "index": subtask.index,
                "slot": f"slot-{slot}",
                "generation": generations.get(subtask),
                "state": MOVING if subtask in on_their_way else RUNNING if slot in there else AWAY,
                "rows_in": operators[0].get("rows_in") if operators else None,
                "rows_out": heard.get("rows_out"),
                "behind_rows": heard.get("behind"),
                "waiting_messages": heard.get("waiting"),
                "keys": heard.get("keys"),
                "state_bytes": heard.get("bytes"),
                "blocked": heard.get("blocked", ""),
            }
        )
    return found


def chains_of(chains: Iterable[ChainStatus]) -> list[dict[str, Any]]:
    """Every chain. ``lag``: by how many checkpoints (numbers of them) a member is behind the newest version."""
    return [
        {
            "subtask": str(subtask),
            "generation": generation,
            "newest": newest,
            "members": [
                {
                    "slot": f"slot-{slot}",
                    "role": "head" if place == 0 else "standby",
                    "version": version,
                    "lag": newest - (version or 0),
                    "catching_up": catching_up,
                }
                for place, (slot, version, catching_up) in enumerate(members)
            ],
        }
        for subtask, generation, newest, members in chains
    ]
