"""Where channels resume when messages are not the same again after a failure: see
``flinkplus.protocol.vocabulary.guarantee``.

Consumers follow their producers: the positions of the inputs in a snapshot of a consumer are replaced by those at which
its producers stand (or begin).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from chain_backup.failover.topology import Topology
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from flinkplus.runtime.control.names import parse_subtask


def output_cursor(handle: SnapshotHandle, channel: ChannelId) -> int:
    """Where the producer with this snapshot resumes."""
    return handle.operator_state.outputs.get(str(channel), 0)


def following(
    handle: SnapshotHandle, subtask: SubtaskId, topology: Topology, starts: Callable[[ChannelId, int], int]
) -> dict[str, int]:
    """Where a consumer resumes: on each of its inputs what ``starts`` returns, given where it stands in ``handle``."""
    known = handle.operator_state.inputs
    return {str(channel): starts(channel, known.get(str(channel), 0)) for channel in topology.inputs(subtask)}


def matched(handles: Mapping[str, SnapshotHandle], topology: Topology) -> dict[str, SnapshotHandle]:
    """The snapshots of a checkpoint, each consumer where its producers are."""

    def start(channel: ChannelId, _: int) -> int:
        return output_cursor(handles[str(topology.producer(channel))], channel)

    found = {}
    for name, handle in handles.items():
        inputs = following(handle, parse_subtask(name), topology, start)
        found[name] = replace(handle, operator_state=replace(handle.operator_state, inputs=inputs))
    return found
