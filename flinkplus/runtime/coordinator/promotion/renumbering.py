"""Where channels go on when messages are not the same again after a failure: see
``flinkplus.protocol.vocabulary.guarantee``.

Consumers follow their producers: what a snapshot of a consumer says of its inputs is replaced by where the producer
stands (or begins) that it gets them from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from flinkplus.runtime.control.names import parse_subtask

Handle = dict[str, Any]


def output_cursor(handle: Handle, channel: ChannelId) -> int:
    """Where the producer with this snapshot goes on."""
    cursors: dict[str, int] = handle.get("operator_state", {}).get("outputs", {})
    return cursors.get(str(channel), 0)


def following(
    handle: Handle, subtask: SubtaskId, topology: Topology, starts: Callable[[ChannelId, int], int]
) -> dict[str, int]:
    """Where a consumer goes on: on each of its inputs what ``starts`` says, given where it stands in ``handle``."""
    known: dict[str, int] = handle.get("operator_state", {}).get("inputs", {})
    return {str(channel): starts(channel, known.get(str(channel), 0)) for channel in topology.inputs(subtask)}


def matched(handles: Mapping[str, Handle], topology: Topology) -> dict[str, Handle]:
    """The snapshots of a checkpoint, each consumer where its producers are."""

    def start(channel: ChannelId, _: int) -> int:
        return output_cursor(handles[str(topology.producer(channel))], channel)

    found = {}
    for name, handle in handles.items():
        inputs = following(handle, parse_subtask(name), topology, start)
        found[name] = {**handle, "operator_state": {**handle["operator_state"], "inputs": inputs}}
    return found
