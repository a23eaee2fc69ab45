"""What a checkpoint of a large state costs when little of it has changed.

Run: ``python -m experiments.bench_increments [--keys 10000,100000,1000000] [--share 0.01] [--same 2000] [--rounds 5]
[--json FILE]``. One subtask with objects of ``VALUE_BYTES`` random bytes; a snapshot after each change of ``share`` of
the keys, and after each change of ``same`` keys, for each size. Prints a line for each size: bytes that are new in
a snapshot by the bytes of the keys and values that changed, and its synchronous and asynchronous part; medians.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.arguments import option, script, whole_numbers
from flinkplus.cli.figures import write_json
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.state import CheckpointStorage, SubtaskState

VALUE_BYTES = 1_000
FILLED_AT_ONCE = 10_000
MEMTABLE_ENTRIES = 50_000


def key(number: int) -> bytes:
    return b"key-%012d" % number


def change(state: SubtaskState, numbers: Sequence[int], rng: np.random.Generator) -> int:
    """Give new values to these keys; returns the bytes of keys and values."""
    data = rng.bytes(VALUE_BYTES * len(numbers))
    values = [data[at : at + VALUE_BYTES] for at in range(0, len(data), VALUE_BYTES)]
    keys = [key(number) for number in numbers]
    state.object_state("objects").put_many(keys, values)
    return sum(map(len, keys)) + len(data)


def fill(state: SubtaskState, key_count: int, rng: np.random.Generator) -> None:
    """All keys, by way of the disk, and one snapshot of them."""
    for first in range(0, key_count, FILLED_AT_ONCE):
        change(state, range(first, min(key_count, first + FILLED_AT_ONCE)), rng)
        state.spill_if_needed()
    state.persist(state.freeze(1, OperatorState()))
    state.checkpoint_complete(1)
    state.rebase()


def measure(folder: Path, key_count: int, share: float, same: int, rounds: int) -> dict[str, Any]:
    """Figures of a state of ``key_count`` keys. JSON-able."""
    rng = np.random.default_rng(1)
    storage = CheckpointStorage(folder / "checkpoints")
    storage.ownership.prepare({"name": "bench", "fingerprint": ""}, resume=False)
    state = SubtaskState(folder / "work", storage.state_files, "count[0]", 1, max_entries=MEMTABLE_ENTRIES)
    fill(state, key_count, rng)
    checkpoint = 1
    figures: dict[str, Any] = {"keys": key_count, "state_mb": round(key_count * VALUE_BYTES / 1e6, 1)}
    for name, changed in (("share", max(1, round(share * key_count))), ("same", min(same, key_count))):
        found: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            size = change(state, rng.choice(key_count, changed, replace=False).tolist(), rng)
            checkpoint += 1
            handle = state.persist(state.freeze(checkpoint, OperatorState()))
            state.checkpoint_complete(checkpoint)
            state.rebase()
            found.append((handle.bytes_new / size, handle.sync_ms, handle.async_ms))
        middle = [statistics.median(values) for values in zip(*found, strict=True)]
        figures[name] = {"changed_keys": changed} | dict(
            zip(("bytes_new_by_changed", "sync_ms", "async_ms"), [round(value, 4) for value in middle], strict=True)
        )
    state.close()
    return figures


def main() -> None:
    options = script(
        "Measure incremental snapshots of large states.",
        keys=option((10_000, 100_000, 1_000_000), whole_numbers(1), metavar="N,..."),
        share=option(0.01, float, help="of the keys that change"),
        same=option(2_000, int, help="keys that change, for each size"),
        rounds=option(5, int, help="snapshots of each kind"),
    )
    rows = []
    for key_count in options.keys:
        with tempfile.TemporaryDirectory(prefix="flinkplus-bench-") as folder:
            rows.append(measure(Path(folder), key_count, options.share, options.same, options.rounds))
        for name in ("share", "same"):
            kind = rows[-1][name]
            print(
                f"{rows[-1]['state_mb']:8,.0f} MB, {kind['changed_keys']:7,} keys changed: new bytes "
                f"{kind['bytes_new_by_changed']:.3f} times theirs, synchronous {kind['sync_ms']:.2f} ms, "
                f"asynchronous {kind['async_ms']:.1f} ms",
                flush=True,
            )
    write_json(options.json, {"value_bytes": VALUE_BYTES, "rounds": options.rounds, "sizes": rows})


if __name__ == "__main__":
    main()
