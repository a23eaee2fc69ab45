"""Promotion orders: what the new head of a subtask needs to resume from a version.

If a replay does not repeat the same messages (``flinkplus.protocol.vocabulary.guarantee``), consumers follow their
producers: ``following`` and ``matched`` replace their input cursors by the output cursors of the producers.

Rules: versions and checkpoints are those of the current deployment; ``started`` forgets all earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from chain_backup.failover import effects
from chain_backup.failover.topology import Topology
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.coordinator.promotion.orders import FenceAnswers, Handles


class Promotions:
    """Builds the promotion orders of one job.

    ``topology``: returns the present one.
    ``versions``: returns the versions that a subtask may still resume from.
    ``sharing_depth``: see the option of that name.
    """

    def __init__(
        self,
        topology: Callable[[], Topology],
        versions: Callable[[SubtaskId], tuple[int, ...]],
        guarantee: Guarantee,
        sharing_depth: int | None = None,
    ) -> None:
        self.answers = FenceAnswers(topology().lineage(sharing_depth))
        self.guarantee = guarantee
        self.complete = CheckpointId(0)
        self._topology = topology
        self._versions = versions
        self.handles = Handles()
        self._began_from: dict[SubtaskId, CheckpointId] = {}
        self._given_up: list[CheckpointId] = []
        self._overtaking: list[CheckpointId] = []

    def started(self, version: CheckpointId, handles: dict[str, SnapshotHandle], subtasks: Iterable[SubtaskId]) -> None:
        """All ``subtasks`` start from ``handles`` of ``version`` (0: the very start)."""
        self.handles.reset(version, handles)
        self._began_from = dict.fromkeys(subtasks, version)
        self.complete, self._given_up, self._overtaking = version, [], []

    def promoting(self, promoted: effects.PromoteStandbys) -> None:
        """Note the versions from which subtasks resume; the orders of other subtasks depend on them."""
        self._began_from.update({subtask: CheckpointId(version) for subtask, version in promoted.subtasks})

    # --- checkpoints

    def forget_versions(self, subtask: SubtaskId) -> None:
        """Forget the handles that no promotion of ``subtask`` can need."""
        versions = self._versions(subtask)
        if versions:
            self.handles.keep(subtask, versions)

    def completed(self, checkpoint: CheckpointId) -> None:
        self.complete = checkpoint
        self._given_up = [other for other in self._given_up if other > checkpoint]
        self._overtaking = [other for other in self._overtaking if other > checkpoint]

    def aborted(self, checkpoint: CheckpointId) -> None:
        self._given_up.append(checkpoint)

    def overtaking(self, checkpoint: CheckpointId) -> None:
        """The barriers of ``checkpoint`` may overtake; all slots were notified."""
        self._overtaking.append(checkpoint)

    # --- orders

    def order(self, subtask: SubtaskId, version: CheckpointId, mark: int | None) -> PromotionOrder:
        """The order for the new head of ``subtask`` to resume from ``version``. ``mark``: see ``PromotionOrder``."""
        handle = self.handles.get(subtask, version)
        order = replace(
            self.answers.order(subtask, self._topology(), version, handle),
            given_up=[checkpoint for checkpoint in self._given_up if checkpoint > version],
            overtaking=[checkpoint for checkpoint in self._overtaking if checkpoint > version],
            mark=mark,
        )
        if self.guarantee.repeats:
            return order
        order = replace(order, inputs=following(handle, subtask, self._topology(), self._start_of))
        if self.guarantee.replays:
            return order
        read = handle.operator_state.steps
        seen = max((rows for rows, _ in self.answers.spans_of(subtask)), default=0)
        return replace(order, determinants=[], ancestors={}, pass_over=max(0, seen - read))

    def _start_of(self, channel: ChannelId, known: int) -> int:
        """The first ``seq`` for a promoted consumer without exact replay; ``known``: its cursor in the snapshot."""
        name = str(channel)
        kept, sent = self.answers.kept.get(name), self.answers.sent.get(name)
        if kept is None or sent is None:  # the producer is promoted as well
            producer = self._topology().producer(channel)
            return output_cursor(self.handles.get(producer, self._began_from[producer]), channel)
        return max(known, kept) if self.guarantee.replays else sent


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
