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
from flinkplus.config import Options
from flinkplus.graph import JobGraph
from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.job.job import JobProtocol
from flinkplus.protocol.liveness.reachability import Reachability
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
from flinkplus.runtime.coordinator.drivers.savepoints import SavepointDriver
from flinkplus.runtime.coordinator.drivers.triggers import Triggers
from flinkplus.runtime.coordinator.membership.last_words import CrashReports
from flinkplus.runtime.coordinator.membership.moves import MoveRequests, Moves
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.membership.spares import SpareJobs, Spares
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
    ``jobs``: starts and ends the processes of spare slots; ``None``: the job cannot have spare slots.
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
        jobs: SpareJobs | None = None,
        writer_for: Callable[[str], SavepointWriter] | None = None,
    ) -> None:
        self.graph, self.options, self.commits, self._restore = graph, options, commits, restore
        self.dispatch, self.calls, self._registry = dispatch, calls, registry
        generation = restore.generation
        self.deployment = deployment = Deployment(generation, int(generation), restore.draining, clock=dispatch.clock)
        self.commands = Commands()
        self.recoveries = recoveries = RecoveryLog(partial(has_results, graph))
        self.figures = figures = Figures(graph, options.checkpoint_mode)
        self.recorder = None if options.record_machines is None else Recorder(Path(options.record_machines))
        self.machines = machines = self._make_machines()
        self.joining = joining = Joining(dispatch, deployment)
        self.crashes = crashes = CrashReports(graph, options.parallelism, machines, deployment)
        reachability = self._machine("reachability", Reachability, reachability_config(options))
        self.presence = presence = Presence(
            dispatch, machines, deployment, recoveries, joining, crashes, calls, options, registry, reachability
        )
        self.spares, self.moves = self._make_moves(jobs)
        faults = Faults(options.faults, generation + 1)
        self.operations = Operations(dispatch, deployment, presence, graph, options, calls, machines, faults)
        self.commands.add(InjectCommand, self.operations.inject)
        add_move_commands(self.commands, self.moves, graph, options)
        self.savepoints = savepoints = SavepointDriver(dispatch, machines, calls, writer_for)
        add_savepoint_commands(self.commands, savepoints, calls)
        self.stamps = FailoverStamps(dispatch, recoveries, PARTIAL if options.partial else STANDBY)
        self.triggers = triggers = Triggers(dispatch, deployment, lambda: machines.checkpoints.pending)
        self.failover = failover = self._make_failover()
        reach = self.operations.reach
        checkpoints = CheckpointDriver(
            dispatch, machines, deployment, commits, figures, triggers, crashes, savepoints, reach, failover
        )
        obey_failover = None if failover is None else failover.apply
        machines.obeyed_by(self._make_job_driver().apply, checkpoints.apply, obey_failover)
        self.reports = Reports(dispatch, machines, deployment, recoveries, figures, presence, failover)
        self.view = JobView(
            dispatch, machines, deployment, calls, figures, presence, self.stamps, triggers, self.spares
        )

    def _machine(self, name: str, make: Callable[..., M], *arguments: Any, **settings: Any) -> M:
        """Create a machine of the core; it is recorded if the option ``record_machines`` is set."""
        if self.recorder is None:
            return make(*arguments, **settings)
        return self.recorder.machine(name, make, *arguments, **settings)

    def _subtasks(self) -> list[SubtaskId]:
        return sorted(SubtaskId(v.name, i) for v in self.graph.vertices for i in range(self.options.parallelism))

    def _make_machines(self) -> JobMachines:
        options, restore = self.options, self._restore
        checkpoint_config, recovery_config = configs(options)
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
        )
        failover = None
        if options.local:
            failover = failover_protocol(self.graph, options, partial(self._machine, "failover", FailoverProtocol))
        return JobMachines(self.dispatch, self.deployment, job, checkpoints, failover)

    def _make_moves(self, jobs: SpareJobs | None) -> tuple[Spares | None, Moves]:
        dispatch, machines, calls, timeout_s = self.dispatch, self.machines, self.calls, self.options.slot_timeout
        requests, failover = MoveRequests(), machines.failover
        if failover is None or jobs is None:
            return None, Moves(calls, machines, requests)
        spares = Spares(dispatch, machines, failover, self.deployment, self.joining, calls, requests, jobs, timeout_s)
        return spares, Moves(calls, machines, requests, spares.scale, spares.take)

    def _make_failover(self) -> FailoverDriver | None:
        machines, options, stamps, triggers = self.machines, self.options, self.stamps, self.triggers
        failover, figures = machines.failover, self.figures if options.standbys else None
        if failover is None:
            return None
        topology = topology_of(self.graph, options.parallelism)
        promotions = Promotions(topology, failover.versions, options.promises, options.depth)
        work = self.dispatch, machines, failover, self.deployment, promotions, stamps, triggers, self._registry
        return FailoverDriver(*work, self.joining, self.presence, self.moves, figures)

    def _make_job_driver(self) -> JobDriver:
        graph, options, subtasks = self.graph, self.options, self._subtasks()
        cycles, match = graph.cycles(), None
        sources = tuple(subtask for subtask in subtasks if graph.vertex_of(subtask.vertex).is_source)
        loop_heads = tuple(subtask for subtask in subtasks if subtask.vertex in cycles.loop_heads)
        resumed = self._restore.checkpoint is not None  # from a run that may have promised less
        if resumed or not options.promises.repeats:
            match = partial(matched, topology=topology_of(graph, options.parallelism))
        dispatch, machines, deployment, commits = self.dispatch, self.machines, self.deployment, self.commits
        log, presence, result = self.recoveries, self.presence, self.calls.result
        return JobDriver(
            dispatch, machines, deployment, commits, log, sources, loop_heads, presence, result, match, self.failover
        )


def has_results(graph: JobGraph, subtask: str) -> bool:
    """Whether a subtask (as text) has a sink or keyed state."""
    vertex = graph.vertex_of(parse_subtask(subtask).vertex)
    return graph.has_sink(vertex) or graph.has_keyed_state(vertex)
