"""Which options a job cannot have, by what its graph is."""

from __future__ import annotations

import logging
from dataclasses import replace

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.operators.base.operator import Operator
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.runtime.control.names import find_subtask
from flinkplus.runtime.faults.points import named

log = logging.getLogger("flinkplus")


def check_mode(before: Options, options: Options) -> None:
    """Raises ``ConfigurationError`` where the job may resume from checkpoints of a kind that it could not take now."""
    if before.checkpoint_mode == "unaligned" != options.checkpoint_mode:
        raise ConfigurationError(
            "the job's checkpoints are unaligned: the last one may hold messages that were in flight, so it cannot be "
            f"resumed with checkpoint_mode {options.checkpoint_mode!r}; give an aligned_timeout instead"
        )


def check_loops(graph: JobGraph, options: Options) -> None:
    """Raises ``ConfigurationError`` for options that a job with loops cannot have."""
    names = ", ".join(repr(graph.nodes[head].name) for head in graph.loop_heads())
    if names and not options.promises.repeats:
        raise ConfigurationError(
            f"guarantee={options.guarantee!r} cannot be used with a loop ({names}): if rows in the loop may be lost "
            "or doubled, its end cannot be detected; use 'exactly-once'"
        )
    if names and options.checkpoint_mode == "synchronous":
        raise ConfigurationError(
            f"checkpoint_mode='synchronous' cannot be used with a loop ({names}): a subtask that waits behind a "
            "barrier takes no rows of the loop, so the barrier never comes round; use 'aligned'"
        )
    if names and options.checkpoint_mode == "unaligned":
        raise ConfigurationError(
            f"checkpoint_mode='unaligned' cannot be used with a loop ({names}): each checkpoint "
            "already holds the rows in the loop, and the barrier must come round behind them; use 'aligned'"
        )


def check_faults(graph: JobGraph, options: Options) -> None:
    """Raises ``ConfigurationError`` for a fault that can strike no subtask of the job."""
    for subtask in named(options.faults):
        find_subtask(subtask, graph, options.parallelism)


def recovery_of(graph: JobGraph, options: Options) -> Options:
    """The options that a job runs with. By rollback recover

    - at most once, a job with an operator that holds rows back in its state: it would put them out twice if it resumed
      from a version;
    - a job with loops and a ``sharing_depth``: in a loop every subtask is an ancestor, near and far;
    - a job with loops, instead of partially: in a loop every subtask is upstream of every other.
    """
    if not options.local:
        return options
    holding = [node.name for node in graph.nodes if isinstance(node.body, Operator) and node.body.holds_rows]
    if holding and options.promises is Guarantee.AT_MOST_ONCE:
        log.warning("at most once, %s may hold rows back: this job recovers by rollback", ", ".join(holding))
        return replace(options, recovery="rollback")
    if graph.loop_heads() and options.partial:
        log.warning("the job has loops: it recovers by rollback, not partially")
        return replace(options, recovery="rollback")
    if graph.loop_heads() and options.depth is not None:
        log.warning("sharing_depth is %s, and the job has loops: it recovers by rollback", options.depth)
        return replace(options, recovery="rollback")
    return options
