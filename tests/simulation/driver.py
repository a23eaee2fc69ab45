"""What stands around the product's coordinator: durable storage, ZooKeeper, workers and connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from chain_backup.effects import ChainRecordLike
from flinkplus.protocol.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime import control

if TYPE_CHECKING:
    from tests.simulation.world import World

URGENT_TIMEOUT_MS = 15_000
IDLE_TIMEOUT_MS = 5_000


class Unavailable(Exception):
    """Storage or ZooKeeper does not do it, or does not say."""


class SimCommits:
    """Stands for ``Commits``: manifests and visible output. It outlives drivers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.manifests: dict[int, dict[str, Any]] = {}
        self.batches: dict[int, list[str]] = {}
        self.visible: set[str] = set()  # never iterated
        self.newest = 0
        self.newest_id = 0

    def store(
        self, checkpoint: CheckpointId, generation: Generation, handles: Sequence[tuple[SubtaskId, Any]], final: bool
    ) -> None:
        world = self._world
        unsure = False
        if world.storage_fails:
            unsure = world.rng_storage.random() < 0.5
            if not unsure:
                raise Unavailable("manifest refused")
        self.manifests[checkpoint] = {"generation": generation, "final": final, "handles": dict(handles)}
        self.newest_id = max(self.newest_id, checkpoint)
        if unsure:
            raise Unavailable("nobody knows whether the manifest is stored")
        self.newest = checkpoint
        world.checks.completed(checkpoint, dict(handles))

    def commit(self, checkpoint: CheckpointId) -> None:
        world = self._world
        if world.commits_fail and world.rng_storage.random() < 0.8:
            raise Unavailable("commit refused")
        rows: list[Any] = []
        batch = self.batches.setdefault(checkpoint, [])
        for handle in self.manifests[checkpoint]["handles"].values():
            for name, _, staged in handle["operator_state"]["work"].get("staged", ()):
                if name not in self.visible:
                    self.visible.add(name)
                    batch.append(name)
                    rows.extend(staged)
        if rows:
            world.checks.committed(checkpoint, rows)
        if world.commits_fail and world.rng_storage.random() < 0.5:
            raise Unavailable("nobody knows whether the output is visible")

    def drop(self, checkpoint: CheckpointId) -> None:
        self.manifests.pop(checkpoint, None)

    def handles(self, checkpoint: CheckpointId) -> dict[str, dict[str, Any]]:
        return {str(subtask): handle for subtask, handle in self.manifests[checkpoint]["handles"].items()}

    def collect_garbage(self, generation: Generation) -> None:
        return None

    def retract_after(self, checkpoint: CheckpointId | None) -> None:
        raise NotImplementedError("no manifest is ever damaged here")

    def adopt(self) -> tuple[CheckpointId | None, bool]:
        """A new driver goes on from the newest manifest: what that covers becomes visible. Also: whether it is the
        last one."""
        if not self.manifests:
            return None, False
        newest = CheckpointId(max(self.manifests))
        if newest > self.newest:  # its store was said to have failed, or nobody lived to hear of it
            self.newest = newest
            self._world.checks.completed(newest, self.manifests[newest]["handles"])
        for checkpoint in sorted(self.manifests):
            self.commit(CheckpointId(checkpoint))
        return newest, bool(self.manifests[newest]["final"])


class SimRegistry:
    """ZooKeeper: the records of chains. Stands for ``JobRegistry``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: dict[SubtaskId, ChainRecordLike] = {}
        self.is_away = False
        self.is_unsure = False

    def write(self, records: Sequence[ChainRecordLike], urgent: bool) -> None:
        if self.is_away:
            raise Unavailable("no answer from ZooKeeper")
        for record in records:
            known = self.records.get(record.subtask)
            if known is not None and known.generation > record.generation:
                raise Unavailable(f"{record.subtask} has generation {known.generation} already")
        self.records.update({record.subtask: record for record in records})
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

    def _next(self) -> None:
        if self.closed or not self._queue:
            self._busy = False
            return
        action, arguments, until_ms = self._queue[0]
        if not self._ready() and self._world.now_ms < until_ms:
            self._world.at(self._world.now_ms + 10, self._next)
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
    """Stands for ``SpareSlotJobs``."""

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
