"""The planned members of all chains, and the requests that change them.

They follow from the placement strategy, over the usable slots (not on *drained* hosts, not *retiring*), and from
*targets*: a requested slot for the head of one subtask, which takes precedence over the strategy.

Rules:

- A subtask's home is the slot of its number. If that is not usable, it is a usable slot with the fewest heads; among
  these, one on the host with the fewest heads; among these, the first in the chain that its own slot would have.
- Chains are laid out again whenever hosts or drained hosts change, so that members share hosts only where they must.
- A target leaves a chain on as many hosts as before: it replaces another member on its host, otherwise the former home.
- In addition to the needed slots, one for each number of a subtask, *spare* slots exist from their first join until
  they have retired and are empty. The strategy makes them no subtask's home.
- Hosts stay drained, and reached targets stay, until another request. Targets end with a rollback or a drain of their
  host; targets not yet reached also end with the loss of their slot, or if it cannot take the subtask.

Invariants: a slot of a drained host is planned only if all hosts are drained, and a retiring slot never; one
``ReportMove`` ends a request, earlier ones report what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chain_backup.failover.chains import Chain, ChainTable
from chain_backup.failover.effects import ReportMove
from chain_backup.failover.events import HostDrainRequested, HostUndrainRequested, MoveRequested, ScaleRequested
from chain_backup.failover.placement import PlacementError, Strategy, members
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.ids import SubtaskId

Request: TypeAlias = MoveRequested | HostDrainRequested | HostUndrainRequested | ScaleRequested


def with_target(planned: tuple[int, ...], slot: int, hosts: Mapping[int, str]) -> tuple[int, ...]:
    """``planned``, with its head on ``slot``, of the same length and on as many hosts."""
    if slot in planned:
        return (slot, *(member for member in planned if member != slot))
    sharing = [member for member in planned if hosts[member] == hosts[slot]]
    leaving = sharing[-1] if sharing else planned[0]
    return (slot, *(member for member in planned if member != leaving))


@dataclass(slots=True)
class _Move:
    """A target that is not reached. ``replaced``: the target before it."""

    request: int
    slot: int
    replaced: int | None


@dataclass(slots=True)
class _Emptying:
    """A drained host, or the spare slots that retire.

    ``waiting``: the request that waits until no members are there, if one does.
    ``left``: the subtasks with such members, as last reported to it.
    ``slots``: the spare slots.
    """

    waiting: int | None = None
    forced: bool = False
    left: tuple[SubtaskId, ...] = ()
    slots: tuple[int, ...] = ()

    def report(self, left: tuple[SubtaskId, ...]) -> list[ReportMove]:
        """The report to the request: that it is done, or what is left if that has changed."""
        waiting, is_new = self.waiting, left != self.left
        self.left = left
        if waiting is not None and not left:
            self.waiting = None
            return [ReportMove(waiting, "done")]
        return [] if waiting is None or not is_new else [ReportMove(waiting, "under_way", left=left)]

    def cancel(self, reason: str) -> list[ReportMove]:
        return [] if self.waiting is None else [ReportMove(self.waiting, "cancelled", reason)]


class PlannedMembers:
    """The planned members of one job, over all its deployments. Raises ``PlacementError`` if ``strategy`` gives no
    chain."""

    def __init__(self, topology: Topology, slots: tuple[int, ...], replicas: int, strategy: Strategy) -> None:
        self._topology = topology
        self._own = slots
        self._slots = slots
        self._retired: set[int] = set()  # never iterated
        self._scaling = _Emptying()
        self._replicas = replicas
        self._strategy = strategy
        self._hosts = dict.fromkeys(slots, "")
        self._host_drains: dict[str, _Emptying] = {}
        self._targets: dict[SubtaskId, int] = {}
        self._moves: dict[SubtaskId, _Move] = {}
        self._layout = self._lay_out(self._hosts, (), ())

    def replaced(self, topology: Topology, slots: tuple[int, ...]) -> PlannedMembers:
        """Those of other subtasks, on other needed ``slots``. Drained hosts stay; targets end. Raises
        ``PlacementError``."""
        after = PlannedMembers(topology, slots, self._replicas, self._strategy)
        spare = {slot: host for slot, host in self._hosts.items() if slot not in self._own and slot not in slots}
        after._retired = self._retired | (set(self._own) - set(slots))
        after._scaling, after._host_drains = self._scaling, self._host_drains
        after.update_hosts({**{slot: self._hosts.get(slot, "") for slot in slots}, **spare})
        return after

    # ------------------------------------------------------------------------------------------------ the slots

    @property
    def own(self) -> tuple[int, ...]:
        """The needed slots, ascending."""
        return self._own

    def of(self, subtask: SubtaskId) -> tuple[int, ...]:
        """The planned members of the chain of ``subtask``, its home first."""
        planned = self._layout[subtask.index]
        target = self._targets.get(subtask)
        return planned if target is None else with_target(planned, target, self._hosts)

    def deployment_slot(self, subtask: SubtaskId, slots: Collection[int]) -> int:
        """The slot among ``slots`` on which a deployment puts ``subtask``: that of its number, if it or none is usable;
        otherwise the first planned slot that is usable, or any that is."""
        own = self._own[subtask.index % len(self._own)]
        usable = [slot for slot in self._own if slot in slots and slot not in self.barred]
        if own in usable or not usable:
            return own
        return next((slot for slot in self.of(subtask) if slot in usable), usable[subtask.index % len(usable)])

    def is_moving(self, subtask: SubtaskId) -> bool:
        """Whether a request waits until ``subtask`` is at its home."""
        return subtask in self._moves

    def reason(self, chain: Chain) -> str:
        """Why the head of ``chain`` moves home."""
        host = self._hosts[chain.head]
        if chain.subtask in self._moves:
            return f"{chain.subtask} moves to slot {chain.home}, as requested"
        if chain.head in self._scaling.slots:
            return f"slot {chain.head} retires"
        return f"host {host} is drained" if host in self._host_drains else f"slot {chain.home} is back"

    @property
    def slots(self) -> tuple[int, ...]:
        """All slots, ascending, including spare ones that have joined."""
        return self._slots

    def is_retired(self, slot: int) -> bool:
        """Whether ``slot`` was a spare one, and has left the job."""
        return slot in self._retired

    @property
    def barred(self) -> tuple[int, ...]:
        """The slots on drained hosts, and retiring ones."""
        retiring = self._scaling.slots
        return tuple(slot for slot in self._slots if self._hosts[slot] in self._host_drains or slot in retiring)

    @property
    def drained_hosts(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(sorted(self._host_drains))

    @property
    def forced(self) -> tuple[int, ...]:
        """The slots that are drained, or retire, by force."""
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

    def update_hosts(self, hosts: Mapping[int, str]) -> None:
        """``hosts``: slot -> host; other slots are where they were, spare ones may be new. Raises ``PlacementError``,
        changing nothing."""
        known = {**self._hosts, **hosts}
        layout = self._lay_out(known, self._host_drains, self._scaling.slots)
        self._hosts, self._layout, self._slots = known, layout, tuple(sorted(known))
        for subtask in [subtask for subtask, slot in self._targets.items() if known[slot] in self._host_drains]:
            del self._targets[subtask]  # its slot is on another host than before

    # --------------------------------------------------------------------------------------------------- requests

    def request(self, event: Request, table: ChainTable) -> list[ReportMove]:
        """Handle a request, which may change the planned members of all chains. Returns the reports to all requests."""
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
        if subtask not in self._topology.subtasks:
            return [_refused(request, f"the job has no subtask {subtask} any more")]
        if slot not in self._slots:
            return [_refused(request, f"slot {slot} does not exist; the slots are {', '.join(map(str, self._slots))}")]
        if not table.is_alive(slot):
            return [_refused(request, f"slot {slot} is not registered; wait until it is, or choose another")]
        if slot in self._scaling.slots:
            return [_refused(request, f"slot {slot} is about to end, as requested; choose another")]
        host = self._hosts[slot]
        if host in self._host_drains:
            return [_refused(request, f"slot {slot} is on host {host}, which is drained; undrain that first")]
        ended = self._end(subtask, f"a newer request moves {subtask} to slot {slot}")
        self._moves[subtask] = _Move(request, slot, self._targets.get(subtask))
        self._targets[subtask] = slot
        return [*ended, ReportMove(request, "under_way", left=(subtask,))]

    def _drain_host(self, request: int, host: str, force: bool, table: ChainTable) -> list[ReportMove]:
        hosts = sorted(set(self._hosts.values()))
        if host not in hosts:
            return [_refused(request, f"no slot is on host {host}; the hosts are {', '.join(hosts)}")]
        staying = {known for slot, known in self._hosts.items() if slot not in self._scaling.slots}
        if all(other == host or other in self._host_drains for other in staying):
            return [_refused(request, f"no slot could take over from the slots on host {host}")]
        try:
            layout = self._lay_out(self._hosts, {host, *self._host_drains}, self._scaling.slots)
        except PlacementError as error:
            return [_refused(request, f"without host {host}: {error}")]
        loss = None if force else self._loss(layout)
        if loss is not None:
            return [_refused(request, f"without host {host}, {loss}", at_risk=True)]
        ended = []
        if host in self._host_drains:
            ended = self._host_drains[host].cancel(f"host {host} is drained by another request")
        there = [slot for slot, known in self._hosts.items() if known == host]
        ended += self._end_targets(there, lambda _: f"host {host} is drained")
        left = self._left(host, table)
        self._host_drains[host] = _Emptying(request, force, left)
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
        return [*drain.cancel(f"host {host} may be used again"), ReportMove(request, "done")]

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
            return [_refused(request, f"without {named}, {loss}", at_risk=True)]
        ended = self._scaling.cancel("a newer request scales the spare slots")
        ended += self._end_targets(retiring, lambda slot: f"slot {slot} is about to end, as requested")
        self._layout, self._scaling = layout, _Emptying(request, force, slots=retiring)
        self._scaling.left = self._left_to_scale(table)
        return [*ended, ReportMove(request, "under_way", left=self._scaling.left)]

    def _left_to_scale(self, table: ChainTable) -> tuple[SubtaskId, ...]:
        """The subtasks with a member on a retiring slot; without such slots, those whose chains are not as planned."""
        retiring = self._scaling.slots
        if retiring:
            return tuple(chain.subtask for chain in table if any(slot in retiring for slot in chain.members))
        return tuple(chain.subtask for chain in table if not table.is_as_planned(chain))

    def _loss(self, layout: Sequence[tuple[int, ...]]) -> str | None:
        """The redundancy that ``layout`` loses, or ``None``."""
        now, then = self._redundancy(self._layout), self._redundancy(layout)
        if then[0] >= now[0] and then[1] >= now[1]:
            return None
        return f"chains would have {_described(then)}, and have {_described(now)} now"

    def _redundancy(self, layout: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """The minimum of (members, hosts) of a chain."""
        hosts = [len({self._hosts[slot] for slot in planned}) for planned in layout]
        return min(len(planned) for planned in layout), min(hosts)

    # ------------------------------------------------------------------------------------------ ends and progress

    def lost(self, slots: Collection[int]) -> list[ReportMove]:
        """Subtasks that were moving to one of ``slots``, which are gone, stay where they are."""
        moving = [(subtask, move.slot) for subtask, move in self._moves.items() if move.slot in slots]
        return [report for subtask, slot in moving for report in self._end(subtask, f"slot {slot} was lost")]

    def refused(self, slot: int, subtasks: Sequence[SubtaskId], reason: str) -> list[ReportMove]:
        """``slot`` could not take ``subtasks`` over."""
        moving = [subtask for subtask in subtasks if subtask in self._moves and self._moves[subtask].slot == slot]
        return [report for subtask in moving for report in self._end(subtask, reason)]

    def interrupted(self, reason: str) -> list[ReportMove]:
        """All subtasks restart, on the slots of their numbers where these are usable. Hosts stay drained."""
        ended = [report for subtask in tuple(self._moves) for report in self._end(subtask, reason)]
        self._targets.clear()
        return ended

    def _end(self, subtask: SubtaskId, reason: str) -> list[ReportMove]:
        move = self._moves.pop(subtask, None)
        if move is None:
            return []
        if move.replaced is None or move.replaced not in self._slots or move.replaced in self.barred:
            del self._targets[subtask]
        else:
            self._targets[subtask] = move.replaced
        return [ReportMove(move.request, "cancelled", reason)]

    def _end_targets(self, slots: Collection[int], reason: Callable[[int], str]) -> list[ReportMove]:
        """No subtask may go to one of ``slots``, for the ``reason`` of that slot."""
        ended: list[ReportMove] = []
        for subtask, slot in [(subtask, slot) for subtask, slot in self._targets.items() if slot in slots]:
            ended += self._end(subtask, reason(slot))
            if self._targets.get(subtask) in slots:
                del self._targets[subtask]
        return ended

    def progress(self, table: ChainTable) -> list[ReportMove]:
        """No failover is under way: reports of finished requests, and of others whose rest has changed."""
        reports = []
        for subtask, move in tuple(self._moves.items()):
            if table[subtask].head == move.slot:
                del self._moves[subtask]
                reports.append(ReportMove(move.request, "done"))
        for host, drain in self._host_drains.items():
            if drain.waiting is not None:
                reports += drain.report(self._left(host, table))
        if self._scaling.waiting is not None:
            left = self._left_to_scale(table)
            reports += self._scaling.report(left)
            if not left:
                self._retire()
        return reports

    def _retire(self) -> None:
        """The spare slots that retire are empty, and leave the job."""
        self._retired.update(self._scaling.slots)
        self._hosts = {slot: host for slot, host in self._hosts.items() if slot not in self._scaling.slots}
        self._slots = tuple(sorted(self._hosts))
        self._scaling = _Emptying()

    def _left(self, host: str, table: ChainTable) -> tuple[SubtaskId, ...]:
        """The subtasks with a member on ``host``."""
        return tuple(chain.subtask for chain in table if any(self._hosts[slot] == host for slot in chain.members))


def _least_loaded(usable: Sequence[int], taken: Sequence[int], hosts: Mapping[int, str], nearest: Sequence[int]) -> int:
    """The slot of ``usable`` with the fewest of ``taken``, then on the host with the fewest, then first in
    ``nearest``."""
    on_hosts = [hosts[slot] for slot in taken]

    def load(slot: int) -> tuple[int, ...]:
        place = nearest.index(slot) if slot in nearest else len(nearest)
        return taken.count(slot), on_hosts.count(hosts[slot]), place, slot

    return min(usable, key=load)


def _refused(request: int, reason: str, at_risk: bool = False) -> ReportMove:
    return ReportMove(request, "refused", reason, at_risk=at_risk)


def _described(redundancy: tuple[int, int]) -> str:
    count, hosts = redundancy
    return f"{count} member{'s'[: count != 1]} on {hosts} host{'s'[: hosts != 1]}"
