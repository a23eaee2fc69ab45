"""The chains of a job and their upkeep: members, which versions each has, what is stable, what may be trimmed.

Rules:

- A chain has two generations: the *newest* that it was given (in ZooKeeper, at the fences), and the *working* one,
  whose head was ordered to start. They differ while a failover is under way. Reports of snapshots and of staged
  versions count when they are of the working generation: so what the dead head did last is used, until its successor
  has a version to start from.
- A version belongs to a history. When a successor starts from version ``v``, newer versions are void everywhere.
- A member that joins a running chain does not count for what is stable before it has caught up, and no longer counts
  when it falls too many complete checkpoints behind. (It would keep every log in the job from being trimmed.)
- A slot that joins becomes the tail of the chains that it is planned for, when no failover is under way.
- The planned members change while the job runs. A standby that is not planned any more is *surplus*. It leaves when all
  planned members are there and have what is complete, so that a change of plans makes no chain shorter; by force, it
  does not wait for planned members that are dead.
- Without standbys a chain has one member, its head. When that is lost, another living slot takes its place, and gets
  the version from the durable store.

Invariants: the members of a chain are alive and all different; of each member, versions that are aborted, or older than
the last trim, are forgotten, except for its newest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chain_backup.failover.effects import ChainEntry, FailoverEffect, FormChains, TrimLogs, WriteRecords
from chain_backup.failover.recovery_line import NoLine, VersionCursors, recovery_line
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, SubtaskId, invariant

MAX_ABORTED = 1_000
"""Maximum of aborted checkpoints that are remembered; the oldest are forgotten first."""


@dataclass(slots=True)
class Chain:
    """The chain of one subtask."""

    subtask: SubtaskId
    planned: tuple[int, ...]
    """The planned members, the home slot first."""
    members: tuple[int, ...]
    """Living slots, the head (the one that runs, or the one to be promoted) first."""
    generation: Generation
    working: Generation
    restored: int
    """The version that the working head started from."""
    persisted: dict[int, VersionCursors]
    """Versions that the working head has in the durable store, with their cursors; never empty."""
    staged: dict[int, set[int]] = field(default_factory=dict)
    """Slot -> versions that its standby can start from; the sets are never iterated in an order that shows."""
    catching_up: set[int] = field(default_factory=set)  # never iterated
    unsettled: int = 0
    """Checkpoints that must become complete before the head has received again all that its predecessor had."""

    @property
    def head(self) -> int:
        return self.members[0]

    @property
    def home(self) -> int:
        return self.planned[0]

    @property
    def stable(self) -> int:
        """The newest version that the head and all standbys that count have; -1 without one."""
        counted = [self.newest_staged(slot) for slot in self.members[1:] if slot not in self.catching_up]
        return min([max(self.persisted), *counted])

    def newest_staged(self, slot: int) -> int:
        """The newest version that the standby on ``slot`` has; -1 without one."""
        return max(self.staged.get(slot, ()), default=-1)

    def newest_held(self, slot: int) -> int | None:
        """The newest version that a member has, the head or a standby; ``None``: none."""
        return max(self.persisted if slot == self.head else self.staged.get(slot, ()), default=None)

    def entry(self) -> ChainEntry:
        return ChainEntry(self.subtask, self.generation, self.members, max(self.stable, 0))

    def add_tail(self, slot: int) -> None:
        self.members = (*self.members, slot)
        self.staged.pop(slot, None)
        self.catching_up.add(slot)

    def remove(self, slot: int) -> bool:
        """Whether ``slot`` was a member."""
        if slot not in self.members:
            return False
        self.members = tuple(member for member in self.members if member != slot)
        self.staged.pop(slot, None)
        self.catching_up.discard(slot)
        return True

    def put_first(self, slot: int) -> None:
        self.members = (slot, *(member for member in self.members if member != slot))

    def put_best_first(self, complete: int) -> None:
        """Choose the head to be promoted: the first member that has ``complete`` or newer, preferably one that is not
        surplus; otherwise the first."""
        ready = [slot for slot in self.members if self.newest_staged(slot) >= complete]
        planned = [slot for slot in ready if slot in self.planned]
        self.put_first((planned or ready or list(self.members))[0])

    def begin(self, version: int, unsettled: int) -> None:
        """The head is ordered to start from ``version``, in the newest generation."""
        self.working = self.generation
        self.restored = version
        self.unsettled = unsettled
        self.persisted = {known: cursors for known, cursors in self.persisted.items() if known <= version}
        self.staged = {
            slot: {known for known in versions if known <= version}
            for slot, versions in self.staged.items()
            if slot != self.head
        }
        self.catching_up.discard(self.head)

    def forget(self, is_void: Callable[[int], bool]) -> None:
        """Forget these versions, except for the newest of each member."""
        newest = max(self.persisted)
        self.persisted = {v: cursors for v, cursors in self.persisted.items() if v == newest or not is_void(v)}
        for slot, staged in self.staged.items():
            newest = self.newest_staged(slot)
            self.staged[slot] = {v for v in staged if v == newest or not is_void(v)}


class ChainTable:
    """All chains of one deployment; none before the first one and after the last."""

    def __init__(self, topology: Topology, standbys: bool = True) -> None:
        self._topology = topology
        self._standbys = standbys
        self.clear()

    def clear(self) -> None:
        """The deployment is over."""
        self._alive: set[int] = set()  # never iterated
        self._aborted: set[int] = set()  # never iterated in an order that shows
        self._untrimmed: list[int] = []  # complete, newer than trimmed, ascending
        self._unwritten: set[SubtaskId] = set()  # never iterated
        self._chains: dict[SubtaskId, Chain] = {}  # sorted
        self.complete = self.trimmed = 0

    def form(
        self,
        planned: Callable[[SubtaskId], tuple[int, ...]],
        slots: Sequence[int],
        generation: Generation,
        version: int,
        cursors: Mapping[SubtaskId, VersionCursors],
        heads: Mapping[SubtaskId, int],
    ) -> None:
        """A deployment started from ``version``, with ``cursors`` (absent: all 0). All ``slots`` are alive.

        Each subtask runs where ``heads`` says (absent: on the slot of its number). Each chain is as ``planned``, except
        for its head and for members planned on other slots, which have not joined yet.
        """
        self._alive = set(slots)
        self.complete = self.trimmed = version
        self._unwritten = set(self._topology.subtasks)
        chains: dict[SubtaskId, Chain] = {}
        for subtask in self._topology.subtasks:
            head = heads.get(subtask, slots[subtask.index % len(slots)])
            here = [slot for slot in planned(subtask) if slot != head and slot in self._alive]
            standbys = here if self._standbys else []
            chains[subtask] = Chain(
                subtask=subtask,
                planned=planned(subtask),
                members=(head, *standbys),
                generation=generation,
                working=generation,
                restored=version,
                persisted={version: cursors.get(subtask, VersionCursors())},
                staged={slot: {0} for slot in standbys} if version == 0 else {},
            )
        self._chains = chains

    def replan(self, planned: Callable[[SubtaskId], tuple[int, ...]]) -> None:
        """Chains are to be as ``planned`` from now on."""
        for chain in self:
            chain.planned = planned(chain.subtask)

    def __getitem__(self, subtask: SubtaskId) -> Chain:
        return self._chains[subtask]

    def __iter__(self) -> Iterator[Chain]:
        """Sorted by subtask."""
        return iter(self._chains.values())

    # ----------------------------------------------------------------------------------------------------- members

    def is_alive(self, slot: int) -> bool:
        return slot in self._alive

    def lose(self, slots: Sequence[int]) -> list[SubtaskId]:
        """Take ``slots`` out of every chain; the subtasks that lose their head."""
        self._alive.difference_update(slots)
        headless = [chain.subtask for chain in self if chain.head in slots]
        for chain in self:
            if any([chain.remove(slot) for slot in slots]):
                self._unwritten.add(chain.subtask)
        return headless

    def drop_head(self, subtask: SubtaskId) -> None:
        """The head leaves its chain, though its slot lives."""
        self[subtask].remove(self[subtask].head)
        self._unwritten.add(subtask)

    def put_anywhere(self, subtask: SubtaskId, excluded: Sequence[int], avoided: Collection[int]) -> None:
        """A subtask without a head gets one on a living slot that is not ``excluded``, if there is one: on the first
        planned one, otherwise where the fewest subtasks run, and on an ``avoided`` one only if no other is left."""
        chain = self[subtask]
        running = [other.head for other in self if other.members]
        others = sorted(
            self._alive.difference(chain.planned), key=lambda slot: (slot in avoided, running.count(slot), slot)
        )
        fit = [slot for slot in (*chain.planned, *others) if slot in self._alive and slot not in excluded]
        chain.members = tuple(fit[:1])
        self._unwritten.add(subtask)

    def reinstate(self, subtask: SubtaskId, members: tuple[int, ...]) -> None:
        """The working head continues as if no other had been chosen, with those of ``members`` that live."""
        chain = self[subtask]
        chain.members = tuple(slot for slot in members if slot in self._alive)
        chain.generation = chain.working
        self._unwritten.add(subtask)

    def unsettled(self, failed: Sequence[SubtaskId]) -> tuple[SubtaskId, ...]:
        """The living subtasks that may not have received again all that their predecessors had."""
        return tuple(chain.subtask for chain in self if chain.unsettled and chain.subtask not in failed)

    def join(self, slot: int) -> None:
        self._alive.add(slot)

    def keep(self, slots: Collection[int]) -> None:
        """Slots other than ``slots`` have left the job; they are in no chain."""
        gone = self._alive.difference(slots)
        in_use = any(slot in gone for chain in self for slot in chain.members)
        invariant(not in_use, "a slot with work was taken away", slots=gone)
        self._alive -= gone

    def adjust(self, forced: Collection[int]) -> list[FailoverEffect]:
        """No failover is under way: living planned members join, as tails; surplus standbys leave full chains. Those on
        ``forced`` slots do not wait for dead planned members."""
        for chain in self if self._standbys else ():
            members = chain.members
            for slot in chain.planned:
                if slot in self._alive and slot not in chain.members:
                    chain.add_tail(slot)
            for slot in [slot for slot in chain.members[1:] if slot not in chain.planned]:
                if self.is_full(chain, slot in forced):
                    chain.remove(slot)
            if chain.members != members:
                self._unwritten.add(chain.subtask)
        return self.publish() + self.trim()

    def is_full(self, chain: Chain, only_living: bool) -> bool:
        """Whether all planned members of ``chain`` are there and have what is complete.

        ``only_living``: dead ones do not count.
        """
        wanted = [slot for slot in chain.planned if slot != chain.head and (slot in self._alive or not only_living)]
        return not self._standbys or all(
            slot in chain.members and slot not in chain.catching_up and chain.newest_staged(slot) >= self.complete
            for slot in wanted
        )

    def is_as_planned(self, chain: Chain) -> bool:
        """Whether all planned members are there and have what is complete, and no others are."""
        return not self._standbys or (self.is_full(chain, False) and set(chain.members) <= set(chain.planned))

    def entries(self, subtasks: Sequence[SubtaskId]) -> tuple[ChainEntry, ...]:
        """The records of ``subtasks``, which are being written."""
        self._unwritten.difference_update(subtasks)
        return tuple(self[subtask].entry() for subtask in subtasks)

    def publish(self) -> list[FailoverEffect]:
        """Write the records of the chains that changed, and send all slots the members; empty when none changed. The
        first records of a deployment are all that there are: no slot needs those of subtasks that it does not have."""
        whole = len(self._unwritten) == len(self._chains)
        records = self.entries([chain.subtask for chain in self if chain.subtask in self._unwritten])
        return [WriteRecords(None, records, whole), self.formation()] if records else []

    def formation(self) -> FormChains:
        return FormChains(tuple((chain.subtask, chain.generation, chain.members) for chain in self))

    # ---------------------------------------------------------------------------------------- versions, checkpoints

    def persist(self, subtask: SubtaskId, version: int, cursors: VersionCursors) -> None:
        """The working head has ``version`` in the durable store."""
        chain = self[subtask]
        if version > chain.restored:
            chain.persisted.setdefault(version, cursors)
            chain.forget(self._aborted.__contains__)

    def stage(self, subtask: SubtaskId, slot: int, version: int) -> None:
        """``slot`` has ``version``; it has caught up when that is not older than what is trimmed."""
        chain = self[subtask]
        chain.staged.setdefault(slot, set()).add(version)
        chain.forget(self._aborted.__contains__)
        if version >= self.trimmed:
            chain.catching_up.discard(slot)

    def abort(self, version: int) -> None:
        if version <= self.complete:
            return
        self._aborted.add(version)
        if len(self._aborted) > MAX_ABORTED:
            self._aborted.remove(min(self._aborted))

    def finish(self, version: int, max_behind: int) -> bool:
        """``version`` is complete; standbys that lack ``max_behind`` complete ones do not count any more. False when
        that was known. Raises ``InvariantViolation`` when it is not in the history of every subtask.
        """
        if version <= self.complete:
            return False
        invariant(self._is_everywhere(version), "a checkpoint is complete that not all have", version=version)
        self.complete = version
        self._aborted = {aborted for aborted in self._aborted if aborted > version}
        self._untrimmed.append(version)
        oldest = self._untrimmed[-max_behind] if len(self._untrimmed) > max_behind else None
        for chain in self:
            chain.unsettled = max(0, chain.unsettled - 1)
            for slot in chain.members[1:]:
                if oldest is not None and chain.newest_staged(slot) < oldest:
                    chain.catching_up.add(slot)
        return True

    def _is_everywhere(self, version: int) -> bool:
        return all(version in chain.persisted for chain in self)

    def trim(self) -> list[FailoverEffect]:
        """Trim to the newest complete version that every chain has. Not during a failover that slots know of: a
        checkpoint may become complete meanwhile, while promoted subtasks still replay from the one before."""
        if not self._untrimmed:
            return []
        stable = min(chain.stable for chain in self)
        done = [version for version in self._untrimmed if version <= stable]
        if not done:
            return []
        self.trimmed = done[-1]
        self._untrimmed = self._untrimmed[len(done) :]
        for chain in self:
            chain.forget(lambda version: version < self.trimmed)
        return [TrimLogs(self.trimmed)]

    # ---------------------------------------------------------------------------------------------------- the line

    def line(
        self, failed: Sequence[SubtaskId], received: Mapping[ChannelId, int], pending: bool
    ) -> Mapping[SubtaskId, int] | NoLine:
        """The versions from which ``failed`` start, whose chains have their new heads first; ``received``: as living
        slots reported.

        ``pending``: also from versions of checkpoints that are not complete, nor about to be.
        """
        living = [chain for chain in self if chain.subtask not in failed]
        known = dict(received)
        for chain in living:  # one that is being promoted may have reported nothing yet
            for channel, expected in chain.persisted[max(chain.persisted)].inputs.items():
                known[channel] = max(known.get(channel, 0), expected)
        versions = {
            subtask: {v: c for v, c in self[subtask].persisted.items() if self._can_begin(self[subtask], v, pending)}
            for subtask in failed
        }
        restored = {chain.subtask: chain.restored for chain in living}
        return recovery_line(failed, versions, known, self.complete, self._topology, restored)

    def _can_begin(self, chain: Chain, version: int, pending: bool) -> bool:
        """A version that every head has in the durable store is complete, or about to be: no subtask may go back behind
        it then, since output up to it will be committed."""
        if version in self._aborted:
            return False
        if version == self.complete or self._is_everywhere(version):
            return True
        return pending and version in chain.staged.get(chain.head, ())
