"""Where channels resume if a replay does not repeat the same messages (``flinkplus.protocol.vocabulary.guarantee``).

Consumers follow their producers: the input cursors in a consumer's snapshot are replaced by the output cursors of its
producers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from chain_backup.failover.topology import Topology
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from flinkplus.runtime.control.names import parse_subtask


def output_cursor(handle: SnapshotHandle, channel: ChannelId) -> int:
    """The ``seq`` at which the producer with this snapshot resumes ``channel``."""
    return handle.operator_state.outputs.get(str(channel), 0)


def following(
    handle: SnapshotHandle, subtask: SubtaskId, topology: Topology, starts: Callable[[ChannelId, int], int]
) -> dict[str, int]:
    """Input channel -> ``seq`` at which a consumer resumes: ``starts(channel, cursor in handle)``."""
    known = handle.operator_state.inputs
    return {str(channel): starts(channel, known.get(str(channel), 0)) for channel in topology.inputs(subtask)}


def matched(handles: Mapping[str, SnapshotHandle], topology: Topology) -> dict[str, SnapshotHandle]:
    """The snapshots of a checkpoint, with the input cursors of consumers set to the output cursors of producers."""

    def start(channel: ChannelId, _: int) -> int:
        return output_cursor(handles[str(topology.producer(channel))], channel)

    found = {}
    for name, handle in handles.items():
        inputs = following(handle, parse_subtask(name), topology, start)
        found[name] = replace(handle, operator_state=replace(handle.operator_state, inputs=inputs))
    return found
