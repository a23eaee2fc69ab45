"""Subtasks as text: ``count+out[1]`` on the wire and in manifests, ``count:1`` or ``count[1]`` as users type them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from flinkplus.errors import ConfigurationError, PeerProtocolError, UnsafeName
from flinkplus.near import did_you_mean
from flinkplus.path_names import checked_subtask
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId

TYPED = re.compile(r"(?P<name>.+?)(?::(?P<a>\d+)|\[(?P<b>\d+)\])$")
INDEX = re.compile(r"[0-9]{1,9}\]\Z")
CHANNEL = re.compile(r"([0-9]{1,10}):([0-9]{1,10})->([0-9]{1,10})\Z")


class NamedVertex(Protocol):
    """A vertex of the job graph."""

    @property
    def name(self) -> str: ...


class NamedVertices(Protocol):
    """The part of the job graph that finds a vertex by name."""

    def vertex_of(self, name: str) -> NamedVertex: ...


@lru_cache(maxsize=4096)
def parse_subtask(text: str) -> SubtaskId:
    """The inverse of ``str(subtask)``. Raises ``PeerProtocolError`` for anything else."""
    name, bracket, rest = text.rpartition("[")
    if not bracket or not INDEX.match(rest):
        raise PeerProtocolError(f"{text!r:.200} is not a subtask")
    try:
        return SubtaskId(checked_subtask(name), int(rest[:-1]))
    except UnsafeName as error:
        raise PeerProtocolError(f"{text!r:.200} is not a subtask") from error


@lru_cache(maxsize=1 << 14)
def parse_channel(text: str) -> ChannelId:
    """The inverse of ``str(channel)``, ``edge:producer->consumer``. Raises ``PeerProtocolError`` for anything else."""
    match = CHANNEL.match(text)
    if match is None:
        raise PeerProtocolError(f"{text!r:.200} is not a channel")
    return ChannelId(*map(int, match.groups()))


def find_subtask(text: str, graph: NamedVertices, parallelism: int) -> SubtaskId:
    """The subtask of a text such as ``count:1``. Raises ``ConfigurationError`` that lists the valid names."""
    name, index = _typed(text, parallelism)
    return SubtaskId(graph.vertex_of(name).name, index)


def check_subtask(text: str, operators: Sequence[str], parallelism: int) -> None:
    """Raises ``ConfigurationError`` unless a text such as ``count:1`` names a subtask of a job with these operators."""
    name, _ = _typed(text, parallelism)
    if not set(name.split("+")) <= set(operators):
        near = did_you_mean(name, operators)
        raise ConfigurationError(
            f"no operator is called {name!r:.200}; the operators are: {', '.join(operators)}{near}"
        )


def _typed(text: str, parallelism: int) -> tuple[str, int]:
    match = TYPED.match(text)
    if match is None:
        raise ConfigurationError(f"{text!r:.200} is not a subtask; write OPERATOR:INDEX, such as count:1")
    name, index = match["name"], int(match["a"] or match["b"])
    if index >= parallelism:
        raise ConfigurationError(f"{text!r:.200}: {name!r:.200} has subtasks 0 to {parallelism - 1}")
    return name, index
