"""Incremental against full snapshots, by size of state and by what changes: ``flinkplus experiment snapshots``.

One subtask with objects of ``VALUE_BYTES`` random bytes, without Spark: in each round another random share of the keys
gets new values. The *incremental* snapshot is that of the engine: the entries that changed, as one more file. The
*full* one is of the same state, right after it: all entries as one base, which the engine writes from RocksDB
(``SubtaskState.rebase``) whenever the files of a state have become many.

Rules: both have the same synchronous part, which freezes what has changed. The asynchronous part of a full snapshot
begins when RocksDB has the changes: that the incremental one has put them there does not count, which favours the full
one. Where most has changed, the engine may write a base from memory instead, which costs what the incremental snapshot
of all keys costs here. Changes beyond ``MEMTABLE_ENTRIES`` go to RocksDB before the snapshot: they count as its bytes,
and their time is ``spill_ms``. The shares take turns, after one round that does not count.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import console
from experiments.harness.arguments import option, positive_numbers, whole_numbers
from experiments.harness.experiment import Experiment
from experiments.harness.pictures import FONT_SIZE, PALETTE, draw_medians, picture
from experiments.harness.running import Context
from experiments.harness.statistics import grouped, in_turn, median, with_interval
from flinkplus.cli.arguments import positive
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.state import BasePolicy, CheckpointStorage, SubtaskState
from flinkplus.state.durable.state_files import StateFiles

MB = 1e6
VALUE_BYTES = 1_000
FILLED_AT_ONCE = 10_000
MEMTABLE_ENTRIES = 50_000
BASE_AFTER_EACH = BasePolicy(ratio=0.0, min_bytes=0, max_deltas=0, full_bytes=1 << 60, full_deltas=1 << 30)
"""A base only when ``rebase`` is called, and then always."""
INCREMENTAL, FULL = KINDS = ("incremental", "full")
SYNC = "synchronous part of both"
STYLES: dict[str, dict[str, Any]] = {
    INCREMENTAL: {"marker": "o"},
    FULL: {"marker": "s", "linestyle": "--"},
    SYNC: {"marker": "^", "linestyle": ":"},
}
"""How the picture shows them."""
MEASURES = {"new": "mb", "sync": "ms", "async": "ms"}
WARM_UP = -1
"""The round that does not count."""


def shares(text: str) -> tuple[float, ...]:
    """A parser of ``0.01,0.1,1``."""
    found = positive_numbers(text)
    if max(found) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of shares, which are 1 at most")
    return found


@dataclass(frozen=True)
class SnapshotSettings:
    """What to run. ``changed``: shares of the keys."""

    state_mb: tuple[int, ...] = option((10, 100, 1000), whole_numbers(1), metavar="MB,...", help="(10,100,1000)")
    changed: tuple[float, ...] = option(
        (0.01, 0.1, 1.0), shares, metavar="X,...", help="share of the keys that change between two (0.01,0.1,1)"
    )
    rounds: int = option(10, positive, metavar="N", help="snapshots of each kind (10)")
    seed: int = option(1, int, metavar="S")

    def check(self) -> None:
        """The options have been checked one by one."""


class State:
    """The state of one subtask with so many keys, in files below ``folder``."""

    def __init__(self, folder: Path, keys: int, seed: int) -> None:
        storage = CheckpointStorage(folder / "checkpoints")
        storage.ownership.prepare({"name": "snapshots", "fingerprint": ""}, resume=False)
        self.keys = keys
        self._stored: StateFiles = storage.state_files
        self._random = np.random.default_rng(seed)
        self._checkpoint = 0
        self._state = SubtaskState(
            folder / "work", self._stored, "count[0]", 1, max_entries=MEMTABLE_ENTRIES, policy=BASE_AFTER_EACH
        )

    def fill(self) -> None:
        """All keys, and a base of them."""
        self._put(range(self.keys))
        self._snapshots()

    def change(self, share: float) -> Generator[dict[str, Any], None, None]:
        """New values for this share of the keys; the figures of an incremental snapshot and of a full one."""
        changed = max(1, round(share * self.keys))
        changed_bytes, spill_ms = self._put(self._random.choice(self.keys, changed, replace=False).tolist())
        known = {"changed_keys": changed, "changed_mb": changed_bytes / MB, "spill_ms": round(spill_ms, 3)}
        for kind, figures in zip(KINDS, self._snapshots(), strict=True):
            yield {"kind": kind, **known, **figures}

    def _put(self, numbers: Sequence[int]) -> tuple[int, float]:
        """Bytes of keys and values, and milliseconds in which some of them went to RocksDB."""
        size, spill_s = 0, 0.0
        objects = self._state.object_state("objects")
        for first in range(0, len(numbers), FILLED_AT_ONCE):
            keys = [b"key-%012d" % number for number in numbers[first : first + FILLED_AT_ONCE]]
            data = self._random.bytes(VALUE_BYTES * len(keys))
            objects.put_many(keys, [data[at : at + VALUE_BYTES] for at in range(0, len(data), VALUE_BYTES)])
            size += sum(map(len, keys)) + len(data)
            begun_s = time.perf_counter()
            if self._state.spill_if_needed():
                spill_s += time.perf_counter() - begun_s
        return size, spill_s * 1e3

    def _snapshots(self) -> tuple[dict[str, float], dict[str, float]]:
        """An incremental snapshot, and a full one of the same state."""
        self._checkpoint += 1
        handle = self._state.persist(self._state.freeze(self._checkpoint, OperatorState()))
        self._state.checkpoint_complete(self._checkpoint)
        replaced = self._stored.listed()
        begun_s = time.perf_counter()
        self._state.rebase()
        full_ms = (time.perf_counter() - begun_s) * 1e3
        self._stored.remove(replaced)
        return (
            {"new_mb": handle.bytes_new / MB, "sync_ms": handle.sync_ms, "async_ms": handle.async_ms},
            {"new_mb": self._state.state_bytes() / MB, "sync_ms": handle.sync_ms, "async_ms": round(full_ms, 3)},
        )

    def close(self) -> None:
        self._state.close()


def runs(context: Context[SnapshotSettings]) -> Generator[dict[str, Any], None, None]:
    settings = context.settings
    for state_mb in settings.state_mb:
        with context.run_directory(f"state-{state_mb}") as directory:
            state = State(directory, round(state_mb * MB / VALUE_BYTES), settings.seed)
            try:
                context.begin(f"{state_mb:,} MB: filling")
                state.fill()
                for number in range(WARM_UP, settings.rounds):
                    for share in in_turn(settings.changed, number):
                        if context.stop.is_set():
                            return
                        context.begin(f"{state_mb:,} MB, {100 * share:g} % changed")
                        for figures in state.change(share):
                            if number != WARM_UP:
                                yield {"state_mb": state_mb, "changed": share, "round": number, **figures}
            finally:
                state.close()


def summarize(runs: Iterable[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A row for each size, share and kind: medians with intervals."""
    rows = []
    for (state_mb, changed, kind), mine in grouped(runs, "state_mb", "changed", "kind").items():
        row = {"state_mb": state_mb, "changed": changed, "kind": kind, "n": len(mine)}
        for name, unit in MEASURES.items():
            row |= with_interval(name, unit, (run[f"{name}_{unit}"] for run in mine), seed)
        row["bytes_by_changed"] = median((run["new_mb"] / run["changed_mb"] for run in mine), 4)
        row["spill_ms"] = median(run["spill_ms"] for run in mine)
        rows.append(row)
    return rows


