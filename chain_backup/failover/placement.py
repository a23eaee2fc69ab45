"""The slots of a chain's members: placement strategies, and the check of their answers.

Rules:

- A strategy is a pure function ``(home, slots_alive, hosts, replicas) -> slots``, ``home`` first: the slot where the
  head belongs, one of ``slots_alive``. Several subtasks may have one home.
- ``spread`` also gets the home slots where there are spare slots, which are no subtask's home.
- Both strategies here never put two members on one slot, prefer hosts that the chain is not on yet, and, as far as that
  allows, give all slots the same number of standbys.
- All callers use ``members``, which checks the answer of a strategy, including a user's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from flinkplus.errors import ConfigurationError

Strategy: TypeAlias = Callable[[int, "tuple[int, ...]", Mapping[int, str], int], "tuple[int, ...]"]
"""``(home, slots_alive ascending, slot -> host, replicas) -> slots, home first``."""


class PlacementError(ConfigurationError):
    """A placement strategy gave an answer that is not a valid chain."""


def spread(
    home: int,
    slots_alive: tuple[int, ...],
    hosts: Mapping[int, str],
    replicas: int,
    homes: Collection[int] | None = None,
) -> tuple[int, ...]:
    """Standbys on as many hosts as possible, and evenly over all slots.

    All chains are laid out together, one standby after the other. Each goes to a host that its chain uses least, there
    to a slot with the fewest standbys so far, the nearest upwards. Then moves that keep every chain's number of hosts
    even out the rest. So no slot carries two more than another, unless the hosts differ in size.

    ``homes``: the home slots (``None``: all slots). Other slots have no head, and carry one more standby instead.
    """
    heads = slots_alive if homes is None else tuple(slot for slot in slots_alive if slot in homes or slot == home)
    layout = _spread_out(slots_alive, tuple(hosts.get(slot) for slot in slots_alive), replicas, heads)
    return layout[home]


@functools.lru_cache(maxsize=4)
def _spread_out(
    slots_alive: tuple[int, ...], names: tuple[str | None, ...], replicas: int, heads: tuple[int, ...]
) -> Mapping[int, tuple[int, ...]]:
    """The chains by head. ``names``: the host of each slot."""
    hosts = dict(zip(slots_alive, names, strict=True))
    chains = {slot: [slot] for slot in heads}
    standbys = {slot: 0 if slot in heads else -1 for slot in slots_alive}  # -1: one more than slots with a head
    for _ in range(min(replicas, len(slots_alive)) - 1):
        for head in heads:
            chain, position = chains[head], slots_alive.index(head)
            used = [hosts[member] for member in chain]
            following = slots_alive[position + 1 :] + slots_alive[:position]
            best = min(  # the first of the best: the nearest
                (slot for slot in following if slot not in chain),
                key=lambda slot: (used.count(hosts[slot]), standbys[slot]),
            )
            chain.append(best)
            standbys[best] += 1
    while _even_out(chains, standbys, hosts):
        pass
    return {slot: tuple(chain) for slot, chain in chains.items()}


def _even_out(chains: dict[int, list[int]], standbys: dict[int, int], hosts: Mapping[int, str | None]) -> bool:
    """Move one standby from a slot to one with at least two fewer; false when no move is left."""
    for more in sorted(standbys, key=lambda slot: (-standbys[slot], slot)):
        for less in sorted(standbys, key=lambda slot: (standbys[slot], slot)):
            if standbys[more] - standbys[less] < 2:
                break
            for chain in chains.values():
                if more not in chain[1:] or less in chain:
                    continue
                moved = [less if slot == more else slot for slot in chain]
                if _crowding(moved, hosts) <= _crowding(chain, hosts):
                    chain[:] = moved
                    standbys[more] -= 1
                    standbys[less] += 1
                    return True
    return False


def _crowding(chain: list[int], hosts: Mapping[int, str | None]) -> int:
    """Number of pairs of members that share a host."""
    names = [hosts[slot] for slot in chain]
    return sum(names[:at].count(name) for at, name in enumerate(names))


def near(home: int, slots_alive: tuple[int, ...], hosts: Mapping[int, str], replicas: int) -> tuple[int, ...]:
    """Standbys on the hosts that follow the head's by name, at the same place within the host. So a host exchanges
    deltas only with its ``replicas`` - 1 neighbours, for any number of hosts."""
    names = sorted({hosts.get(slot, "") for slot in slots_alive})
    by_host = [[slot for slot in slots_alive if hosts.get(slot, "") == name] for name in names]
    own = names.index(hosts.get(home, ""))
    place = by_host[own].index(home)
    ring = [by_host[(own + distance) % len(names)] for distance in range(len(names))]
    longest = max(len(slots) for slots in ring)
    following = [slots[(place + turn) % len(slots)] for turn in range(longest) for slots in ring if turn < len(slots)]
    return tuple(following[: min(replicas, len(slots_alive))])


STRATEGIES: Mapping[str, Strategy] = {"spread": spread, "near": near}
"""The strategies by their names in the options."""


def members(
    strategy: Strategy,
    home: int,
    slots_alive: tuple[int, ...],
    hosts: Mapping[int, str],
    replicas: int,
    homes: Collection[int] | None = None,
) -> tuple[int, ...]:
    """The chain that ``strategy`` gives a subtask, head first. ``homes``: the home slots, if not all are. Raises
    ``PlacementError`` unless it has 1 to ``replicas`` different living slots, the home slot first."""
    if strategy is spread and homes is not None:
        answer = spread(home, slots_alive, hosts, replicas, homes)
    else:
        answer = strategy(home, slots_alive, hosts, replicas)
    name = getattr(strategy, "__name__", type(strategy).__name__)

    def refuse(why: str) -> PlacementError:
        return PlacementError(
            f"placement {name!r} gave the chain {answer!r} to the subtasks whose home is slot {home}: {why}; "
            f"a chain is a tuple of up to {replicas} different slots of {slots_alive}, and slot {home} comes first"
        )

    if not isinstance(answer, tuple) or not all(type(slot) is int for slot in answer):
        raise refuse("it is not a tuple of slot numbers")
    if len(set(answer)) != len(answer):
        raise refuse("a slot is in it twice")
    if not set(answer) <= set(slots_alive):
        raise refuse("a slot of it does not exist or is not alive")
    if not 1 <= len(answer) <= replicas:
        raise refuse(f"it has {len(answer)} members")
    if answer[0] != home:
        raise refuse(f"slot {answer[0]} is not the home of these subtasks")
    return answer
