"""Inputs of promotion orders: snapshot handles, and the answers of the fenced slots.

Rules: a handle is kept until a newer checkpoint is complete, or its own is aborted and the next version reported; only
answers to the newest attempt are kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from chain_backup.failover.topology import Topology
from flinkplus.protocol.determinants.determinants import Span, unite
from flinkplus.protocol.snapshot.handle import START, SnapshotHandle
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.control.spans import spans_from_json, spans_to_json


class Handles:
    """Snapshot handles of the running deployment, from its first version on."""

    def __init__(self) -> None:
        self._handles: dict[SubtaskId, dict[CheckpointId, SnapshotHandle]] = {}

    def reset(self, version: CheckpointId, handles: dict[str, SnapshotHandle]) -> None:
        """A deployment begins with these handles (subtask as text) of ``version``."""
        self._handles = {parse_subtask(name): {version: handle} for name, handle in handles.items()}

    def add(self, subtask: SubtaskId, version: CheckpointId, handle: SnapshotHandle) -> None:
        self._handles.setdefault(subtask, {})[version] = handle

    def get(self, subtask: SubtaskId, version: CheckpointId) -> SnapshotHandle:
        """The handle, ``START`` for version 0. Raises ``KeyError`` for a version that was not reported."""
        return self._handles[subtask][version] if version else START

    def keep(self, subtask: SubtaskId, versions: Collection[int]) -> None:
        """Forget all handles of ``subtask`` except for these versions."""
        known = self._handles.get(subtask, {})
        self._handles[subtask] = {kept: handle for kept, handle in known.items() if kept in versions}

    def drop_before(self, version: CheckpointId) -> None:
        """Forget the handles of all versions before ``version``."""
        for subtask, known in self._handles.items():
            self._handles[subtask] = {kept: handle for kept, handle in known.items() if kept >= version}


class FenceAnswers:
    """The merged answers to one attempt's ``Fence``.

    ``kept``: channel -> oldest ``seq`` that can be sent again.
    ``sent``: channel -> next ``seq`` that its living producer had not sent.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self.reset(attempt=0)

    def reset(self, attempt: int) -> None:
        """Begin a new attempt: forget all earlier answers."""
        self._attempt = attempt
        self._received: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self._determinants: dict[SubtaskId, tuple[Span, ...]] = {}
        self._parts: dict[SubtaskId, list[Span]] = {}
        self._digests: dict[str, list[list[Any]]] = {}
        self.kept: dict[str, int] = {}

    def add(self, answer: control.Fenced) -> None:
        """Add one slot's answer; ignored if it belongs to another attempt."""
        if answer.attempt != self._attempt:
            return
        self._received.update(answer.received)
        self.sent.update(answer.sent)
        self.kept.update(answer.kept)
        self.add_part(answer)
        for subtask, spans in self._parts.items():
            self._determinants[subtask] = unite([*self._determinants.get(subtask, ()), *spans])
        self._parts = {}

    def add_part(self, part: control.Fenced | control.FencedPart) -> None:
        """Add a part of one slot's answer, which ``add`` completes; ignored if it belongs to another attempt."""
        if part.attempt != self._attempt:
            return
        for channel, found in part.digests.items():
            self._digests.setdefault(channel, []).extend(found)
        for name, spans in part.determinants.items():
            self._parts.setdefault(parse_subtask(name), []).extend(spans_from_json(spans))

    def order(
        self, subtask: SubtaskId, topology: Topology, version: CheckpointId, handle: SnapshotHandle
    ) -> PromotionOrder:
        """The order for the new head of ``subtask`` that resumes from ``handle`` of ``version``."""
        ancestors = self._lineage.asked_of([subtask])
        outputs = [str(channel) for channel in topology.outputs(subtask)]
        inputs = [str(channel) for channel in topology.inputs(subtask)]
        return PromotionOrder(
            version=version,
            handle=handle,
            received={name: self._received[name] for name in outputs if name in self._received},
            marks={name: self.sent[name] for name in inputs if name in self.sent},
            digests={name: self._digests[name] for name in outputs if name in self._digests},
            determinants=spans_to_json(self.spans_of(subtask)),
            ancestors={
                str(ancestor): spans_to_json(spans)
                for ancestor, spans in sorted(self._determinants.items())
                if ancestor.vertex in ancestors
            },
        )

    def spans_of(self, subtask: SubtaskId) -> tuple[Span, ...]:
        return self._determinants.get(subtask, ())
