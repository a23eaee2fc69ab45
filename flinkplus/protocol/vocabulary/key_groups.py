"""Key groups: which subtask owns which keys, at any parallelism.

A key's *group* is its hash modulo ``max_parallelism``, which is fixed for the life of a job. Subtask *i* of *n* owns a
contiguous range of groups, as in Apache Flink. So at another parallelism whole ranges of groups change their owner.

Invariant: the ranges of all subtasks, in their order, are all groups, each once.
"""

from __future__ import annotations

from flinkplus.protocol.vocabulary.ids import invariant

DEFAULT_MAX_PARALLELISM = 128
MAX_GROUPS = 32_768


def owner_of(group: int, parallelism: int, max_parallelism: int) -> int:
    """The index of the subtask that owns ``group``."""
    return group * parallelism // max_parallelism


def groups_of(index: int, parallelism: int, max_parallelism: int) -> range:
    """The groups that subtask ``index`` of ``parallelism`` owns. There may be none only above ``max_parallelism``."""
    invariant(0 <= index < parallelism, "no such subtask", index=index, parallelism=parallelism)
    return range(-(-index * max_parallelism // parallelism), -(-(index + 1) * max_parallelism // parallelism))
