"""What a resume at another parallelism costs, by the size of the keyed state, against one at the same parallelism.

Run: ``python -m experiments.bench_rescale [--entries 4000000] [--key-bytes 8] [--before 2] [--after 8] [--json
FILE]``. The job: keys | count by key, all keys different, from a fast source that ends, then from a slow one. It is
cancelled after a checkpoint of all keys, resumed at the same parallelism, cancelled, and resumed at the other one: the
difference is what the other parallelism costs. Times are from the call of ``execute``; Spark's session is there
already. The division of the checkpoint is also measured alone, in this process, as often as ``--rounds``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from experiments.harness.arguments import option, script
from experiments.harness.console import show
from experiments.harness.document import write_figures
from experiments.harness.running import complete, one_session, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from flinkplus.api.environment import StreamEnvironment
    from flinkplus.protocol.snapshot.manifest import Manifest

INTERVAL_S = 1.0
RATE = 500.0
"""Rows per second of the slow source."""
PATIENCE_S = 900.0
MIX = 0x9E3779B97F4A7C15
_stamped: set[int] = set()


def keys(first: int, size: int) -> Callable[[int, int], pa.RecordBatch]:
    """A source of keys of ``size`` bytes, a multiple of 8, without order, all different, from the ``first``-th on."""
    factors = np.array([MIX * (2 * word + 1) & (1 << 64) - 1 for word in range(size // 8)], np.uint64)

    def made(start: int, count: int) -> pa.RecordBatch:
        at = np.arange(first + start, first + start + count, dtype=np.uint64)
        mixed = at[:, None] * factors
        mixed ^= mixed >> np.uint64(29)
        offsets = np.arange(count + 1, dtype=np.int32) * size
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(mixed))]
        return pa.record_batch({"k": pa.Array.from_buffers(pa.binary(), count, buffers)})

    return made


def stamping(folder: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Notes when the first rows come in each process."""

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        if os.getpid() not in _stamped and batch.num_rows:
            _stamped.add(os.getpid())
            (folder / f"{os.getpid()}.part").write_text(repr(time.time()))
            (folder / f"{os.getpid()}.part").rename(folder / f"{os.getpid()}")
        return batch

    return work


def drawn(spark: SparkSession, folder: Path, options: Namespace, parallelism: int) -> StreamEnvironment:
    from flinkplus.api.environment import StreamEnvironment

    env = StreamEnvironment(
        spark,
        parallelism=parallelism,
        checkpoint_interval=INTERVAL_S,
        checkpoint_dir=folder / "checkpoints",
        recovery="rollback",
    )
    size, entries = options.key_bytes, options.entries
    fill = env.generate(keys(0, size), schema="k binary", count=entries, batches=True, name="fill")
    slow = env.generate(keys(entries, size), schema="k binary", rate=RATE, batches=True, name="slow")
    counts = fill.union(slow).key_by("k").count(name="count")
    counts.map_batches(stamping(folder / "stamps"), schema="k binary, count long", name="stamp").discard(name="out")
    return env


def fill(spark: SparkSession, folder: Path, options: Namespace) -> dict[str, Any]:
    """Run the job until a checkpoint has all keys."""
    begun = time.monotonic()
    with drawn(spark, folder, options, options.before).execute("rescale") as job:
        deadline = begun + PATIENCE_S
        wait_until(job, lambda: job.metrics()["operators"]["fill"]["rows_out"] >= options.entries, deadline)
        known = len(complete(job))
        wait_until(job, lambda: len(complete(job)) >= known + 2, deadline)
        metrics = job.metrics()
    return {
        "fill_s": round(time.monotonic() - begun, 1),
        "state_mb": round(metrics["state_bytes"] / 1e6, 1),
        "state_keys": metrics["state_keys"],
    }


def resume(spark: SparkSession, folder: Path, options: Namespace, parallelism: int) -> dict[str, Any]:
    """Resume the job; seconds until it was accepted, until all subtasks ran, and until the first new output of any and
    of all processes."""
    stamps = folder / "stamps"
    for old in stamps.iterdir():
        old.unlink()
    env = drawn(spark, folder, options, parallelism)
    load = os.getloadavg()[0]
    begun, begun_s = time.monotonic(), time.time()
    with env.execute("rescale", resume=True) as job:
        accepted = time.monotonic() - begun
        job.await_running(PATIENCE_S)
        running = time.monotonic() - begun

        def noted() -> list[float]:
            return [float(path.read_text()) - begun_s for path in stamps.iterdir() if not path.suffix]

        wait_until(job, lambda: len(noted()) >= parallelism, time.monotonic() + PATIENCE_S)
        outputs = noted()
    times = {"accepted_s": accepted, "running_s": running, "first_output_s": min(outputs), "all_output_s": max(outputs)}
    return {
        "parallelism": parallelism,
        "load_1min": round(load, 2),
        **{name: round(value, 3) for name, value in times.items()},
    }


def divide(spark: SparkSession, folder: Path, options: Namespace, parallelism: int) -> dict[str, Any]:
    """Divide the newest checkpoint alone; median and longest, in milliseconds."""
    from flinkplus.runtime.job.rescaling.keyed import StatePlace
    from flinkplus.runtime.job.rescaling.rescale import Rescaling, parallelism_of
    from flinkplus.state.durable.storage import CheckpointStorage

    env = drawn(spark, folder, options, parallelism)
    graph, groups = env.graph.fuse(), env.options.max_parallelism
    storage = CheckpointStorage(folder / "checkpoints", trust=True)
    manifest: Manifest = storage.manifests.read(storage.manifests.checkpoints()[-1])
    before, took = parallelism_of(manifest, graph), []
    for number in range(options.rounds):
        place = StatePlace(folder / f"division{number}", storage.state_files, 10**9, 10**6, groups)
        begun = time.perf_counter()
        Rescaling(graph, manifest, before, parallelism, place).handles()
        took.append((time.perf_counter() - begun) * 1e3)
    return {
        "before": before,
        "after": parallelism,
        "median_ms": round(statistics.median(took), 1),
        "longest_ms": round(max(took), 1),
    }


def main() -> None:
    options = script(
        "Measure what a resume at another parallelism costs.",
        entries=option(4_000_000, int, help="keys"),
        key_bytes=option(8, int, help="bytes of a key, a multiple of 8"),
        before=option(2, int),
        after=option(8, int),
        rounds=option(5, int, help="divisions of the checkpoint"),
    )
    figures: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="flinkplus-bench-") as directory,
        one_session(None, max(options.before, options.after)) as spark,
    ):
        folder = Path(directory)
        (folder / "stamps").mkdir()
        figures["state"] = fill(spark, folder, options)
        show(f"filled: {figures['state']}")
        figures["runs"] = [resume(spark, folder, options, options.before)]
        show(f"resumed as before: {figures['runs'][-1]}")
        figures["division"] = [divide(spark, folder, options, after) for after in sorted({options.after, 16})]
        show(f"division alone: {figures['division']}")
        figures["runs"].append(resume(spark, folder, options, options.after))
        show(f"resumed at the other: {figures['runs'][-1]}")
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    write_figures(options.json, {"interval_s": INTERVAL_S, "rate": RATE, **settings, **figures})


if __name__ == "__main__":
    main()
