"""The promotion order: what a slot needs to make one standby active.

Rules: ``from_json`` is its only reader and ``to_json`` its only writer. A reader gets every field with the type that is
written here, and a handle whose names may become paths; anything else is refused with ``PeerProtocolError``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from flinkplus.documents import Document
from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.snapshot.handle import SnapshotHandle


@dataclass(frozen=True, kw_only=True)
class PromotionOrder(Document):
    """One subtask's part of a ``Promote``. Channels and subtasks are written as text.

    ``version``: the checkpoint to resume from; 0 is the start of the job.
    ``handle``: the snapshot handle of that version, ``START`` for version 0.
    ``given_up``: newer checkpoints that were given up.
    ``overtaking``: newer checkpoints whose barriers may overtake.
    ``received``: output channel -> next ``seq`` that a living consumer expects.
    ``marks``: input channel -> next ``seq`` that a living producer had not sent before the failure.
    ``digests``: output channel -> spans of digests, as in ``Fenced``.
    ``determinants``: the subtask's spans of determinants, as in ``Fenced``.
    ``ancestors``: ancestor -> its spans of determinants.
    ``inputs``: input channel -> next ``seq`` to take, where it differs from the handle's.
    ``pass_over``: how many rows are read and not sent.
    ``mark``: rows put out before the failure, as in ``Deploy``; set in partial recovery only.
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
