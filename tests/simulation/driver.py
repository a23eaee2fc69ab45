"""What stands around the product's coordinator: durable storage, ZooKeeper, workers and connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from chain_backup.failover.effects import ChainEntry
from flinkplus.protocol.determinants.recipe import StoredOutput
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.state.durable.history import EPOCHS_PER_RUN, Cut, Cuts, UnusedFiles, left_behind
from tests.simulation.subtask import work_of
from tests.simulation.table import LOST

if TYPE_CHECKING:
    from tests.simulation.world import World

URGENT_TIMEOUT_MS = 15_000
IDLE_TIMEOUT_MS = 5_000
POLL_MS = {"storage": 300, "registry": 10}
"""From one look whether the other side answers to the next."""
LATE_MS = (20, 60, 200, 1_000, 10_000)
"""After it was given up, a manifest may appear so much later."""


class Unavailable(OSError):
    """Storage or ZooKeeper does not do it, or does not say."""


class Durable:
    """What outlives drivers: manifests with the epochs that they were written in, cuts, state files, output."""

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism
        """That of the job's plan, which a resume uses."""
        self.manifests: dict[tuple[int, int], dict[str, Any]] = {}  # by checkpoint and epoch
        self.cuts = Cuts()
        self.state: dict[str, tuple[int, int]] = {}  # file -> generation and checkpoint in its name
        self.uploaded_at: dict[str, int] = {}  # file -> complete checkpoints before it was stored
        self.completed = 0
        self.newest = 0
        self.committed = 0
        self.visible: set[str] = set()  # never iterated
        self.removed: list[tuple[int, int]] = []
        """Staged output that is gone: of generations before the first number, and checkpoints after the second."""

    def put(self, name: str) -> None:
        """A state file is stored."""
        generation, checkpoint, _ = name.rpartition("/")[2].split("-")
        self.state[name] = int(generation), int(checkpoint)
        self.uploaded_at[name] = self.completed

    def valid(self) -> dict[int, dict[str, Any]]:
        """Checkpoint -> manifest, of those that count."""
        found = self.manifests.items()
        return {number: what for (number, epoch), what in found if not self.cuts.voids(epoch, number)}

    def named(self) -> set[str]:
        """What the manifests name."""
        return {name for manifest in self.valid().values() for name in names_in(manifest)}

    def unnamed(self) -> list[str]:
        """State files that no manifest names."""
        named = self.named()
        return [name for name in self.state if name not in named]

    def remove(self, names: Iterable[str]) -> None:
        """State files go."""
        for name in names:
            self.state.pop(name, None)


def names_in(manifest: dict[str, Any]) -> set[str]:
    """The state files that a manifest names."""
    return {file.name for handle in manifest["handles"].values() for file in handle.files}


