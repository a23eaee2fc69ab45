"""The recovery line, from which a failed set resumes, and the proof that local failover is safe.

Rules of a line. Failed subtasks that are linked by channels form a component, and go back to the same version ``v``, so
that no producer is ahead of its consumer. ``v`` is usable when

1. it is the last complete checkpoint or newer (older output is committed, older logs may be trimmed);
2. every living consumer has received all that was sent to it before ``v``: messages that were produced before ``v`` and
   never delivered exist nowhere else;
3. no living neighbour started from a version newer than ``v``: such a producer has no older messages in its logs, and
   such a consumer does not have the determinants that came with them.

The newest usable version is taken; an older one only lengthens the replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId


@dataclass(frozen=True, slots=True)
class VersionCursors:
    """Cursors of a version: the next ``seq`` to be consumed on each input, and to be sent on each output; absent: 0."""

    inputs: Mapping[ChannelId, int] = field(default_factory=dict)
    outputs: Mapping[ChannelId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoLine:
    """The failed set has no line; ``reason``: why not even the last complete version is usable."""

    reason: str


def recovery_line(
    failed: Sequence[SubtaskId],
    versions: Mapping[SubtaskId, Mapping[int, VersionCursors]],
    received: Mapping[ChannelId, int],
    complete: int,
    topology: Topology,
    restored: Mapping[SubtaskId, int] | None = None,
) -> Mapping[SubtaskId, int] | NoLine:
    """The version from which each of ``failed`` resumes.

    ``versions``: of each failed subtask, the versions that its successor can restore, with their cursors.
    ``received``: the next ``seq`` that living consumers expect from ``failed``; absent: 0.
    ``complete``: the version of the last complete checkpoint.
    ``restored``: the version that each living subtask started from; absent: not newer than ``complete``.
    """
    line: dict[SubtaskId, int] = {}
    for component in components(failed, topology):
        chosen = _newest_usable(component, versions, received, complete, topology, restored or {})
        if isinstance(chosen, NoLine):
            return chosen
        line.update(dict.fromkeys(component, chosen))
    return {subtask: line[subtask] for subtask in sorted(line)}


def components(failed: Sequence[SubtaskId], topology: Topology) -> list[tuple[SubtaskId, ...]]:
    """``failed``, divided into sets that no channel links; all sorted."""
    left = sorted(set(failed))
    found: list[tuple[SubtaskId, ...]] = []
    while left:
        component = [left.pop(0)]
        for reached in component:  # grows during the loop
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
    why = f"version {complete} of {named} is missing" if complete not in common else ""
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
                # Unreachable: one version of both ends is a consistent cut (the simulator checks that at each complete
                # checkpoint). This proof relies only on cursors, so it checks them; a unit test covers it.
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
    """None when the surviving determinants are enough to repeat the steps of ``failed``; otherwise why they are not.

    ``depth``: the sharing depth (``None``: no limit; see ``flinkplus.protocol.vocabulary.lineage``).
    ``unsettled``: living subtasks that were restored and may not have received again all that their predecessors had.

    The rule. Effects of a failed subtask A are seen through paths of messages, from A through other lost subtasks to a
    living one, which must know A's steps. So each lost subtask on such a path must have passed on what it knew of A. X
    passes that on when A is less than ``depth`` channels away from it. So the failed set is provable if and only if no
    X is both

    1. reached from a failed A through lost subtasks, with A ``depth`` or more channels away from X; and
    2. seen: X has outputs, and leads to a living subtask through lost subtasks.

    Lost are the failed and the unsettled subtasks: the latter live, but know of A only what was passed on to them at
    their promotion. They are also seen, if they have outputs: they are bound to the steps that they have to repeat.
    Without a limit, every set is provable. With loops, no other depth is supported.
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
        for near in reached:  # grows during the loop
            reached += [s for s in lost if s not in reached and topology.feeds(near, s)]
        for subtask in reached[1:]:
            if subtask in seen and ancestor.vertex not in lineage.passed_on(subtask.vertex):
                how = "failed with it" if subtask in gone else "is still repeating what it did before it failed"
                return (
                    f"only {subtask} knew the order of the steps of {ancestor} (sharing_depth is {depth}), and it "
                    f"{how}; local failover cannot repeat what it had sent on"
                )
    return None


def _seen(
    lost: Sequence[SubtaskId], gone: frozenset[SubtaskId], bound: frozenset[SubtaskId], topology: Topology
) -> frozenset[SubtaskId]:
    """The subtasks among ``lost``, which have outputs, whose effects a living one has seen, perhaps through others."""
    seen: list[SubtaskId] = []
    for subtask in lost:
        consumers = [topology.consumer(channel) for channel in topology.outputs(subtask)]
        if subtask in bound or not gone.issuperset(consumers):
            seen.append(subtask)
    for subtask in seen:  # grows during the loop
        seen += [other for other in lost if other not in seen and topology.feeds(other, subtask)]
    return frozenset(seen)
