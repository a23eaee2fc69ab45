"""The promotion order: what a slot needs to promote one standby.

Rules: ``from_json`` is its only reader and ``to_json`` its only writer. The reader checks the type of every field and
the names in the handle, which may become paths; it refuses anything else with ``PeerProtocolError``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from flinkplus.documents import Document
from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.snapshot.handle import SnapshotHandle


@dataclass(frozen=True, kw_only=True)
class PromotionOrder(Document):
    """One subtask's part of a ``Promote``. Channels and subtasks are text.

    ``version``: the checkpoint to resume from; 0 is the start of the job.
    ``handle``: the snapshot handle of that version, ``START`` for version 0.
    ``given_up``: newer checkpoints that were aborted.
    ``overtaking``: newer checkpoints whose barriers may overtake.
    ``received``: output channel -> next ``seq`` that a living consumer expects.
    ``marks``: input channel -> next ``seq`` that a living producer had not sent before the failure.
    ``digests``: output channel -> spans of digests, as in ``Fenced``.
    ``determinants``: the subtask's spans of determinants, as in ``Fenced``.
    ``ancestors``: ancestor -> its spans of determinants.
    ``inputs``: input channel -> next ``seq`` to take, where it differs from the handle's.
    ``pass_over``: number of rows to read and not to send.
    ``mark``: rows emitted before the failure, as in ``Deploy``; set in partial recovery only.
    ``recorded``: the first step whose rows its sink has not stored; 0 without a recipe.
    """

    REFUSED: ClassVar[type[Exception]] = PeerProtocolError

    version: int
    handle: SnapshotHandle
    given_up: list[int] = field(default_factory=list)
    overtaking: list[int] = field(default_factory=list)
    received: dict[str, int]
    marks: dict[str, int]
    digests: dict[str, list[list[Any]]]
    determinants: list[list[Any]]
    ancestors: dict[str, list[list[Any]]]
    inputs: dict[str, int] = field(default_factory=dict)
    pass_over: int = 0
    mark: int | None = None
    recorded: int = 0