class SimCommits:
    """Stands for ``Commits``, in one run of the job."""

    def __init__(self, world: World, durable: Durable, run: int) -> None:
        self._world = world
        self.durable = durable
        self._run = run
        self._epoch = run * EPOCHS_PER_RUN
        self._unsure = False
        self._unused = UnusedFiles()

    @property
    def newest(self) -> int:
        """The newest complete checkpoint that the driver knows of."""
        return self.durable.newest

    @property
    def manifests(self) -> dict[int, dict[str, Any]]:
        """Those that count."""
        return self.durable.valid()

    def _check(self) -> None:
        if self._world.commits is not self:
            raise Unavailable("another driver has taken over the job")

    def store(
        self,
        checkpoint: CheckpointId,
        generation: Generation,
        handles: Sequence[tuple[SubtaskId, Any]],
        final: bool,
        divided: dict[SubtaskId, SnapshotHandle] | None = None,
    ) -> None:
        """``divided``: the snapshots of the checkpoint that was divided for this one, if it was made so."""
        world = self._world
        manifest = {"generation": generation, "final": final, "handles": dict(handles), "divided": divided}
        key = int(checkpoint), self._epoch
        if world.commits is not self:  # a hung write ends after the job was resumed
            if world.rng_late.random() < 0.5:
                self._appear(key, manifest)
            raise Unavailable("another driver has taken over the job")
        unsure = False
        self._unsure = True
        if world.storage_fails:
            unsure = world.rng_storage.random() < 0.5
            if not unsure:
                if world.rng_late.random() < 0.5:
                    world.at(world.now_ms + world.rng_late.choice(LATE_MS), self._appear, key, manifest)
                raise Unavailable("manifest refused")
        self.durable.manifests[key] = manifest
        if unsure:
            raise Unavailable("nobody knows whether the manifest is stored")
        self._unsure = False
        self.durable.newest = checkpoint
        if divided is None:
            world.checks.completed(checkpoint, dict(handles))

    def _appear(self, key: tuple[int, int], manifest: dict[str, Any]) -> None:
        """On an object store, a write that was given up happens all the same."""
        self._world.note("the manifest of checkpoint %s appears late", key[0])
        self._world.counts["late_manifests"] += 1
        self.durable.manifests[key] = manifest

    def commit(self, checkpoint: CheckpointId) -> None:
        self._check()
        world, durable = self._world, self.durable
        if world.commits_fail and world.rng_storage.random() < 0.8:
            raise Unavailable("commit refused")
        rows: list[Any] = []
        for handle in self.manifests[checkpoint]["handles"].values():
            for name, staged_for, staged in work_of(handle.operator_state)["staged"]:
                if name not in durable.visible:
                    world.checks.is_staged(name, staged_for, durable.removed)
                    durable.visible.add(name)
                    rows.extend(staged)
        durable.committed = max(durable.committed, checkpoint)
        if rows:
            world.checks.committed(checkpoint, rows)
        if world.commits_fail and world.rng_storage.random() < 0.5:
            raise Unavailable("nobody knows whether the output is visible")

    def fence_output(
        self, sink: str, generation: Generation, subtasks: Sequence[int], parallelism: int, patience_s: float
    ) -> dict[int, StoredOutput]:
        self._check()
        if self._world.table.is_away:
            raise Unavailable("the database is away")
        self._world.checks.counts["fenced_output"] += 1
        fenced = [SubtaskId(sink, index) for index in subtasks]
        if self._world.rng_table.random() < LOST:  # it was carried out, and is carried out again over a new connection
            self._world.checks.counts["fenced_twice"] += 1
            self._world.table.fence(generation, fenced)
        return self._world.table.fence(generation, fenced)

    def drop(self, checkpoint: CheckpointId) -> None:
        self._check()
        durable = self.durable
        if checkpoint > durable.newest:
            self._void_unsure_manifest()
            return
        dropped = [key for key in durable.manifests if key[0] == checkpoint]
        mine = {name for key in dropped for name in names_in(durable.manifests[key])}
        for key in dropped:
            del durable.manifests[key]
        durable.remove(mine - durable.named())

    def _withdraw_after(self, checkpoint: int) -> None:
        self._epoch += 1
        durable = self.durable
        durable.cuts = durable.cuts.united(Cuts([Cut(self._epoch, checkpoint)]))
        self._remove_void()

    def _remove_void(self) -> None:
        durable = self.durable
        for number, epoch in list(durable.manifests):
            if durable.cuts.voids(epoch, number):
                del durable.manifests[number, epoch]

    def _void_unsure_manifest(self) -> None:
        if self._unsure:
            self._withdraw_after(self.newest)
            self._unsure = False

    def handles(self, checkpoint: CheckpointId) -> dict[str, SnapshotHandle]:
        return {str(subtask): handle for subtask, handle in self.manifests[checkpoint]["handles"].items()}

    def collect_garbage(self, generation: Generation) -> None:
        self._check()
        self._void_unsure_manifest()
        durable = self.durable
        durable.remove(left_behind(durable.state, durable.named(), generation, durable.newest))

    def sweep(self, complete: CheckpointId, triggered: CheckpointId) -> None:
        self._check()
        self._void_unsure_manifest()
        self._remove_void()
        durable = self.durable
        stored = {name: checkpoint for name, (_, checkpoint) in durable.state.items()}
        durable.remove(self._unused.find(stored, durable.named(), complete, triggered))

    def end(self, finished: bool) -> None:
        """The job is over; see ``Commits.end``."""
        durable = self.durable
        if not finished and durable.committed == durable.newest:
            self._withdraw_after(self.newest)
            durable.removed.append((self._world.generations_of(self._run + 1), self.newest))
        durable.remove(durable.unnamed())

    def retract_after(self, checkpoint: CheckpointId | None) -> None:
        raise NotImplementedError("no manifest is ever damaged here")

    def adopt(self) -> tuple[CheckpointId | None, bool]:
        """A new driver begins with the newest manifest that counts: what that covers becomes visible. Also: whether it
        is the last one."""
        durable = self.durable
        manifests = self.manifests
        newest = CheckpointId(max(manifests, default=0))
        self._world.checks.nothing_is_taken_back(newest, durable.committed)
        self._withdraw_after(newest)
        durable.removed.append((self._world.generations_of(self._run), newest))
        if not manifests:
            return None, False
        if newest > durable.newest:  # its store was reported as failed, or the driver died before the report
            durable.newest = newest
            handles, divided = manifests[newest]["handles"], manifests[newest]["divided"]
            if divided is None:
                self._world.checks.completed(newest, handles)
            else:
                self._world.checks.divided(newest, divided, handles)
        for checkpoint in sorted(manifests):
            self.commit(CheckpointId(checkpoint))
        return newest, bool(manifests[newest]["final"])


