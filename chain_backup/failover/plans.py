"""Where the members of all chains ought to be, and who has asked for that.

Three things decide: the placement strategy, over the slots that may be used; the *drained* hosts, whose slots may not,
nor may *retiring* slots; and *wishes*, one slot for the head of one subtask, which come before the strategy's answer.

Rules:

- A subtask's home is the slot of its number. Whoever has none, since its host is drained, gets a home among the slots
  that may be used: one with the fewest heads, then one on a host with the fewest heads, then a standby's.
- Chains are laid out anew whenever hosts or drained hosts change, so that no members share a host that need not.
- A wish leaves a chain on as many hosts as it was on: if one of its other members shares the wished slot's host, that
  one makes room, else the home that it had.
- Beside the slots of the subtasks' numbers there are *spare* ones, from when they first join until they have retired,
  that is, until nothing is on them. They are no subtask's home of themselves.
- Hosts stay drained, and wishes that were fulfilled stay, until somebody says otherwise. Wishes end with a rollback, a
  drain of their host, and, as long as they are not fulfilled, with the loss of their slot or its refusal.

Invariants: no slot of a drained host is in a plan, unless there are no others; no retiring slot ever is; one
``ReportMove`` ends a request, those before it say what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chain_backup.failover.chains import Chain, ChainTable
from chain_backup.failover.effects import ReportMove
from chain_backup.failover.events import HostDrainRequested, HostUndrainRequested, MoveRequested, ScaleRequested
from chain_backup.failover.placement import PlacementError, Strategy, members
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.ids import SubtaskId

Request: TypeAlias = MoveRequested | HostDrainRequested | HostUndrainRequested | ScaleRequested


def with_wish(planned: tuple[int, ...], slot: int, hosts: Mapping[int, str]) -> tuple[int, ...]:
    """``planned``, with its head on ``slot``, of the same length and on as many hosts."""
    if slot in planned:
        return (slot, *(member for member in planned if member != slot))
    sharing = [member for member in planned if hosts[member] == hosts[slot]]
    leaving = sharing[-1] if sharing else planned[0]
    return (slot, *(member for member in planned if member != leaving))


@dataclass(slots=True)
class _Move:
    """A wish that is not fulfilled. ``before``: the wish that it took the place of."""

    request: int
    slot: int
    before: int | None


@dataclass(slots=True)
class _HostDrain:
    """A host that gets no work. ``waiting``: the request that waits until it has none; ``left``: as it was told."""

    waiting: int | None
    forced: bool
    left: tuple[SubtaskId, ...] = ()


@dataclass(slots=True)
class _Scaling:
    """Spare slots that are to be empty. ``waiting`` and ``left``: as of a host drain."""

    waiting: int | None = None
    slots: tuple[int, ...] = ()
    forced: bool = False
    left: tuple[SubtaskId, ...] = ()


class Plans:
    """The plans of one job; they outlive its deployments. Raises ``PlacementError`` when ``strategy`` is no good."""

    def __init__(self, topology: Topology, slots: tuple[int, ...], replicas: int, strategy: Strategy) -> None:
        self._topology = topology
        self._own = slots
        self._slots = slots
        self._retired: set[int] = set()  # never iterated
        self._scaling = _Scaling()
        self._replicas = replicas
        self._strategy = strategy
        self._hosts = dict.fromkeys(slots, "")
        self._host_drains: dict[str, _HostDrain] = {}
        self._wishes: dict[SubtaskId, int] = {}
        self._moves: dict[SubtaskId, _Move] = {}
        self._layout = self._lay_out(self._hosts, (), ())

    # ------------------------------------------------------------------------------------------------ where to be

    def of(self, subtask: SubtaskId) -> tuple[int, ...]:
        """The members that the chain of ``subtask`` ought to have, its home first."""
        planned = self._layout[subtask.index]
        wish = self._wishes.get(subtask)
        return planned if wish is None else with_wish(planned, wish, self._hosts)

    def begins_on(self, subtask: SubtaskId, slots: Collection[int]) -> int:
        """Which of ``slots`` a deployment is to put ``subtask`` on: the one of its number; when the host of that is
        drained, the first planned one that is not, or any.
        """
        own = self._own[subtask.index % len(self._own)]
        usable = [slot for slot in self._own if slot in slots and slot not in self.barred]
        if own in usable or not usable:
            return own
        return next((slot for slot in self.of(subtask) if slot in usable), usable[subtask.index % len(usable)])

    def is_moving(self, subtask: SubtaskId) -> bool:
        """Whether somebody waits for ``subtask`` to be at its home."""
        return subtask in self._moves

    def reason(self, chain: Chain) -> str:
        """Why the head of ``chain`` is to go home."""
        host = self._hosts[chain.head]
        if chain.subtask in self._moves:
            return f"{chain.subtask} moves to slot {chain.home}, as asked"
        if chain.head in self._scaling.slots:
            return f"slot {chain.head} retires"
        return f"host {host} is drained" if host in self._host_drains else f"slot {chain.home} is back"

    @property
    def slots(self) -> tuple[int, ...]:
        """All that there are, ascending, the spare ones that have joined last."""
        return self._slots

    def is_retired(self, slot: int) -> bool:
        """Whether ``slot`` was a spare one, and is none any more."""
        return slot in self._retired

    @property
    def barred(self) -> tuple[int, ...]:
        """The slots on drained hosts, and those that retire."""
        retiring = self._scaling.slots
        return tuple(slot for slot in self._slots if self._hosts[slot] in self._host_drains or slot in retiring)

    @property
    def drained_hosts(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(sorted(self._host_drains))

    @property
    def hasty(self) -> tuple[int, ...]:
        """The slots that were drained, or are to retire, by force."""
        forced = {host for host, drain in self._host_drains.items() if drain.forced}
        retiring = self._scaling.slots if self._scaling.forced else ()
        return tuple(slot for slot in self._slots if self._hosts[slot] in forced or slot in retiring)

    def _lay_out(
        self, hosts: Mapping[int, str], drained: Collection[str], retiring: Collection[int]
    ) -> list[tuple[int, ...]]:
        staying = tuple(slot for slot in sorted(hosts) if slot not in retiring)
        usable = tuple(slot for slot in staying if hosts[slot] not in drained) or staying
        replicas = min(self._replicas, len(usable))
        homes = self._homes(hosts, usable)
        known = None if len(hosts) == len(self._own) else frozenset(homes)
        return [members(self._strategy, home, usable, hosts, replicas, known) for home in homes]

    def _homes(self, hosts: Mapping[int, str], usable: tuple[int, ...]) -> list[int]:
        own = [self._own[index % len(self._own)] for index in range(self._topology.parallelism)]
        found = [slot if slot in usable else None for slot in own]
        slots = tuple(sorted(hosts))
        replicas = min(self._replicas, len(slots))
        for index in [index for index, slot in enumerate(found) if slot is None]:
            taken = [slot for slot in found if slot is not None]
            standbys = members(self._strategy, own[index], slots, hosts, replicas)
            found[index] = _least_loaded(usable, taken, hosts, standbys)
        return [slot for slot in found if slot is not None]

    def hosted(self, hosts: Mapping[int, str]) -> None:
        """Slots are on ``hosts``, all others where they were; spare ones may be new. Raises ``PlacementError``, and
        changes nothing."""
        known = {**self._hosts, **hosts}
        layout = self._lay_out(known, self._host_drains, self._scaling.slots)
        self._hosts, self._layout, self._slots = known, layout, tuple(sorted(known))
        for subtask in [subtask for subtask, slot in self._wishes.items() if known[slot] in self._host_drains]:
            del self._wishes[subtask]  # its slot is on another host than before

    # --------------------------------------------------------------------------------------------------- requests

    def request(self, event: Request, table: ChainTable) -> list[ReportMove]:
        """Take a request: who is answered what by that. The plans of all subtasks may be others now."""
        match event:
            case MoveRequested(request, subtask, slot):
                return self._request_move(request, subtask, slot, table)
            case HostDrainRequested(request, host, force):
                return self._drain_host(request, host, force, table)
            case HostUndrainRequested(request, host):
                return self._undrain_host(request, host)
            case ScaleRequested(request, retiring, force):
                return self._request_scaling(request, retiring, force, table)

    def _request_move(self, request: int, subtask: SubtaskId, slot: int, table: ChainTable) -> list[ReportMove]:
        if slot not in self._slots:
            return [_refused(request, f"slot {slot} does not exist; the slots are {', '.join(map(str, self._slots))}")]
        if not table.is_alive(slot):
            return [_refused(request, f"slot {slot} is not registered; wait until it is, or choose another")]
        if slot in self._scaling.slots:
            return [_refused(request, f"slot {slot} is about to end, as asked; choose another")]
        host = self._hosts[slot]
        if host in self._host_drains:
            return [_refused(request, f"slot {slot} is on host {host}, which is drained; undrain that first")]
        ended = self._end(subtask, f"{subtask} is asked to move to slot {slot} now")
        self._moves[subtask] = _Move(request, slot, self._wishes.get(subtask))
        self._wishes[subtask] = slot
        return [*ended, ReportMove(request, "under_way", left=(subtask,))]

    def _drain_host(self, request: int, host: str, force: bool, table: ChainTable) -> list[ReportMove]:
        hosts = sorted(set(self._hosts.values()))
        if host not in hosts:
            return [_refused(request, f"no slot is on host {host}; the hosts are {', '.join(hosts)}")]
        staying = {known for slot, known in self._hosts.items() if slot not in self._scaling.slots}
        if all(other == host or other in self._host_drains for other in staying):
            return [_refused(request, f"no slot could take over from those on host {host}")]
        try:
            layout = self._lay_out(self._hosts, {host, *self._host_drains}, self._scaling.slots)
        except PlacementError as error:
            return [_refused(request, f"without host {host}: {error}")]
        loss = None if force else self._loss(layout)
        if loss is not None:
            return [_refused(request, f"without host {host} {loss} with it", at_risk=True)]
        drain = self._host_drains.get(host)
        ended = []
        if drain is not None and drain.waiting is not None:
            ended.append(ReportMove(drain.waiting, "cancelled", f"host {host} is drained by another request"))
        for subtask in [s for s, slot in self._wishes.items() if self._hosts[slot] == host]:
            ended += self._end(subtask, f"host {host} is drained")
            if subtask in self._wishes and self._hosts[self._wishes[subtask]] == host:
                del self._wishes[subtask]
        left = self._left(host, table)
        self._host_drains[host] = _HostDrain(request, force, left)
        self._layout = layout
        return [*ended, ReportMove(request, "under_way", left=left)]

    def _undrain_host(self, request: int, host: str) -> list[ReportMove]:
        if host not in self._host_drains:
            known = ", ".join(sorted(self._host_drains)) or "none is"
            return [_refused(request, f"host {host} is not drained ({known})")]
        try:
            drained = [other for other in self._host_drains if other != host]
            layout = self._lay_out(self._hosts, drained, self._scaling.slots)
        except PlacementError as error:
            return [_refused(request, f"with host {host}: {error}")]
        drain, self._layout = self._host_drains.pop(host), layout
        ended = ReportMove(request, "done")
        if drain.waiting is None:
            return [ended]
        return [ReportMove(drain.waiting, "cancelled", f"host {host} may be used again"), ended]

    def _request_scaling(
        self, request: int, retiring: tuple[int, ...], force: bool, table: ChainTable
    ) -> list[ReportMove]:
        retiring = tuple(slot for slot in self._slots if slot in retiring and slot not in self._own)
        named = f"slot{'s'[: len(retiring) != 1]} {', '.join(map(str, retiring))}"
        try:
            layout = self._lay_out(self._hosts, self._host_drains, retiring)
        except PlacementError as error:
            return [_refused(request, f"without {named}: {error}" if retiring else str(error))]
        loss = None if force or not retiring else self._loss(layout)
        if loss is not None:
            return [_refused(request, f"without {named} {loss}", at_risk=True)]
        ended = []
        if self._scaling.waiting is not None:
            ended.append(ReportMove(self._scaling.waiting, "cancelled", "the spare slots are scaled anew"))
        for subtask in [s for s, slot in self._wishes.items() if slot in retiring]:
            ended += self._end(subtask, f"slot {self._wishes[subtask]} is about to end, as asked")
            if self._wishes.get(subtask) in retiring:
                del self._wishes[subtask]
        self._layout, self._scaling = layout, _Scaling(request, retiring, force)
        self._scaling.left = self._left_to_scale(table)
        return [*ended, ReportMove(request, "under_way", left=self._scaling.left)]

    def _left_to_scale(self, table: ChainTable) -> tuple[SubtaskId, ...]:
        """The subtasks of which something is on a retiring slot; without these, whose chains are not as planned."""
        retiring = self._scaling.slots
        if retiring:
            return tuple(chain.subtask for chain in table if any(slot in retiring for slot in chain.members))
        return tuple(chain.subtask for chain in table if not table.is_as_planned(chain))

    def _loss(self, layout: Sequence[tuple[int, ...]]) -> str | None:
        """What redundancy is lost by ``layout``, if any is."""
        now, then = self._redundancy(self._layout), self._redundancy(layout)
        if then[0] >= now[0] and then[1] >= now[1]:
            return None
        return f"there would be chains of {_told(then)}, and there are of {_told(now)}"

    def _redundancy(self, layout: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """The fewest (members, hosts) that a chain has."""
        hosts = [len({self._hosts[slot] for slot in planned}) for planned in layout]
        return min(len(planned) for planned in layout), min(hosts)

    # ------------------------------------------------------------------------------------------ what becomes of them

    def lost(self, slots: Collection[int]) -> list[ReportMove]:
        """Whoever was on the way to one of ``slots``, which are gone, stays where it is."""
        moving = [(subtask, move.slot) for subtask, move in self._moves.items() if move.slot in slots]
        return [report for subtask, slot in moving for report in self._end(subtask, f"slot {slot} was lost")]

    def refused(self, slot: int, subtasks: Sequence[SubtaskId], reason: str) -> list[ReportMove]:
        """``slot`` could not take ``subtasks`` over."""
        moving = [subtask for subtask in subtasks if subtask in self._moves and self._moves[subtask].slot == slot]
        return [report for subtask in moving for report in self._end(subtask, reason)]

    def interrupted(self, reason: str) -> list[ReportMove]:
        """All subtasks begin anew, on the slots of their numbers where these may be used. Hosts stay drained."""
        ended = [report for subtask in tuple(self._moves) for report in self._end(subtask, reason)]
        self._wishes.clear()
        return ended

    def _end(self, subtask: SubtaskId, reason: str) -> list[ReportMove]:
        move = self._moves.pop(subtask, None)
        if move is None:
            return []
        if move.before is None or move.before not in self._slots or move.before in self.barred:
            del self._wishes[subtask]
        else:
            self._wishes[subtask] = move.before
        return [ReportMove(move.request, "cancelled", reason)]

    def progress(self, table: ChainTable) -> list[ReportMove]:
        """Nothing is under way: who has got what they asked for, and what is left for the others, if that is news."""
        reports = []
        for subtask, move in tuple(self._moves.items()):
            if table[subtask].head == move.slot:
                del self._moves[subtask]
                reports.append(ReportMove(move.request, "done"))
        for host, drain in self._host_drains.items():
            if drain.waiting is None:
                continue
            left = self._left(host, table)
            if not left:
                reports.append(ReportMove(drain.waiting, "done"))
                drain.waiting = None
            elif left != drain.left:
                reports.append(ReportMove(drain.waiting, "under_way", left=left))
            drain.left = left
        return [*reports, *self._scaling_progress(table)]

    def _scaling_progress(self, table: ChainTable) -> list[ReportMove]:
        scaling = self._scaling
        if scaling.waiting is None:
            return []
        left = self._left_to_scale(table)
        if left:
            news, scaling.left = left != scaling.left, left
            return [ReportMove(scaling.waiting, "under_way", left=left)] if news else []
        self._retired.update(scaling.slots)
        self._hosts = {slot: host for slot, host in self._hosts.items() if slot not in scaling.slots}
        self._slots = tuple(sorted(self._hosts))
        self._scaling = _Scaling()
        return [ReportMove(scaling.waiting, "done")]

    def _left(self, host: str, table: ChainTable) -> tuple[SubtaskId, ...]:
        """The subtasks of which something is on ``host``."""
        return tuple(chain.subtask for chain in table if any(self._hosts[slot] == host for slot in chain.members))


def _least_loaded(usable: Sequence[int], taken: Sequence[int], hosts: Mapping[int, str], nearest: Sequence[int]) -> int:
    """The slot of ``usable`` with the fewest of ``taken``, then on the host with the fewest, then first of the
    ``nearest``."""
    on_hosts = [hosts[slot] for slot in taken]

    def load(slot: int) -> tuple[int, ...]:
        place = nearest.index(slot) if slot in nearest else len(nearest)
        return taken.count(slot), on_hosts.count(hosts[slot]), place, slot

    return min(usable, key=load)


def _refused(request: int, reason: str, at_risk: bool = False) -> ReportMove:
    return ReportMove(request, "refused", reason, at_risk=at_risk)


def _told(redundancy: tuple[int, int]) -> str:
    count, hosts = redundancy
    return f"{count} member{'s'[: count != 1]} on {hosts} host{'s'[: hosts != 1]}"
