"""What keyed state costs: look-ups, the synchronous and asynchronous part of a snapshot, restoring.

Run: ``python -m experiments.bench_state [--keys 100000] [--rounds 10] [--json FILE]``. Prints one line per figure, the
median of the rounds; ``--json`` writes them with the parameters. Random keys, so that look-ups miss the CPU's caches.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.arguments import option, script
from experiments.harness.document import write_figures
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.state import BasePolicy, CheckpointStorage, NumberState, SubtaskState
from flinkplus.state.sst_format import WRITE_CHUNK_ENTRIES, Chunk, write_sst

BATCH_KEYS = 10_000
DELTAS_ONLY = BasePolicy(ratio=1e9, min_bytes=1 << 60, max_deltas=1 << 30)


def timed(act: Callable[[], object]) -> float:
    """Seconds that ``act`` takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def fresh(keys: list[bytes]) -> list[bytes]:
    """The same keys as new objects, not hashed yet, as they come from a channel."""
    return [bytes(bytearray(key)) for key in keys]


def count_all(state: NumberState, keys: list[bytes], rng: np.random.Generator) -> float:
    """Add one to every key, in batches of random order; seconds spent in the state."""
    order = rng.permutation(len(keys))
    spent = 0.0
    for start in range(0, len(keys), BATCH_KEYS):
        batch = fresh([keys[row] for row in order[start : start + BATCH_KEYS]])
        begun = time.perf_counter()
        rows = state.indices(batch)
        state.scatter(rows, state.gather(rows) + 1)
        spent += time.perf_counter() - begun
    return spent


@contextmanager
def pauses_ms() -> Iterator[list[float]]:
    """How long a thread that only computes has to wait at a time for the interpreter, in ms (every wait above 0.2)."""
    pauses: list[float] = []
    stop = threading.Event()

    def spin() -> None:
        last = time.perf_counter()
        while not stop.is_set():
            now = time.perf_counter()
            if now - last > 0.0002:
                pauses.append((now - last) * 1e3)
            last = now

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield pauses
    finally:
        stop.set()
        thread.join()


def made_up_keys(rng: np.random.Generator, key_count: int) -> list[bytes]:
    return [b"word%d" % number for number in rng.permutation(10 * key_count)[:key_count]]


def open_state(folder: Path, key_count: int) -> tuple[CheckpointStorage, SubtaskState]:
    storage = CheckpointStorage(folder / "checkpoints")
    storage.ownership.prepare({"name": "bench", "fingerprint": ""}, resume=False)
    return storage, SubtaskState(
        folder / "work", storage.state_files, "count[0]", 1, max_entries=4 * key_count, policy=DELTAS_ONLY
    )


def sst_entries_per_s(keys: list[bytes], folder: Path, rounds: int) -> float:
    """Sorted entries written as one state file, in a second."""
    ordered = sorted(keys)
    parts = (ordered[at : at + WRITE_CHUNK_ENTRIES] for at in range(0, len(ordered), WRITE_CHUNK_ENTRIES))
    chunks: list[Chunk] = [(part, [b"\1" * 8 for _ in part]) for part in parts]
    seconds = statistics.median(timed(lambda: write_sst(chunks, folder / "rate.sst")) for _ in range(rounds))
    return len(keys) / seconds


def measure_sync_part(key_count: int = 100_000, rounds: int = 9) -> dict[str, Any]:
    """What ``rounds`` snapshots cost, all ``key_count`` keys dirty at each: the part that stops the stream
    (``sync_ms``), the part beside it (``async_ms``), and the rate at which state files are written. One more snapshot
    comes first, to warm up. JSON-able.
    """
    rng = np.random.default_rng(1)
    keys = made_up_keys(rng, key_count)
    with tempfile.TemporaryDirectory(prefix="flinkplus-bench-") as directory:
        _, state = open_state(Path(directory), key_count)
        handles = []
        for checkpoint in range(1, rounds + 2):
            count_all(state.number_state("count"), keys, rng)
            handles.append(state.persist(state.freeze(checkpoint, OperatorState())))
            state.checkpoint_complete(checkpoint)
        state.close()
        rate = sst_entries_per_s(keys, Path(directory), rounds)
    sync, asynchronous = ([getattr(handle, part) for handle in handles[1:]] for part in ("sync_ms", "async_ms"))
    return {
        "dirty_keys": key_count,
        "rounds": rounds,
        "sync_ms_median": statistics.median(sync),
        "sync_ms_max": max(sync),
        "async_ms_median": statistics.median(asynchronous),
        "async_ms_max": max(asynchronous),
        "sst_entries_per_s": round(rate),
    }


def measure(folder: Path, key_count: int, rounds: int) -> dict[str, float]:
    rng = np.random.default_rng(1)
    keys = made_up_keys(rng, key_count)
    storage, state = open_state(folder, key_count)
    numbers = state.number_state("count")
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    note("first_count_us_per_key", count_all(numbers, keys, rng) * 1e6 / key_count)
    handle = state.persist(state.freeze(1, OperatorState()))
    for checkpoint in range(2, rounds + 2):
        note("count_us_per_key", count_all(numbers, keys, rng) * 1e6 / key_count)
        pending = state.freeze(checkpoint, OperatorState())
        cpu = time.thread_time()
        handle = state.persist(pending)
        note("async_cpu_ms", (time.thread_time() - cpu) * 1e3)
        note("sync_ms", handle.sync_ms)
        note("async_ms", handle.async_ms)
        note("file_mb", handle.files[-1].bytes / 1e6)
        state.checkpoint_complete(checkpoint)
    for checkpoint in range(rounds + 2, 2 * rounds + 2):
        count_all(numbers, keys, rng)
        pending = state.freeze(checkpoint, OperatorState())
        with pauses_ms() as pauses:
            handle = state.persist(pending)
        note("async_beside_a_busy_thread_ms", handle.async_ms)
        note("longest_pause_of_it_ms", max(pauses, default=0.0))
        note("sum_of_pauses_ms", sum(pauses))
        state.checkpoint_complete(checkpoint)
    state.close()
    for generation, work in ((2, "work"), (3, "elsewhere")):
        again = SubtaskState(folder / work, storage.state_files, "count[0]", generation, max_entries=4 * key_count)
        where = "local" if work == "work" else "stored"
        note(f"restore_{where}_ms", timed(lambda again=again: again.restore(handle)) * 1e3)  # type: ignore[misc]
        note("after_restore_us_per_key", count_all(again.number_state("count"), keys, rng) * 1e6 / key_count)
        again.close()
    return {name: statistics.median(values) for name, values in figures.items()}


def main() -> None:
    options = script(
        "Measure keyed state on RocksDB.",
        keys=option(100_000, int, help="keys, all of them dirty at each snapshot"),
        rounds=option(10, int, help="snapshots"),
    )
    with tempfile.TemporaryDirectory(prefix="flinkplus-bench-") as folder:
        figures = measure(Path(folder), options.keys, options.rounds)
    for name, value in figures.items():
        print(f"{name:32} {value:10.3f}")
    write_figures(options.json, {"keys": options.keys, "rounds": options.rounds, **figures})


if __name__ == "__main__":
    main()
