"""The promotion order: what a slot needs to make one standby active.

Rules: ``from_json`` is its only reader and ``to_json`` its only writer. A reader gets every field with the type that is
written here, and a handle whose names may become paths; anything else is refused with ``PeerProtocolError``.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from flinkplus.documents import check_fields
from flinkplus.errors import PeerProtocolError
from flinkplus.path_names import check_handle


@dataclass(frozen=True, kw_only=True)
class PromotionOrder:
    """One subtask's part of a ``Promote``. Channels and subtasks are written as text.

    ``version``: the checkpoint to resume from; 0 is the start of the job.
    ``handle``: the snapshot handle of that version, empty for version 0.
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

    version: int
    handle: dict[str, Any]
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

    @classmethod
    def from_json(cls, document: Any) -> PromotionOrder:
        """The order in a parsed document. Raises ``PeerProtocolError``."""
        try:
            order = cls(**document)
            check_fields(order, _hints())
            check_handle(order.handle)
        except (TypeError, ValueError) as error:
            raise PeerProtocolError(f"malformed promotion order: {error!r:.300}") from error
        return order

    def to_json(self) -> dict[str, Any]:
        """The inverse of ``from_json``. The last three fields are left out at their defaults."""
        document = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, default in ("inputs", {}), ("pass_over", 0), ("mark", None):
            if document[name] == default:
                del document[name]
        return document


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(PromotionOrder)