def tables(content: dict[str, Any]) -> list[object]:
    title = "Incremental and full snapshots: medians (95 % interval); written: MB, and by the bytes that changed"
    headings = ("MB", "changed", "n", "written", "by changed", "sync ms", "async ms", "spill ms")
    rows = [
        (
            row["kind"],
            f"{row['state_mb']:,}",
            f"{100 * row['changed']:g} %",
            str(row["n"]),
            console.number(row["new_mb"], 2),
            console.number(row["bytes_by_changed"], 2),
            console.interval(row, "sync", "ms"),
            console.interval(row, "async", "ms", 1),
            console.number(row["spill_ms"]),
        )
        for row in content["summary"]
    ]
    return [console.plain_table(title, ("snapshot",), headings, rows)]


def size_and_time(content: dict[str, Any], target: Path) -> bool:
    """By size of state: MB written on the left, milliseconds on the right; a colour for each share that changes.
    ``False``: nothing to draw.
    """
    rows = sorted(content["summary"], key=lambda row: float(row["state_mb"]))
    if not rows:
        return False
    sizes = sorted({row["state_mb"] for row in rows})
    shares_drawn = sorted({row["changed"] for row in rows})
    colours = dict(zip(shares_drawn, itertools.cycle(PALETTE)))
    with picture(target, (10, 6), (0, 0.16, 1, 1), ncols=2) as (figure, (written, took)):
        for (kind, changed), mine in grouped(rows, "kind", "changed").items():
            places, style = [row["state_mb"] for row in mine], {**STYLES[kind], "color": colours[changed]}
            draw_medians(written, places, mine, "new", "mb", **style)
            draw_medians(took, places, mine, "async", "ms", **style)
            if kind == INCREMENTAL:  # that of the full one is the same
                draw_medians(took, places, mine, "sync", "ms", **STYLES[SYNC], color=colours[changed])
        for axes, label in ((written, "written, MB"), (took, "milliseconds")):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.set_xticks([], minor=True)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            axes.yaxis.set_minor_formatter("")
            axes.tick_params(labelsize=FONT_SIZE + 2)
            axes.set_xlabel("state, MB", fontsize=FONT_SIZE + 2)
            axes.set_ylabel(label, fontsize=FONT_SIZE + 2)
            axes.grid(axis="y", linewidth=0.3, alpha=0.6)
        marks = [(f"{100 * changed:g} % changed", {"color": colours[changed]}) for changed in shares_drawn]
        marks += [(label, {"color": "gray", **style}) for label, style in STYLES.items()]
        handles = [took.plot([], [], label=label, **style)[0] for label, style in marks]
        figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=FONT_SIZE + 2)
    return True


EXPERIMENT = Experiment(
    "snapshots",
    SnapshotSettings,
    slots=lambda settings: 1,
    total=lambda settings: len(KINDS) * settings.rounds * len(settings.state_mb) * len(settings.changed),
    runs=runs,
    derive=lambda runs, settings: {"summary": summarize(runs, settings.seed)},
    tables=tables,
    pictures=(("snapshots.png", size_and_time),),
    in_session=False,
)
