"""The parts of a coordinator, each created once and connected here.

Rules: a part gets what it uses in its constructor, except for the drivers: they and the machines step each other, so
they are connected afterwards (``JobMachines.obeyed_by``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.topology import Topology
from flinkplus.config import Options
from flinkplus.graph import JobGraph
from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.job.job import JobProtocol
from flinkplus.protocol.liveness.reachability import Reachability
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.coordinator.commands.moves import add_move_commands
from flinkplus.runtime.coordinator.commands.operations import InjectCommand, Operations
from flinkplus.runtime.coordinator.commands.savepoints import add_savepoint_commands
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls, Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.registry import RecordWriter
from flinkplus.runtime.coordinator.dispatch.rejoin import Joining
from flinkplus.runtime.coordinator.drivers.checkpoints import CheckpointDriver
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.drivers.failover import FailoverDriver
from flinkplus.runtime.coordinator.drivers.failover_stamps import FailoverStamps
from flinkplus.runtime.coordinator.drivers.job import JobDriver
from flinkplus.runtime.coordinator.drivers.recipes import RecipeDriver
from flinkplus.runtime.coordinator.drivers.rescale import RescaleDriver
from flinkplus.runtime.coordinator.drivers.savepoints import SavepointDriver
from flinkplus.runtime.coordinator.drivers.triggers import Triggers
from flinkplus.runtime.coordinator.membership.divider import Divider
from flinkplus.runtime.coordinator.membership.extra_slots import ExtraSlots, SlotProcessJobs
from flinkplus.runtime.coordinator.membership.last_words import CrashReports
from flinkplus.runtime.coordinator.membership.moves import MoveRequests, Moves
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.membership.rescales import Rescales
from flinkplus.runtime.coordinator.membership.spares import Spares
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.promotion.promotions import Promotions, matched
from flinkplus.runtime.coordinator.record.recorder import Recorder
from flinkplus.runtime.coordinator.record.recovery_times import PARTIAL, STANDBY, RecoveryLog
from flinkplus.runtime.coordinator.reports import Reports
from flinkplus.runtime.coordinator.setup.configs import configs, failover_protocol, reachability_config, topology_of
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.coordinator.view import JobView
from flinkplus.runtime.faults.points import Faults
from flinkplus.runtime.operations.commands import Commands
from flinkplus.state.durable.savepoint import SavepointWriter

M = TypeVar("M")


class Parts:
    """All parts of the coordinator of one job.

    ``registry``: stores chain records; ``None``: they are not stored.
    ``jobs``: starts and ends the processes of spare and of new slots; ``None``: the job has neither.
    ``divider``: divides a checkpoint for another parallelism; ``None``: that cannot change.
    ``writer_for``: opens the target of a savepoint; ``None``: the job can have none.
    """

    def __init__(
        self,
        graph: JobGraph,
        options: Options,
        commits: Commits,
        restore: Restore,
        dispatch: Dispatch,
        calls: Calls,
        registry: RecordWriter | None = None,
        jobs: SlotProcessJobs | None = None,
        divider: Divider | None = None,
        writer_for: Callable[[str], SavepointWriter] | None = None,
    ) -> None:
        self.graph, self.options, self.commits, self._restore = graph, options, commits, restore
        self.dispatch, self.calls, self._registry, self._divider = dispatch, calls, registry, divider
        generation = restore.generation
        self.deployment = deployment = Deployment(
            generation, int(generation), restore.draining, parallelism=options.parallelism, clock=dispatch.clock
        )
        self.commands = Commands()
        self.recoveries = recoveries = RecoveryLog(partial(has_results, graph))
        self.figures = figures = Figures(graph, options.checkpoint_mode)
        self.recorder = None if options.record_machines is None else Recorder(Path(options.record_machines))
        self.machines = machines = self._make_machines()
        self.joining = joining = Joining(dispatch, deployment)
        self.crashes = crashes = CrashReports(graph, machines, deployment)
        reachability = self._machine("reachability", Reachability, reachability_config(options))
        self.presence = presence = Presence(
            dispatch, machines, deployment, recoveries, joining, crashes, calls, options, registry, reachability
        )
        requests = MoveRequests()
        extra = None if jobs is None else ExtraSlots(dispatch, machines, joining, calls, jobs)
        self.spares, self.rescales = self._make_spares(extra, requests), self._make_rescales(extra, requests)
        self.moves = self._make_moves(requests)
        faults = Faults(options.faults, generation + 1)
        self.operations = Operations(dispatch, deployment, presence, graph, options, calls, machines, faults)
        self.commands.add(InjectCommand, self.operations.inject)
        add_move_commands(self.commands, self.moves, graph, deployment, options.max_parallelism)
        self.savepoints = savepoints = SavepointDriver(dispatch, machines, calls, writer_for)
        add_savepoint_commands(self.commands, savepoints, calls)
        self.stamps = FailoverStamps(dispatch, recoveries, PARTIAL if options.partial else STANDBY)
        self.triggers = triggers = Triggers(dispatch, deployment, lambda: machines.checkpoints.pending)
        self.recipes = self._make_recipes()
        self.failover = failover = self._make_failover()
        reach = self.operations.reach
        checkpoints = CheckpointDriver(
            dispatch, machines, deployment, commits, figures, triggers, crashes, savepoints, reach, failover
        )
        obey_failover = None if failover is None else failover.apply
        machines.obeyed_by(self._make_job_driver().apply, checkpoints.apply, obey_failover)
        self.reports = Reports(dispatch, machines, deployment, recoveries, figures, presence, failover, self.rescales)
        self.view = JobView(
            dispatch, machines, deployment, calls, figures, presence, self.stamps, triggers, self.spares, self.rescales
        )

    def _machine(self, name: str, make: Callable[..., M], *arguments: Any, **settings: Any) -> M:
        """Create a machine of the core; it is recorded if the option ``record_machines`` is set."""
        if self.recorder is None:
            return make(*arguments, **settings)
        return self.recorder.machine(name, make, *arguments, **settings)

    def _topology(self) -> Topology:
        return topology_of(self.graph, self.deployment.parallelism)

    def _subtasks(self) -> list[SubtaskId]:
        return sorted(SubtaskId(v.name, i) for v in self.graph.vertices for i in range(self.options.parallelism))

    def _make_machines(self) -> JobMachines:
        options, restore = self.options, self._restore
        recipes = bool(self.graph.recipes())
        checkpoint_config, recovery_config = configs(options, recipes)
        checkpoints = self._machine(
            "checkpoints",
            CheckpointCoordinator,
            checkpoint_config,
            restore.next_checkpoint,
            tuple(sorted((*restore.older, *restore.available))),
        )
        job = self._machine(
            "job",
            JobProtocol,
            tuple(self._subtasks()),
            options.parallelism,
            recovery_config,
            started_ms=self.dispatch.now_ms(),
            restore_from=restore.checkpoint,
            available=restore.available,
            first_generation=Generation(restore.generation + 1),
            recipes=recipes,
        )
        failover = None
        if options.local:
            failover = failover_protocol(self.graph, options, partial(self._machine, "failover", FailoverProtocol))
        return JobMachines(self.dispatch, self.deployment, job, checkpoints, failover)

    def _make_spares(self, extra: ExtraSlots | None, requests: MoveRequests) -> Spares | None:
        failover = self.machines.failover
        if failover is None or extra is None:
            return None
        parts = self.dispatch, self.machines, failover, self.deployment, extra, requests
        return Spares(*parts, self.options.slot_timeout)

    def _make_rescales(self, extra: ExtraSlots | None, requests: MoveRequests) -> Rescales | None:
        if extra is None or self._divider is None:
            return None
        vertices = tuple(vertex.name for vertex in self.graph.vertices)
        parts = self.dispatch, self.machines, extra, requests, self.commits.handles, self._divider, vertices
        holding, wanted = bool(self.graph.recipes()), self._restore.wanted
        return Rescales(*parts, self.options, self.options.slot_timeout, holding, wanted)

    def _make_moves(self, requests: MoveRequests) -> Moves:
        spares, rescale = self.spares, None if self.rescales is None else self.rescales.begin
        if spares is None:
            return Moves(self.calls, self.machines, requests, _rescale=rescale)
        return Moves(self.calls, self.machines, requests, spares.scale, spares.take, rescale)

    def _make_failover(self) -> FailoverDriver | None:
        machines, options, stamps, triggers = self.machines, self.options, self.stamps, self.triggers
        failover, figures = machines.failover, self.figures if options.standbys else None
        if failover is None:
            return None
        promotions = Promotions(self._topology, failover.versions, options.promises, options.depth)
        work = self.dispatch, machines, failover, self.deployment, promotions, stamps, triggers, self._registry
        return FailoverDriver(*work, self.joining, self.presence, self.moves, figures, self.recipes)

    def _make_recipes(self) -> RecipeDriver | None:
        sinks = {name: self.graph.recipe_sinks(self.graph.vertex_of(name)) for name in self.graph.recipes()}
        if not sinks:
            return None
        lineage = self._topology().lineage(self.options.depth)
        return RecipeDriver(self.dispatch, self.machines, self.deployment, self.commits, sinks, lineage)

    def _make_job_driver(self) -> JobDriver:
        graph, options, match = self.graph, self.options, None
        resumed = self._restore.checkpoint is not None  # from a run that may have promised less
        if resumed or not options.promises.repeats:
            match = self._matched
        dispatch, machines, deployment, commits = self.dispatch, self.machines, self.deployment, self.commits
        log, presence, result = self.recoveries, self.presence, self.calls.result
        rescale = self._make_rescale_driver()
        return JobDriver(
            *(dispatch, machines, deployment, commits, log, graph, presence, result, match, self.failover, rescale),
            self.recipes,
        )

    def _matched(self, handles: dict[str, SnapshotHandle]) -> dict[str, SnapshotHandle]:
        return matched(handles, self._topology())

    def _make_rescale_driver(self) -> RescaleDriver | None:
        if self.rescales is None or self._divider is None:
            return None
        parts = self.dispatch, self.machines, self.deployment, self.commits, self.figures, self.recoveries
        return RescaleDriver(*parts, self._divider, self.rescales.take)


def has_results(graph: JobGraph, subtask: str) -> bool:
    """Whether a subtask (as text) has a sink or keyed state."""
    vertex = graph.vertex_of(parse_subtask(subtask).vertex)
    return graph.has_sink(vertex) or graph.has_keyed_state(vertex)
