"""From which versions a failed set goes on: the recovery line, and whether local failover can be proved safe at all.

Rules of a line (design, section 7). Failed subtasks that are linked by channels form a component and go back to one and
the same version ``v``, so that no producer is ahead of its consumer. ``v`` is usable when

1. it is the last complete checkpoint or newer (older output is committed, older logs may be trimmed);
2. on every channel to a living consumer, ``v`` was taken before or when the producer sent what the consumer has
   received last: what was produced before ``v`` and never delivered exists nowhere else;
3. no living neighbour began its work from a version newer than ``v``: a producer that was restored from a newer one has
   no older messages in its logs, and a consumer that was has forgotten the determinants that came with them.

The newest usable version is taken; an older one only lengthens the replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chain_backup.topology import Topology
from flinkplus.protocol.ids import ChannelId, SubtaskId


@dataclass(frozen=True, slots=True)
class Cursors:
    """Where a version was taken: the next ``seq`` expected on each input and to be sent on each output; absent: 0."""

    inputs: Mapping[ChannelId, int] = field(default_factory=dict)
    outputs: Mapping[ChannelId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoLine:
    """There is no line for the failed set; ``reason`` says why not even the last complete version is one."""

    reason: str


def recovery_line(
    failed: Sequence[SubtaskId],
    versions: Mapping[SubtaskId, Mapping[int, Cursors]],
    received: Mapping[ChannelId, int],
    complete: int,
    topology: Topology,
    restored: Mapping[SubtaskId, int] | None = None,
) -> Mapping[SubtaskId, int] | NoLine:
    """The version that each of ``failed`` goes on from.

    ``versions``: of each failed subtask, the versions that its successor can restore, with their cursors.
    ``received``: the next ``seq`` that living consumers expect from ``failed``; absent: 0. ``complete``: the version of
    the last complete checkpoint. ``restored``: the version that each living subtask began its work from; absent: one
    that is not newer than ``complete``.
    """
    line: dict[SubtaskId, int] = {}
    for component in components(failed, topology):
        chosen = _newest_usable(component, versions, received, complete, topology, restored or {})
        if isinstance(chosen, NoLine):
            return chosen
        line.update(dict.fromkeys(component, chosen))
    return {subtask: line[subtask] for subtask in sorted(line)}


def components(failed: Sequence[SubtaskId], topology: Topology) -> list[tuple[SubtaskId, ...]]:
    """``failed``, cut into sets that no channel links; all sorted."""
    left = sorted(set(failed))
    found: list[tuple[SubtaskId, ...]] = []
    while left:
        component = [left.pop(0)]
        for reached in component:  # grows while it is walked
            linked = [other for other in left if topology.feeds(reached, other) or topology.feeds(other, reached)]
            component += linked
            left = [other for other in left if other not in linked]
        found.append(tuple(sorted(component)))
    return found


def _newest_usable(
    component: tuple[SubtaskId, ...],
    versions: Mapping[SubtaskId, Mapping[int, Cursors]],
    received: Mapping[ChannelId, int],
    complete: int,
    topology: Topology,
    restored: Mapping[SubtaskId, int],
) -> int | NoLine:
    known = [version for version in versions[component[0]] if version >= complete]
    common = sorted((v for v in known if all(v in versions[member] for member in component)), reverse=True)
    named = ", ".join(str(subtask) for subtask in component)
    why = f"version {complete} of {named} is not there" if complete not in common else ""
    for version in common:
        obstacle = _obstacle(component, version, versions, received, topology, restored)
        if obstacle is None:
            return version
        why = f"version {version} of {named} cannot be used: {obstacle}"
    return NoLine(why)


def _obstacle(
    component: tuple[SubtaskId, ...],
    version: int,
    versions: Mapping[SubtaskId, Mapping[int, Cursors]],
    received: Mapping[ChannelId, int],
    topology: Topology,
    restored: Mapping[SubtaskId, int],
) -> str | None:
    for subtask in component:
        cursors = versions[subtask][version]
        for channel in topology.outputs(subtask):
            consumer, sent = topology.consumer(channel), cursors.outputs.get(channel, 0)
            if consumer in component:
                expected = versions[consumer][version].inputs.get(channel, 0)
                if sent > expected:
                    return f"{subtask} is ahead of {consumer}, which expects {expected} on {channel}, not {sent}"
                continue
            has = received.get(channel, 0)
            if sent > has:
                return f"{consumer} has received {channel} up to {has}, and {subtask} had sent up to {sent} before"
            if restored.get(consumer, 0) > version:
                return f"{consumer} began from version {restored[consumer]}"
        for channel in topology.inputs(subtask):
            producer = topology.producer(channel)
            if producer not in component and restored.get(producer, 0) > version:
                return f"{producer} began from version {restored[producer]}"
    return None


def provable(failed: Sequence[SubtaskId], topology: Topology, unsettled: Sequence[SubtaskId] = ()) -> str | None:
    """None when the determinants that survive are enough to repeat what ``failed`` did; else why they are not.

    ``unsettled``: living subtasks that were restored and may not have received again all that their predecessors had.

    A message carries its sender's own determinants, one step far. So what a producer did is known to those who have
    received its messages, and when its consumer is lost with it, or has forgotten what its predecessor knew, nobody can
    tell how the producer came to what the consumer has made of it. That matters only when the consumer has sent
    something on.
    """
    for producer in sorted(set(failed)):
        for consumer in sorted({*failed, *unsettled}):
            if topology.feeds(producer, consumer) and not topology.is_last(consumer):
                how = "failed with it" if consumer in failed else "is still repeating what it did before it failed"
                return (
                    f"only {consumer} knew in which order {producer} had worked, and it {how}; local failover cannot "
                    f"repeat what it had sent on"
                )
    return None
