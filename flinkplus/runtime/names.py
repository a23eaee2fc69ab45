"""Subtasks as text: ``count+out[1]`` on the wire and in manifests, ``count:1`` or ``count[1]`` as users type them."""

from __future__ import annotations

import re

from flinkplus.errors import ConfigurationError, PeerProtocolError
from flinkplus.graph import JobGraph
from flinkplus.protocol.ids import SubtaskId

TYPED = re.compile(r"(?P<name>.+?)(?::(?P<a>\d+)|\[(?P<b>\d+)\])$")


def parse_subtask(text: str) -> SubtaskId:
    """The subtask of ``str(subtask)``. Raises ``PeerProtocolError`` for anything else."""
    name, bracket, rest = text.rpartition("[")
    if not bracket or not rest.endswith("]") or not rest[:-1].isdigit():
        raise PeerProtocolError(f"{text!r} is no subtask")
    return SubtaskId(name, int(rest[:-1]))


def find_subtask(text: str, graph: JobGraph, parallelism: int) -> SubtaskId:
    """The subtask a user means by ``count:1``. Raises ``ConfigurationError`` saying what there is."""
    match = TYPED.match(text)
    if match is None:
        raise ConfigurationError(f"{text!r} is no subtask; write OPERATOR:INDEX, such as count:1")
    index = int(match["a"] or match["b"])
    vertex = graph.vertex_of(match["name"])
    if index >= parallelism:
        raise ConfigurationError(f"{text!r}: {match['name']!r} has subtasks 0 to {parallelism - 1}")
    return SubtaskId(vertex.name, index)
