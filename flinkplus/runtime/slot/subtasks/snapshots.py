"""The snapshots of one subtask: what a handle holds, and where it goes.

Life cycle of a snapshot: *taken* (the operators stage, keyed state is frozen; in the slot's loop), *persisted* (files
are written, in the snapshot pool), *acknowledged* or *declined*; or *discarded* before that.

Rules: called in the slot's loop thread, except for work given to ``ports.persist``, which runs in the snapshot pool.
Snapshots are persisted in the order in which they were taken.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flinkplus.errors import ControlMessageTooLarge
from flinkplus.protocol.job.crashes import KEPT_CHECKPOINTS
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.subtask.checkpoints import add_logs
from flinkplus.protocol.subtask.replay import Replay
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.protocol.vocabulary.in_flight import AbortCause, Logs
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators
from flinkplus.runtime.slot.subtasks.plan import SubtaskPlan, SubtaskPorts
from flinkplus.runtime.transport.wire.message_format import Message, decode_frame, encode, encode_records
from flinkplus.state.backend import SubtaskState
from flinkplus.state.versions import PendingSnapshot

PACKED_AT_ONCE_BYTES = 64 << 10
"""Of messages that were in flight; more are packed in the snapshot pool."""


@dataclass
class Pending:
    """A snapshot on its way: the frozen keyed state, if there is any, and the handle as it is known so far.

    ``copied``: when, on the clock of ``time.perf_counter``.
    """

    frozen: PendingSnapshot | None
    handle: SnapshotHandle
    copied: float


def pack(message: Message, payload: Any) -> str:
    """A message in flight, as a part of a snapshot."""
    if message.records is not None:
        payload = encode_records(message.records)
    return base64.b64encode(b"".join(encode(message, payload if payload is not None else b""))).decode()


class SubtaskSnapshots:
    """``SnapshotPort`` with RocksDB state and the checkpoint storage.

    ``run``: the run of the job, and the rows counted before it, for a paced source.
    """

    def __init__(
        self,
        plan: SubtaskPlan,
        ports: SubtaskPorts,
        operators: FusedOperators,
        state: SubtaskState | None,
        replay: Replay,
        run: Callable[[], tuple[int, int]],
    ) -> None:
        self._plan = plan
        self._id, self._name, self._generation = plan.subtask, str(plan.subtask), plan.generation
        self._ports = ports
        self._operators = operators
        self._state = state
        self._replay = replay
        self._run = run
        self._pending: dict[CheckpointId, Pending] = {}
        self._in_pool: set[CheckpointId] = set()
        self._alignment_began: float | None = None
        self._sound_from: CheckpointId | None = None  # the first that was taken when nothing was left to repeat

    def alignment_begins(self) -> None:
        """A barrier has blocked the first of the input channels."""
        self._alignment_began = time.perf_counter()

    def take(self, checkpoint: CheckpointId, protocol_part: Callable[[], OperatorState]) -> None:
        if self._sound_from is None and not self._replay.active:
            self._sound_from = checkpoint
        begun, begun_s = time.perf_counter(), time.time()
        operators = self._operators.stage(checkpoint)
        saved = replace(protocol_part(), operators=operators, run=self._run())
        frozen = None if self._state is None else self._state.freeze(checkpoint, saved)
        handle = SnapshotHandle(
            subtask=self._name,
            generation=self._generation,
            checkpoint=checkpoint,
            files=(),
            operator_state=saved,
            begun_s=begun_s,
            alignment_ms=(begun - (self._alignment_began or begun)) * 1e3,
            sync_ms=(time.perf_counter() - begun) * 1e3,
        )
        self._pending[checkpoint] = Pending(frozen, handle, begun)
        self._alignment_began = None
        self._ports.reach("snapshot", self._name)

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> SnapshotHandle | None:
        pending = self._pending.pop(checkpoint)
        state, operators = self._state, self._operators
        frozen, handle = pending.frozen, pending.handle
        in_flight = sum(log.size_bytes for log in logs.values())
        if self._plan.unaligned and logs:
            aligned_ms = handle.alignment_ms + (time.perf_counter() - pending.copied) * 1e3
            handle = replace(handle, overtaken=True, alignment_ms=aligned_ms)
        little = frozen is None and in_flight <= PACKED_AT_ONCE_BYTES
        if little and not (self._in_pool or self._plan.options.standbys or self._plan.has_sink):
            return replace(handle, operator_state=add_logs(logs, handle.operator_state, pack, len))

        def work() -> SnapshotHandle:
            begun = time.perf_counter()
            done = handle
            if state is not None and frozen is not None:
                self._ports.reach("upload", self._name)
                times = {name: getattr(handle, name) for name in ("begun_s", "alignment_ms", "sync_ms", "overtaken")}
                done = replace(state.persist(frozen), **times)
            saved = done.operator_state
            saved = add_logs(logs, replace(saved, operators=operators.settle(saved.operators)), pack, len)
            done = replace(done, operator_state=saved, async_ms=round((time.perf_counter() - begun) * 1e3, 3))
            if state is not None and frozen is not None:
                self._ports.reach("uploaded", self._name)
                self._ports.tend(state)
            return done

        self._in_pool.add(checkpoint)
        self._ports.persist(self._id, checkpoint, work)
        return None

    def left_pool(self, checkpoint: CheckpointId) -> None:
        """The work given to ``ports.persist`` has ended."""
        self._in_pool.discard(checkpoint)

    def discard(self, checkpoint: CheckpointId) -> None:
        self._pending.pop(checkpoint, None)

    def complete(self, checkpoint: CheckpointId) -> None:
        self._operators.checkpoint_complete(checkpoint)
        if self._sound_from is not None and checkpoint >= self._sound_from + KEPT_CHECKPOINTS:
            self._operators.knows_rows_no_more()
        state = self._state
        if state is not None:
            self._ports.beside(lambda: state.checkpoint_complete(checkpoint))

    def acknowledge(self, checkpoint: CheckpointId, handle: SnapshotHandle) -> None:
        try:
            self._ports.report(control.Acknowledged(self._generation, checkpoint, self._name, handle))
        except ControlMessageTooLarge as error:
            cause = AbortCause.OVER_BUDGET if handle.operator_state.in_flight_bytes else AbortCause.OTHER
            self.decline(checkpoint, str(error), cause)
        else:
            self._ports.reach("acknowledged", self._name)
            self._ports.snapshotted(self._id, self._generation, handle)

    def decline(self, checkpoint: CheckpointId, reason: str, cause: AbortCause) -> None:
        self._ports.report(control.Declined(self._generation, checkpoint, self._name, reason, cause.value))

    def unpack(self, packed: str) -> tuple[Message, Any]:
        return next(decode_frame(base64.b64decode(packed)))
