"""What a new process does once before it takes part in the job, so that its first steps need not.

Libraries load parts of themselves when they are first used, and RocksDB makes its threads then: tens of milliseconds of
processor time. A process that is started for a rescale would spend them while the job is interrupted.

Nothing of the user's is called, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from flinkplus.errors import FlinkPlusError, StateError
from flinkplus.operators.base.columns import SMALL_ROWS
from flinkplus.operators.base.keys import HashPartitioner, encode_keys
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.runtime.transport.wire.message_format import (
    Message,
    MessageKind,
    decode_frame,
    decode_records,
    encode,
    encode_records,
)
from flinkplus.state.backend import SubtaskState
from flinkplus.state.removal import remove_folder

FOLDER = "rehearsal"
TARGETS = 2
BATCH_ROWS = (SMALL_ROWS // 2, SMALL_ROWS * 4)
"""Small and large batches are split, and looked up, in different ways."""


class _NoStorage:
    """``StateTransfers`` that keep nothing: what is restored here is in the scratch directory."""

    def upload(self, local: Path, name: str) -> None:
        pass

    def fetch(self, file: StateFile, local: Path) -> None:
        raise StateError(f"{local} has gone")


def rehearse(scratch: Path) -> None:
    """Do what the first deployment and the first steps of a job do. ``scratch``: the directory of this slot."""
    folder = scratch / FOLDER
    with contextlib.suppress(FlinkPlusError, OSError):  # what needs the disk next will report it
        try:
            for rows in BATCH_ROWS:
                _exchange(rows)
            _keep_state(folder)
        finally:
            remove_folder(folder)


def _exchange(rows: int) -> None:
    """Split a batch by key, as producers do, and read the parts, as consumers do."""
    numbers = np.arange(rows, dtype=np.int64)
    batch = pa.record_batch({"text": pa.array(np.char.mod("%d", numbers)), "number": numbers})
    np.unique(numbers)
    for key in batch.schema.names:
        for target, part in HashPartitioner([key], TARGETS).split(batch):
            message = Message(MessageKind.RECORDS, ChannelId(0, 0, target), Generation(0), Seq(0), CheckpointId(0))
            frame = b"".join(encode(message, encode_records(part)))
            for _, payload in decode_frame(frame):
                encode_keys(decode_records(payload), [key])


def _keep_state(folder: Path) -> None:
    """Write, persist and restore a state."""
    keys = [b"%d" % number for number in range(SMALL_ROWS * 4)]
    before = SubtaskState(folder, _NoStorage(), "rehearsed", 1)
    try:
        numbers = before.number_state("numbers")
        numbers.scatter(numbers.indices(keys), np.arange(len(keys)))
        handle = before.persist(before.freeze(1, OperatorState()))
    finally:
        before.close()
    after = SubtaskState(folder, _NoStorage(), "rehearsed", 2)
    try:
        after.restore(handle)
        after.number_state("numbers").indices(keys)
    finally:
        after.close()
