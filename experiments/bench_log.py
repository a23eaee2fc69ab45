"""What an output log costs: append, spill, replay from memory and from disk, trim; and retention that never spills.

Run: ``python -m experiments.bench_log [--mb 512] [--kb 16,64] [--rounds 5] [--directory DIR] [--json FILE]``. Prints
one line per figure, the median of the rounds (MB = 10^6 bytes of messages, time by the wall clock); ``--json`` writes
them with their parameters. *pause* is the longest single call of a round, again the median: what the slot's loop has
to wait. ``retention_ratio``: CPU time of append, send, acknowledge and trim with a retention that has memory to spare,
over that of the plain log, in turn.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness.arguments import option, script, whole_numbers
from experiments.harness.document import write_figures
from upstream_cache import OutputLog, Retention

BUDGET_BYTES = 64 << 20
DISTINCT = 64
FRAME_MESSAGES, FRAME_BYTES = 16, 1 << 20
UNSENT_MESSAGES, UNSENT_BYTES = 4, 16 << 20
RATIO_MESSAGES = 20_000


class AsTheyAre:
    """Messages are bytes."""

    def encode(self, message: Any) -> Sequence[Any]:
        return (message,)

    def decode(self, data: memoryview) -> Any:
        return data


class Stopwatch:
    """Time spent between ``go`` and ``stop``, in all and the longest at a time."""

    def __init__(self) -> None:
        self.total_s = self.longest_s = 0.0

    def go(self) -> None:
        self._begun = time.perf_counter()

    def stop(self) -> None:
        took = time.perf_counter() - self._begun
        self.total_s += took
        self.longest_s = max(self.longest_s, took)


def append_all(log: OutputLog[Any], messages: list[bytes], count: int) -> Stopwatch:
    """Append and send ``count`` messages; only the appends are timed."""
    watch = Stopwatch()
    for seq in range(log.appended, log.appended + count):
        message = messages[seq % DISTINCT]
        watch.go()
        log.append(message, len(message))
        watch.stop()
        log.next_to_send(seq + 1)
    return watch


def replay_all(log: OutputLog[Any]) -> Stopwatch:
    """Send everything again that the log keeps."""
    watch = Stopwatch()
    log.rewind(log.trimmed)
    while log.sent < log.appended:
        watch.go()
        log.take_to_send(log.appended, FRAME_MESSAGES, FRAME_BYTES)
        watch.stop()
    return watch


def trim_all(log: OutputLog[Any], steps: int) -> Stopwatch:
    """Forget everything, in ``steps`` steps."""
    watch = Stopwatch()
    log.acknowledge(log.sent)
    first, count = log.trimmed, log.retained_messages
    for step in range(1, steps + 1):
        watch.go()
        log.trim(first + count * step // steps)
        watch.stop()
    return watch


def one_round(folder: Path, messages: list[bytes], total_bytes: int) -> dict[str, float]:
    """One run through everything: with what the budget holds in memory, then with ``total_bytes`` on disk."""
    size = len(messages[0])
    figures: dict[str, float] = {}

    def note(name: str, watch: Stopwatch, count: int, pause: bool = False) -> None:
        figures[f"{name}_mb_per_s"] = count * size / 1e6 / watch.total_s
        if pause:
            figures[f"{name}_pause_ms"] = watch.longest_s * 1e3

    retention: Retention[Any] = Retention(folder / "spill", AsTheyAre(), BUDGET_BYTES)
    log: OutputLog[Any] = OutputLog("bench", UNSENT_MESSAGES, UNSENT_BYTES, retention=retention)
    within = BUDGET_BYTES // (size + 1024)
    note("append", append_all(log, messages, within), within)
    note("replay_memory", replay_all(log), within)
    note("trim_memory", trim_all(log, 100), within)
    append_all(log, messages, within)
    beyond = total_bytes // size
    note("append_and_spill", append_all(log, messages, beyond), beyond, pause=True)
    kept = log.retained_messages
    note("replay_disk", replay_all(log), kept, pause=True)
    note("trim_disk", trim_all(log, 100), kept, pause=True)
    retention.close()
    return figures


def never_spilling(messages: list[bytes], retention: Retention[Any] | None) -> float:
    """CPU nanoseconds per message that is appended, sent, acknowledged and, 16 later, trimmed."""
    log: OutputLog[Any] = OutputLog("bench", UNSENT_MESSAGES, UNSENT_BYTES, retention=retention)
    size = len(messages[0])
    begun = time.thread_time()
    for seq in range(RATIO_MESSAGES):
        if log.has_room:
            log.append(messages[seq % DISTINCT], size)
        log.next_to_send(seq + 1)
        if seq % 8 == 7:
            log.acknowledge(seq)
            log.trim(max(0, seq - 16))
    took = time.thread_time() - begun
    log.close()
    return took / RATIO_MESSAGES * 1e9


def cost_of_retention(folder: Path, messages: list[bytes], rounds: int) -> dict[str, float]:
    """The plain log and one with a retention, in turn."""
    retention: Retention[Any] = Retention(folder / "idle", AsTheyAre(), BUDGET_BYTES)
    plain, retained = [], []
    for _ in range(rounds):
        plain.append(never_spilling(messages, None))
        retained.append(never_spilling(messages, retention))
    retention.close()
    ratios = [mine / theirs for mine, theirs in zip(retained, plain, strict=True)]
    return {
        "plain_ns_per_message": statistics.median(plain),
        "retention_ns_per_message": statistics.median(retained),
        "retention_ratio": statistics.median(ratios),
    }


def measure(directory: Path | None, sizes: Sequence[int], total_bytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """All figures: message size in bytes -> name -> median."""
    figures = {}
    with tempfile.TemporaryDirectory(prefix="flinkplus-bench-", dir=directory) as folder:
        for size in sizes:
            messages = [os.urandom(size) for _ in range(DISTINCT)]
            measured = [one_round(Path(folder), messages, total_bytes) for _ in range(rounds)]
            medians = {name: statistics.median(each[name] for each in measured) for name in measured[0]}
            figures[str(size)] = medians | cost_of_retention(Path(folder), messages, 2 * rounds)
    return figures


def main() -> None:
    options = script(
        "Measure output logs.",
        mb=option(512, int, help="what goes to disk, in MB"),
        kb=option((16, 64), whole_numbers(1), help="sizes of a message, in KB"),
        rounds=option(5, int),
        directory=option(None, Path, help="where to spill (default: the system's temporary directory)"),
    )
    sizes = [size << 10 for size in options.kb]
    figures = measure(options.directory, sizes, options.mb * 1_000_000, options.rounds)
    for size, values in figures.items():
        print(f"messages of {size} bytes")
        for name, value in values.items():
            print(f"  {name:28} {value:12.3f}")
    parameters = {"mb": options.mb, "rounds": options.rounds, "budget_bytes": BUDGET_BYTES}
    write_figures(options.json, {**parameters, "figures": figures})


if __name__ == "__main__":
    main()
