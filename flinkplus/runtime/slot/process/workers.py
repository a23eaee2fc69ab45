"""What a slot does beside its loop: snapshots are persisted, state is compacted, files are removed.

Two threads: a checkpoint waits for one of them (snapshots), and never for the other.

Rules: results come back through the slot's inbox. The slots of a job persist in turn, for a part of the checkpoint
interval: all at once would keep the stream from the processors.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flinkplus.errors import CorruptState, StateError, described
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.host.cleanup import clear_away
from flinkplus.state.backend import SubtaskState

log = logging.getLogger("flinkplus.slot")


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """The asynchronous part of a snapshot ended."""

    generation: Generation
    subtask: SubtaskId
    checkpoint: CheckpointId
    handle: SnapshotHandle | None
    reason: str


class SlotWorkers:
    """The worker threads of one slot.

    ``turn_s``: how long after an order that all slots get at once it is this slot's turn.
    ``report``: puts an event into the slot's inbox.
    """

    def __init__(self, turn_s: float, report: Callable[[SnapshotWritten], object]) -> None:
        self.turn_s = turn_s
        self._report = report
        self._snapshots = ThreadPoolExecutor(1, thread_name_prefix="flinkplus-snapshots")
        self._upkeep = ThreadPoolExecutor(1, thread_name_prefix="flinkplus-bases")

    def persist(
        self, generation: Generation, name: SubtaskId, checkpoint: CheckpointId, work: Callable[[], SnapshotHandle]
    ) -> None:
        """Run the asynchronous part of a snapshot, in turn; ``SnapshotWritten`` is reported at its end."""
        due = time.monotonic() + self.turn_s

        def run() -> None:
            time.sleep(max(0.0, due - time.monotonic()))
            handle: SnapshotHandle | None = None
            reason = ""
            try:
                handle = work()
            except BaseException as error:
                reason = described(error)
            self._report(SnapshotWritten(generation, name, checkpoint, handle, reason))

        self._snapshots.submit(run)

    def tend(self, state: SubtaskState) -> None:
        """Compact a state's files; no checkpoint waits for it."""
        self._upkeep.submit(_tend, state)

    def beside(self, work: Callable[[], None]) -> None:
        """Remove files, or other work that may wait for the disk."""
        with contextlib.suppress(RuntimeError):  # the slot is closing: its scratch directory goes as a whole
            self._upkeep.submit(clear_away, work)

    def close(self) -> None:
        """Wait for what is under way; drop the rest."""
        self._snapshots.shutdown(wait=True, cancel_futures=True)
        self._upkeep.shutdown(wait=True, cancel_futures=True)


def _tend(state: SubtaskState) -> None:
    """A state that was closed meanwhile needs no compaction."""
    try:
        state.rebase()
    except (StateError, CorruptState, OSError) as error:
        log.info("%s: compaction failed, keeping the existing files: %s", state.subtask, error)
    except Exception:
        log.warning("%s: compaction failed, keeping the existing files", state.subtask, exc_info=True)