class SimRegistry:
    """ZooKeeper: the records of chains. Stands for ``JobRegistry``."""

    moved: str | None = None
    begun = True

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: dict[SubtaskId, ChainEntry] = {}
        self.is_away = False
        self.is_unsure = False

    def write(self, records: Sequence[ChainEntry], urgent: bool, whole: bool = False) -> None:
        if self.is_away:
            raise Unavailable("no answer from ZooKeeper")
        for record in records:
            known = self.records.get(record.subtask)
            if known is not None and known.generation > record.generation:
                raise Unavailable(f"{record.subtask} has generation {known.generation} already")
        self.records = {**({} if whole else self.records), **{record.subtask: record for record in records}}
        if self.is_unsure and self._world.rng_storage.random() < 0.5:
            raise Unavailable("ZooKeeper took the records, or it did not")


class SimWorker:
    """Stands for an executor of one thread: what it is given is done in order, after ``delay_ms``, and not before
    ``ready``, or the time that its caller has."""

    def __init__(
        self, world: World, name: str, delay_ms: Callable[[], int], ready: Callable[[], bool], patience_ms: int
    ) -> None:
        self._world = world
        self.name = name
        self._delay_ms = delay_ms
        self._ready = ready
        self._patience_ms = patience_ms
        self._queue: list[tuple[Callable[..., Any], tuple[Any, ...], int]] = []
        self._busy = False
        self.closed = False

    def submit(self, action: Callable[..., Any], /, *arguments: Any) -> None:
        self._queue.append((action, arguments, self._world.now_ms + self._patience_ms))
        if not self._busy:
            self._busy = True
            self._world.at(self._world.now_ms + self._delay_ms(), self._next)

    def work_off(self) -> None:
        """Do all that is left, at once."""
        while self._queue:
            action, arguments, _ = self._queue.pop(0)
            action(*arguments)

    def _next(self) -> None:
        if self.closed or not self._queue:
            self._busy = False
            return
        action, arguments, until_ms = self._queue[0]
        if not self._ready() and self._world.now_ms < until_ms:
            self._world.at(self._world.now_ms + POLL_MS[self.name], self._next)
            return
        del self._queue[0]
        action(*arguments)
        self._world.coordinator_turns()
        if self._queue and not self.closed:
            self._world.at(self._world.now_ms + self._delay_ms(), self._next)
        else:
            self._busy = False

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        return None


class SimSpareJobs:
    """Stands for ``SlotJobs``."""

    def __init__(self, world: World, run: int) -> None:
        self._world = world
        self._run = run

    def check(self, slots: int) -> None:
        return None

    def start(self, slot: int) -> None:
        world = self._world
        world.at(world.now_ms + world.rng_spark.randint(3, 60), world.start_spare, slot, self._run)

    def end(self, slot: int, graceful_s: float, then: Callable[[], None]) -> None:
        self._world.end_spare(slot, round(graceful_s * 1000), then, self._run)


class SimInbox(deque[Any]):
    """Stands for ``Inbox``."""

    put = deque.append

    def empty(self) -> bool:
        return not self


class SimRendezvous:
    """Stands for ``Rendezvous``: the coordinator's end of the control streams."""

    def __init__(self, world: World) -> None:
        self._world = world

    def send(self, connection: int, message: control.ControlMessage) -> None:
        self._world.order(connection, message)

    def drop(self, connection: int) -> None:
        self._world.drop(connection)

    def close(self) -> None:
        return None
