"""Checks of options against the graph of a job."""

from __future__ import annotations

import logging
from dataclasses import replace

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.operators.base.operator import Operator
from flinkplus.protocol.program.description import LOCATION
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.runtime.control.names import find_subtask
from flinkplus.runtime.faults.points import named
from flinkplus.sources.base import Source

log = logging.getLogger("flinkplus")


def has_channel_state(manifest: Manifest) -> bool:
    """Whether barriers of a checkpoint have overtaken messages, which only unaligned checkpoints can go on with."""
    return any(handle.overtaken for handle in manifest.subtasks.values())


def check_mode(manifest: Manifest, options: Options) -> None:
    """Raises ``ConfigurationError`` if the checkpoint mode cannot resume from a checkpoint."""
    if options.checkpoint_mode != "unaligned" and has_channel_state(manifest):
        raise ConfigurationError(
            f"checkpoint {manifest.checkpoint} is unaligned and has channel state, so it cannot be resumed with "
            f"checkpoint_mode {options.checkpoint_mode!r}; give an aligned_timeout instead"
        )


def check_loops(graph: JobGraph, options: Options) -> None:
    """Raises ``ConfigurationError`` for options that a job with loops cannot have."""
    names = ", ".join(repr(graph.nodes[head].name) for head in graph.loop_heads())
    setting, why = f"checkpoint_mode={options.checkpoint_mode!r}", ""
    if not options.promises.repeats:
        setting = f"guarantee={options.guarantee!r}"
        why = "if rows in the loop may be lost or doubled, its end cannot be detected; use 'exactly-once'"
    elif options.checkpoint_mode == "synchronous":
        why = "a subtask that waits at a barrier takes no rows of the loop, so the barrier never returns; use 'aligned'"
    elif options.checkpoint_mode == "unaligned":
        why = "checkpoints already hold the rows in the loop, and the barrier must return behind them; use 'aligned'"
    if names and why:
        raise ConfigurationError(f"{setting} cannot be used with a loop ({names}): {why}")


def check_barriers(graph: JobGraph, options: Options) -> None:
    """Raises ``ConfigurationError`` for an operator that holds rows up to the barrier (``emit="latest"``) in a job
    whose barriers overtake, or that has loops."""
    holding = [
        repr(node.name) for node in graph.nodes if isinstance(node.body, Operator) and node.body.holds_to_barrier
    ]
    why = ""
    if options.checkpoint_mode == "unaligned":
        why = "checkpoint_mode='unaligned': a barrier that overtakes would have to wait for these rows; use 'aligned'"
    elif graph.loop_heads():
        why = "a loop: its end cannot be detected while rows are held back"
    if holding and why:
        raise ConfigurationError(f"emit='latest' ({', '.join(holding)}) cannot be used with {why}")


def check_sources(graph: JobGraph, options: Options) -> None:
    """Raises ``ConfigurationError`` for a live source in a job that runs at most once: such a job counts the rows whose
    effects were seen and passes over as many, and how many a live source has read does not say which."""
    live = [repr(source.name) for source in _sources(graph) if source.is_live]
    if live and options.promises is Guarantee.AT_MOST_ONCE:
        raise ConfigurationError(
            f"guarantee={options.guarantee!r} cannot be used with a live source ({', '.join(live)}), because its rows "
            "have no order of their own; use 'at-least-once' or 'exactly-once'"
        )


def _sources(graph: JobGraph) -> list[Source]:
    return [node.body for node in graph.nodes if isinstance(node.body, Source)]


def check_outputs(graph: JobGraph) -> None:
    """Raises ``ConfigurationError`` for two sinks that write to one place: each would take the other's output for its
    own."""
    seen: dict[str, str] = {}
    for name, sink in graph.sinks().items():
        where = sink.settings().get(LOCATION)
        if where is not None and (other := seen.setdefault(str(where), name)) != name:
            raise ConfigurationError(
                f"sinks {other!r} and {name!r} both write to {where}: give each a place of its own, or union their "
                "streams"
            )


def check_recipes(graph: JobGraph, options: Options) -> None:
    """Raises ``ConfigurationError`` for options that a job with sinks cannot have whose rows are visible at once."""
    for vertex in graph.vertices:
        sinks = graph.recipe_sinks(vertex)
        if not sinks:
            continue
        name, why = f"sink {sinks[0]!r}: visibility='at_once'", ""
        if len(sinks) > 1:
            why = f"and {sinks[1]!r} are fed by one subtask: put a key_by or union before one of them"
        elif graph.loop_heads():
            why = "cannot be used with loops; use 'checkpoint'"
        elif not options.promises.repeats:
            why = f"cannot be used with guarantee={options.guarantee!r}: rows are not made again; use 'exactly-once'"
        elif options.checkpoint_mode == "unaligned":
            why = "cannot be used with unaligned checkpoints; use checkpoint_mode='aligned'"
        elif lossy := [repr(s.name) for s in _sources(graph) if not s.is_repeatable]:
            why = f"cannot be used with a source that cannot be read again ({', '.join(lossy)}); use 'checkpoint'"
        elif options.checkpoint_interval is None:
            why = "needs checkpoints, since what makes rows again is kept until a checkpoint covers it"
        elif not _lineage_of(graph, options).has_all_of(vertex.name):
            why = (
                f"needs a larger sharing_depth than {options.depth}, or none: the order of all steps that a row "
                "depends on must reach the sink"
            )
        if why:
            raise ConfigurationError(f"{name} {why}")


def _lineage_of(graph: JobGraph, options: Options) -> Lineage:
    edges = [(graph.producer_vertex(x.edge).name, graph.consumer_vertex(x.edge).name) for x in graph.exchanges]
    return Lineage([vertex.name for vertex in graph.vertices], edges, options.depth)


def check_faults(graph: JobGraph, options: Options) -> None:
    """Raises ``ConfigurationError`` for a fault whose subtask does not exist."""
    for subtask in named(options.faults):
        find_subtask(subtask, graph, options.parallelism)


def recovery_of(graph: JobGraph, options: Options) -> Options:
    """The options that a job runs with. These jobs recover by rollback:

    - at most once, with an operator that holds rows in its state: resumed from a version, it would emit them twice;
    - with loops and ``sharing_depth``, or partial recovery: in a loop every subtask is an ancestor of every other.
    """
    holding = [node.name for node in graph.nodes if isinstance(node.body, Operator) and node.body.holds_rows]
    if not options.local:
        return options
    if holding and options.promises is Guarantee.AT_MOST_ONCE:
        log.warning(
            "this job recovers by rollback: it runs at most once, and %s may hold rows back", ", ".join(holding)
        )
    elif graph.loop_heads() and options.partial:
        log.warning("this job recovers by rollback: it has loops, so it cannot recover partially")
    elif graph.loop_heads() and options.depth is not None:
        log.warning("this job recovers by rollback: it has loops, and sharing_depth is %s", options.depth)
    else:
        return options
    return replace(options, recovery="rollback")
