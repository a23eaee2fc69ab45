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

from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId


@dataclass(frozen=True, slots=True)
class VersionCursors:
    """Where a version was taken: the next ``seq`` expected on each input and to be sent on each output; absent: 0."""

    inputs: Mapping[ChannelId, int] = field(default_factory=dict)
    outputs: Mapping[ChannelId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoLine:
    """There is no line for the failed set; ``reason`` says why not even the last complete version is one."""

    reason: str


def recovery_line(
    failed: Sequence[SubtaskId],
    versions: Mapping[SubtaskId, Mapping[int, VersionCursors]],
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
    versions: Mapping[SubtaskId, Mapping[int, VersionCursors]],
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
    versions: Mapping[SubtaskId, Mapping[int, VersionCursors]],
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
                # No history reaches this: one version of both ends is a consistent cut (the simulator checks it at each
                # complete checkpoint). It is checked since this proof has only the cursors to rely on; a unit test
                # holds it.
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


def unprovable(
    failed: Sequence[SubtaskId], topology: Topology, depth: int | None, unsettled: Sequence[SubtaskId] = ()
) -> str | None:
    """None when the determinants that survive are enough to repeat what ``failed`` did; else why they are not.

    ``depth``: how far determinants are shared (``None``: to full depth; see ``flinkplus.protocol.vocabulary.lineage``).
    ``unsettled``: living subtasks that were restored and may not have received again all that their predecessors had.

    The rule. What a failed subtask A did is seen through paths of messages that lead from A over subtasks that are
    lost as well to one that is not. Whoever is lost on such a path must have passed on what it knew of A, else the one
    at the end has seen effects of A's steps and may not know the steps. X passes on what it knows of A when A is less
    than ``depth`` channels away from it. So the failed set is provable if and only if no X is both

    1. reached from a failed A over lost subtasks, with A ``depth`` channels away from X or more; and
    2. seen: X has outputs, and over lost subtasks it leads to one that lives.

    Lost are the failed, and the unsettled: these live, but know of A no more than what somebody passed on to them at
    their promotion. They are seen, too, if they have outputs: what they have to repeat binds them.

    To full depth everything is passed on, and every set is provable. With loops, no other depth is looked into.
    """
    if depth is None:
        return None
    if topology.has_loops:
        return f"in a job with loops all determinants are needed, and sharing_depth is {depth}"
    lineage = topology.lineage(depth)
    gone, bound = frozenset(failed), frozenset(unsettled)
    lost = sorted(s for s in {*gone, *bound} if not topology.is_last(s))
    seen = _seen(lost, gone, bound, topology)
    for ancestor in sorted(subtask for subtask in gone if not topology.is_last(subtask)):
        reached = [ancestor]
        for near in reached:  # grows while it is walked
            reached += [s for s in lost if s not in reached and topology.feeds(near, s)]
        for subtask in reached[1:]:
            if subtask in seen and ancestor.vertex not in lineage.passed_on(subtask.vertex):
                how = "failed with it" if subtask in gone else "is still repeating what it did before it failed"
                return (
                    f"{subtask} alone knew in which order {ancestor} had worked (sharing_depth is {depth}), and it "
                    f"{how}; local failover cannot repeat what it had sent on"
                )
    return None


def _seen(
    lost: Sequence[SubtaskId], gone: frozenset[SubtaskId], bound: frozenset[SubtaskId], topology: Topology
) -> frozenset[SubtaskId]:
    """Of those ``lost``, which have outputs: who has been seen by one that lives, perhaps through others of them."""
    seen: list[SubtaskId] = []
    for subtask in lost:
        consumers = [topology.consumer(channel) for channel in topology.outputs(subtask)]
        if subtask in bound or any(consumer not in gone for consumer in consumers):
            seen.append(subtask)
    for subtask in seen:  # grows while it is walked
        seen += [other for other in lost if other not in seen and topology.feeds(other, subtask)]
    return frozenset(seen)
