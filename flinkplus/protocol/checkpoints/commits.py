"""Output commits: in checkpoint order, one at a time, with limited retries.

Rules and invariants:

- A checkpoint enters when it is complete, and leaves when its output is committed; no rollback removes it in between.
- At most one commit is in flight. A failed one is retried after a pause; a commit is idempotent, so the answer of an
  earlier attempt counts like that of the latest.
- After ``commit_attempts`` failures the queue is abandoned: no later output may become visible before this one.
- A slow commit is reported repeatedly (``ReportCommitDelay``), and not abandoned while the job runs. Until it ends, no
  checkpoint becomes complete, logs are not trimmed, and a rollback waits; ``JobProtocol`` limits that wait.
"""

from __future__ import annotations

from flinkplus.protocol.vocabulary.config import CheckpointConfig
from flinkplus.protocol.vocabulary.effects import CheckpointingEffect, CommitOutput, ReportCommitDelay
from flinkplus.protocol.vocabulary.events import CommitAbandoned, FinalCommitted
from flinkplus.protocol.vocabulary.ids import CheckpointId


class CommitQueue:
    """The part of ``CheckpointCoordinator`` that makes complete checkpoints visible."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._queue: list[tuple[CheckpointId, bool]] = []  # (checkpoint, final), in order
        self._unanswered_since_ms: int | None = None
        self._reported_ms = 0
        self._retry_at_ms: int | None = None
        self._failures = 0
        self.abandoned = False

    def __len__(self) -> int:
        """Number of complete checkpoints whose output is not committed."""
        return len(self._queue)

    def __contains__(self, checkpoint: CheckpointId) -> bool:
        return any(checkpoint == queued for queued, _ in self._queue)

    @property
    def in_flight(self) -> bool:
        """Whether an attempt is unanswered."""
        return self._unanswered_since_ms is not None

    def next_deadline_ms(self) -> int | None:
        if self._unanswered_since_ms is not None:
            return self._reported_ms + self._config.storage_timeout_ms
        return self._retry_at_ms

    def add(self, checkpoint: CheckpointId, final: bool) -> None:
        self._queue.append((checkpoint, final))

    def on_committed(self, checkpoint: CheckpointId) -> list[CheckpointingEffect]:
        """Answers for other checkpoints than the first in the queue are repeated ones, and ignored."""
        if not self._queue or self._queue[0][0] != checkpoint:
            return []
        _, final = self._queue.pop(0)
        self._unanswered_since_ms = self._retry_at_ms = None
        self._failures = 0
        return [FinalCommitted(checkpoint)] if final else []

    def on_failed(self, now_ms: int, checkpoint: CheckpointId, reason: str) -> list[CheckpointingEffect]:
        if self._unanswered_since_ms is None or self._queue[0][0] != checkpoint:
            return []
        self._unanswered_since_ms = None
        self._failures += 1
        if self._failures >= self._config.commit_attempts:
            return self._abandon(f"{reason} (attempt {self._failures} of {self._config.commit_attempts})")
        self._retry_at_ms = now_ms + self._config.commit_retry_ms
        return []

    def advance(self, now_ms: int) -> list[CheckpointingEffect]:
        """Start the commit that is due, or report the one in flight if it is late."""
        if self.abandoned or not self._queue:
            return []
        if self._unanswered_since_ms is not None:
            if now_ms < self._reported_ms + self._config.storage_timeout_ms:
                return []
            self._reported_ms = now_ms
            return [ReportCommitDelay(self._queue[0][0], now_ms - self._unanswered_since_ms)]
        if self._retry_at_ms is not None and now_ms < self._retry_at_ms:
            return []
        self._retry_at_ms = None
        self._unanswered_since_ms = self._reported_ms = now_ms
        return [CommitOutput(*self._queue[0])]

    def _abandon(self, reason: str) -> list[CheckpointingEffect]:
        self.abandoned = True
        self._unanswered_since_ms = self._retry_at_ms = None
        return [CommitAbandoned(self._queue[0][0], reason)]
