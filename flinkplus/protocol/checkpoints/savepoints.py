"""A savepoint on request: an aligned checkpoint, copied to a place of the user's once its output is committed.

The life of a request::

    waiting --triggered--> taking --complete--> complete --output committed--> copying --copied--> publishing --> stored
       ^                     |                     |                              |                    |
       +------ aborted ------+                     +--- checkpoint abandoned, copy failed or stalled --+--> failed

Rules:

- One request at a time; another one is refused.
- Its checkpoint is aligned whatever the mode, so that the savepoint can be divided. Aborted, it is tried again: without
  limit after a failover or a rollback, up to ``ATTEMPTS`` times otherwise.
- Its checkpoint is kept until the request ends (``pinned``).
- A request to *stop* holds all other checkpoints from its trigger on (``holds``), the last one included, so that no
  output behind the savepoint becomes visible. Sinks whose rows are visible at once hold them back (``hold``). When the
  savepoint is stored, the job stops; when the request fails, the job continues as if it had never been made.
- A copy reports its progress. Without any within the timeout of storage it is given up.
- When the input of a job has ended the job finishes by itself, and a request that has no checkpoint yet fails.

Invariant: every request ends in one ``EndSavepoint``, unless the job ends first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.config import CheckpointConfig
from flinkplus.protocol.vocabulary.effects import CheckpointingEffect
from flinkplus.protocol.vocabulary.ids import CheckpointId

ATTEMPTS = 3
"""Maximum number of checkpoints of one request that no failure of a subtask has aborted."""
INPUT_ENDED = "the input of the job has ended, and the job finishes by itself"
SavepointPhase: TypeAlias = Literal["waiting", "taking", "complete", "copying", "publishing"]


@dataclass(slots=True)
class _Request:
    number: int
    stop: bool
    phase: SavepointPhase = "waiting"
    checkpoint: CheckpointId | None = None
    attempts: int = 0
    until_ms: int | None = None  # of a copy, unless it reports progress


class Savepoints:
    """The part of ``CheckpointCoordinator`` that turns a checkpoint into a savepoint."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._request: _Request | None = None
        self._stopped_at: CheckpointId | None = None

    @property
    def phase(self) -> SavepointPhase | None:
        """Where the request is; ``None``: there is none."""
        return None if self._request is None else self._request.phase

    @property
    def waiting(self) -> bool:
        """Whether the next checkpoint is to be that of a savepoint."""
        return self.phase == "waiting"

    @property
    def holds(self) -> bool:
        """Whether no other checkpoint may be triggered."""
        request = self._request
        return request is not None and request.stop and request.phase != "waiting"

    @property
    def stops_at(self) -> CheckpointId | None:
        """The checkpoint with which the job stops, or is to stop, once it is triggered."""
        request = self._request
        return request.checkpoint if request is not None and request.stop else self._stopped_at

    @property
    def pinned(self) -> CheckpointId | None:
        """The complete checkpoint that must not be dropped."""
        return None if self._request is None else self._request.checkpoint

    def next_deadline_ms(self) -> int | None:
        return None if self._request is None else self._request.until_ms

    def on_requested(self, event: events.SavepointRequested) -> list[CheckpointingEffect]:
        if self._request is not None:
            why = "another savepoint is under way; try again when it has ended"
            return [effects.EndSavepoint(event.number, None, why)]
        self._request = _Request(event.number, event.stop)
        return []

    def on_triggered(self, checkpoint: CheckpointId) -> None:
        """The checkpoint of the request that was ``waiting``."""
        if self._request is not None:
            self._request.checkpoint, self._request.phase = checkpoint, "taking"

    def on_aborted(self, checkpoint: CheckpointId, reason: str, blame: bool) -> list[CheckpointingEffect]:
        """``blame``: it counts as an attempt."""
        request = self._request
        if request is None or request.checkpoint != checkpoint:
            return []
        request.attempts += blame
        if request.attempts >= ATTEMPTS:
            return self.fail(f"no checkpoint became complete in {ATTEMPTS} attempts: {reason}")
        request.checkpoint, request.phase = None, "waiting"
        return []

    def on_complete(self, checkpoint: CheckpointId) -> None:
        if self._request is not None and self._request.checkpoint == checkpoint:
            self._request.phase = "complete"

    def on_committed(self, now_ms: int, checkpoint: CheckpointId) -> list[CheckpointingEffect]:
        request = self._request
        if request is None or request.checkpoint != checkpoint or request.phase != "complete":
            return []
        request.phase = "copying"
        self._progressed(now_ms)
        return [effects.CopySavepoint(request.number, checkpoint, request.stop)]

    def on_abandoned(self, after: CheckpointId | None) -> list[CheckpointingEffect]:
        """Checkpoints newer than ``after`` are void."""
        if self.pinned is None or (after is not None and self.pinned <= after):
            return []
        return self.fail(f"the job went back to a checkpoint before {self.pinned}, of which the savepoint was made")

    def on_progress(self, now_ms: int, event: events.SavepointProgressed) -> list[CheckpointingEffect]:
        if self._is_of(event.number):
            self._progressed(now_ms)
        return []

    def on_copied(self, now_ms: int, event: events.SavepointCopied) -> list[CheckpointingEffect]:
        request = self._request
        if request is None or not self._is_of(event.number) or request.phase != "copying":
            return []
        request.phase = "publishing"
        self._progressed(now_ms)
        return [effects.PublishSavepoint(request.number)]

    def on_stored(self, event: events.SavepointStored) -> list[CheckpointingEffect]:
        request = self._request
        if request is None or not self._is_of(event.number) or request.phase != "publishing":
            return []
        self._request = None
        ended = effects.EndSavepoint(request.number, request.checkpoint, "")
        if not request.stop:
            return [ended]
        self._stopped_at = request.checkpoint
        return [ended, events.StopRequested()]

    def on_failed(self, event: events.SavepointFailed) -> list[CheckpointingEffect]:
        return self.fail(event.reason) if self._is_of(event.number) else []

    def _is_of(self, number: int) -> bool:
        return self._request is not None and self._request.number == number

    def _progressed(self, now_ms: int) -> None:
        if self._request is not None and self._request.phase in ("copying", "publishing"):
            self._request.until_ms = now_ms + self._config.storage_timeout_ms

    def advance(self, now_ms: int, input_ended: bool) -> list[CheckpointingEffect]:
        """Fail the request if its copy stands still, or if no checkpoint can come any more."""
        request = self._request
        if request is None:
            return []
        if request.until_ms is not None and now_ms >= request.until_ms:
            return self.fail(f"its storage made no progress within {self._config.storage_timeout_ms} ms")
        return self.fail(INPUT_ENDED) if self.waiting and input_ended else []

    def fail(self, reason: str) -> list[CheckpointingEffect]:
        """End the request, if there is one."""
        request, self._request = self._request, None
        return [] if request is None else [effects.EndSavepoint(request.number, None, reason)]
