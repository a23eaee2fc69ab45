"""Creates the machine of local failover of a job: topology, configuration, placement strategy."""

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


def find_strategy(placement: str) -> Strategy:
    """The strategy of the option ``placement``: a built-in one, or ``module:function``.

    Raises ``ConfigurationError`` when that cannot be loaded.
    """
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
    """The vertices and their exchanges."""
    edges = tuple(
        (exchange.edge, graph.producer_vertex(exchange.edge).name, graph.consumer_vertex(exchange.edge).name)
        for exchange in graph.exchanges
    )
    return Topology(tuple(vertex.name for vertex in graph.vertices), parallelism, edges)


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
