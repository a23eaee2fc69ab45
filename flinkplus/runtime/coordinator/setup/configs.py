"""The configurations of a job's machines, from its options; the topology and placement strategy of local failover."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.placement import STRATEGIES, Strategy
from chain_backup.failover.topology import Topology
from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.protocol.liveness.reachability import ReachabilityConfig
from flinkplus.protocol.vocabulary.config import CheckpointConfig, RecoveryConfig
from flinkplus.protocol.vocabulary.in_flight import JOB_SLOTS

RESTART_PATIENCE = 3  # Spark takes up to spark.network.timeout, 120 s, to notice that a host is lost


def reachability_config(options: Options) -> ReachabilityConfig:
    """The timeouts for slots that cannot reach each other."""
    gather_s = options.heartbeat_interval if options.hang_timeout is None else options.hang_timeout / 4
    return ReachabilityConfig(max(1, round(gather_s * 1000)), round(options.heartbeat_timeout * 1000))


def configs(options: Options, recipes: bool = False) -> tuple[CheckpointConfig, RecoveryConfig]:
    """The configurations of the machines of checkpoints and of the job. ``recipes``: rows are visible at once."""

    def ms(seconds: float) -> int:
        return round(seconds * 1000)

    checkpoints = CheckpointConfig(
        interval_ms=None if options.checkpoint_interval is None else max(1, ms(options.checkpoint_interval)),
        timeout_ms=ms(options.checkpoint_timeout),
        aligned_timeout_ms=None if options.until_unaligned is None else ms(options.until_unaligned),
        min_pause_ms=ms(options.checkpoint_min_pause),
        max_concurrent=options.max_concurrent_checkpoints,
        retained=options.retained_checkpoints,
        in_flight_slot_bytes=options.in_flight_bytes,
        in_flight_job_bytes=JOB_SLOTS * options.in_flight_bytes,
        recipes=recipes,
    )
    recovery = RecoveryConfig(
        max_restarts=options.max_restarts,
        restart_window_ms=None if options.restart_window is None else max(1, ms(options.restart_window)),
        max_slot_losses=options.max_slot_losses,
        slot_timeout_ms=ms(options.slot_timeout),
        restart_slot_timeout_ms=ms(RESTART_PATIENCE * options.slot_timeout),
        deploy_timeout_ms=ms(options.deploy_timeout),
    )
    return checkpoints, recovery


def find_strategy(placement: str) -> Strategy:
    """The strategy of the option ``placement``: a built-in one, or ``module:function``. Raises ``ConfigurationError``
    when that cannot be loaded."""
    if placement in STRATEGIES:
        return STRATEGIES[placement]
    module, _, name = placement.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"placement {placement!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"placement {placement!r} is not a function")
    strategy: Strategy = found
    return strategy


def topology_of(graph: JobGraph, parallelism: int) -> Topology:
    edges = tuple(
        (exchange.edge, graph.producer_vertex(exchange.edge).name, graph.consumer_vertex(exchange.edge).name)
        for exchange in graph.exchanges
    )
    return Topology(tuple(vertex.name for vertex in graph.vertices), parallelism, edges, graph.recipes())


def failover_protocol(
    graph: JobGraph, options: Options, make: Callable[..., FailoverProtocol] = FailoverProtocol
) -> FailoverProtocol:
    """The machine of one job, created by ``make``."""
    config = FailoverConfig(
        partial=options.partial,
        replicas=options.replicas,
        failback=options.failback == "auto" and options.promises.replays,
        handover=options.promises.replays,
        max_concurrent_checkpoints=options.max_concurrent_checkpoints,
        sharing_depth=options.depth,
    )
    if options.partial:  # state may have to come from storage, as in a deployment
        config = replace(config, promote_timeout_ms=round(options.deploy_timeout * 1000))
    topology = topology_of(graph, options.parallelism)
    return make(topology, options.parallelism, config, find_strategy(options.placement))
