"""Savepoints of a simulated job: the place that they are copied to, and the new job that begins with one.

Stands for ``flinkplus.state.durable.savepoint`` and ``flinkplus.runtime.job.savepoints``. When a savepoint is taken,
copied, published and given up, and when the job stops with it, is decided by the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from flinkplus.errors import SavepointError
from flinkplus.protocol.vocabulary.ids import parallelism_of
from flinkplus.runtime.coordinator.drivers.savepoints import Savepoint
from flinkplus.state.durable.savepoint import Copied
from tests.simulation.driver import Durable, SimCommits, Unavailable, names_in
from tests.simulation.parameters import MOST_SUBTASKS
from tests.simulation.table import SimTable

if TYPE_CHECKING:
    from flinkplus.runtime.coordinator.coordinator import Coordinator
    from tests.simulation.world import World

POLL_MS = 300
"""From one look whether the storage hangs to the next."""


@dataclass(frozen=True)
class Content:
    """What a savepoint holds. ``state``: its files, with generation and checkpoint. ``visible``: what is not in it: the
    output that was visible when it was copied."""

    checkpoint: int
    manifest: dict[str, Any]
    state: dict[str, tuple[int, int]]
    visible: frozenset[str]


@dataclass(eq=False)
class SimSavepointWriter:
    """Stands for ``SavepointWriter``."""

    world: World
    commits: SimCommits
    target: Any
    progressed: Callable[[], None] = lambda: None
    copied: Copied = field(default_factory=Copied)
    published: bool = False
    content: Content | None = None
    cancelled: bool = False

    def _reach(self) -> None:
        world = self.world
        if self.cancelled:
            raise SavepointError("given up")
        if (world.uploads_fail or world.storage_fails) and world.rng_saved.random() < 0.5:
            raise Unavailable("the savepoint's storage refuses")

    def begin(self) -> None:
        self._reach()

    def copy(self, checkpoint: int, _stopped: bool) -> None:
        self._reach()
        manifest = self.commits.manifests.get(checkpoint)
        durable = self.world.durable
        self.world.checks.is_savepoint(checkpoint, None if manifest is None else manifest["handles"])
        assert manifest is not None
        state = {name: durable.state[name] for name in names_in(manifest)}
        self.content = Content(checkpoint, {**manifest, "divided": None, "of": 0}, state, frozenset(durable.visible))

    def publish(self) -> None:
        self._reach()
        self.published = True

    def cancel(self) -> None:
        self.cancelled = True

    def remove(self) -> None:
        self.published = False


class SimSavepoints:
    """The savepoints that a user asks for in one world, one driver after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._writers: dict[str, SimSavepointWriter] = {}
        self.open: list[Savepoint] = []
        """Not ended yet."""

    def writer_for(self, target: str) -> Any:
        world = self._world
        writer = SimSavepointWriter(world, world.commits, SimpleNamespace(uri=target))
        self._writers[target] = writer
        return writer

    def watch(self, coordinator: Coordinator) -> None:
        """A driver begins: what its threads would do happens in between."""
        self.open.clear()
        rng = self._world.rng_saved

        def in_thread(action: Callable[[], None]) -> None:
            self._world.at(self._world.now_ms + rng.choice((0, 1, 3, 10, 40, 150)), self._act, coordinator, action)

        coordinator.savepoints._in_thread = in_thread  # type: ignore[method-assign]

    def _act(self, coordinator: Coordinator, action: Callable[[], None]) -> None:
        world = self._world
        if coordinator is not world.coordinator or world.ended is not None:
            return  # the driver is dead, and its threads as well
        if world.storage_hangs:
            world.at(world.now_ms + POLL_MS, self._act, coordinator, action)
            return
        action()
        world.coordinator_turns()

    def request(self, stop: bool) -> None:
        """A user asks for one, to go on beside it or to stop with it."""
        coordinator = self._world.coordinator
        if coordinator is not None:
            savepoint = coordinator.savepoints.request(f"/savepoints/{len(self._writers)}", stop)
            self.open.append(savepoint)
            self._world.endings.savepoint_requested(savepoint)
            self._world.coordinator_turns()

    def look(self) -> None:
        """What has ended is counted, once."""
        for savepoint in [one for one in self.open if one.ended]:
            self.open.remove(savepoint)
            self._world.note("%r: %s", savepoint, savepoint.error or "")
            self._world.counts[f"savepoint_{savepoint.status}"] += 1

    def job_over(self, coordinator: Coordinator) -> None:
        """The job is over, and what its thread does then is done: no request is under way any more."""
        coordinator.savepoints.close()
        for savepoint in self.open:
            if not savepoint.ended:
                self._world.checks.endless(f"{savepoint!r}, and the job is over")
        self.look()

    def begin_anew(self, coordinator: Coordinator) -> None:
        """The job was stopped with a savepoint, and its checkpoints are gone; a new job begins with the savepoint, with
        the same output, and perhaps at another parallelism."""
        world, known = self._world, coordinator.savepoints.as_dicts()
        done = [one for one in known if one["stop"] and one["status"] == "done"]
        writer = self._writers[done[-1]["target"]] if done else None
        content = None if writer is None or not writer.published else writer.content
        world.checks.stopped(None if content is None else (content.checkpoint, content.visible))
        assert content is not None
        handles = content.manifest["handles"]
        parallelism = parallelism_of(handles)
        world.checks.begins_with(content.checkpoint, handles)
        if world.parameters.groups:
            parallelism = world.rng_saved.randint(1, MOST_SUBTASKS)
        world.durable = durable_of(content, world.durable, parallelism)
        world.table = SimTable(world)  # the new job has a table of its own
        world.counts["savepoint_restored"] += 1


def durable_of(content: Content, before: Durable, parallelism: int) -> Durable:
    """The storage of a new job, with nothing but the savepoint, and the output that is there."""
    durable = Durable(parallelism)
    durable.manifests[content.checkpoint, 0] = content.manifest
    durable.state.update(content.state)
    durable.uploaded_at.update(dict.fromkeys(content.state, before.completed))
    durable.completed = before.completed
    durable.newest = durable.committed = content.checkpoint
    durable.visible = set(before.visible)
    return durable
