"""The fixed cost of a step and of a message, and the cost of a row, by operator.

Run: ``python -m experiments.bench_steps [--parallelism 2,4,8] [--rows 1,32,512] [--waves 100] [--json FILE]``.

A source, the operator behind an exchange by key, and a count behind another one, with what a job with standbys has:
determinants, the filter of message IDs, logs that retain. All subtasks run in one process and one thread
(``harness.one_process``). In a wave every source reads ``rows`` rows for each consumer, and each subtask behind it
takes one bundle with a message of each producer. What is timed is what one subtask of the operator costs in a wave:
decoding and accepting its messages, and its step with all that it sends.

At parallelism *p*, that is *fixed* + *p* * *message* + *p* * *rows* * *row*, by least squares of relative errors. A
*message* is one that comes in and one that goes out. Times are microseconds of processor time, medians over the waves.
Caches are warm here; where many slots share few cores they are not, and everything costs more. Sockets, checkpoints and
the slot's loop are left out.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.baselines.jobs import SUMS_SCHEMA, KeyedRows
from experiments.harness.arguments import option, script, whole_numbers
from experiments.harness.document import write_figures
from experiments.harness.fitting import fitted_costs
from experiments.harness.one_process import OneProcess
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.config import Options
from flinkplus.graph import JobGraph
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.slot.subtasks.pacing import Pacer
from flinkplus.runtime.transport.wire.message_format import decode_frame

WARM_WAVES = 20
STAGE = 1
"""The operator's vertex; 0 is the source, 2 the last one."""
PARALLELISMS, ROWS, WAVES = (2, 4, 8), (1, 32, 512), 100


def _count_rows(key: Any, row: Any, ctx: Any) -> Iterator[tuple[int, int, int, int]]:
    seen = ctx.state("seen")
    seen.put(seen.get(0) + 1)
    yield tuple(row)


def _as_text(rows: Stream) -> Stream:
    return rows.map_batches(_with_word, schema=f"word string, {SUMS_SCHEMA}")


def _with_word(batch: pa.RecordBatch) -> pa.RecordBatch:
    words = pa.array([f"word-{user}" for user in batch.column("user").to_pylist()])
    return pa.RecordBatch.from_arrays([words, *batch.columns], names=["word", *batch.schema.names])


OPERATORS: dict[str, Callable[[Stream], Stream]] = {
    "count, key a number": lambda rows: rows.key_by("user").count(name="operator"),
    "count, key a text": lambda rows: _as_text(rows).key_by("word").count(name="operator"),
    "sum": lambda rows: rows.key_by("user").sum("value", name="operator"),
    "deduplicate": lambda rows: rows.deduplicate("value", name="operator"),
    "process": lambda rows: rows.key_by("user").process(_count_rows, schema=SUMS_SCHEMA, name="operator"),
}


class _Session:
    """As much of a session as it takes to draw a job."""

    @property
    def sparkContext(self) -> _Session:  # Spark's name
        return self

    def getConf(self) -> _Session:
        return self

    def getAll(self) -> list[tuple[str, str]]:
        return []


class _Pace(Pacer):
    """Every read has the same number of rows."""

    def __init__(self, rows: int) -> None:
        super().__init__(None, rows, lambda since: since)
        self._each = rows

    def rows(self, now: float, counted: int) -> int:
        return self._each


def job_of(draw: Callable[[Stream], Stream], parallelism: int) -> tuple[JobGraph, Options]:
    """The job that is measured."""
    env = StreamEnvironment(_Session(), parallelism=parallelism)  # type: ignore[arg-type]
    source = env.generate(KeyedRows(), schema=SUMS_SCHEMA, batches=True, name="rows")
    draw(source).key_by("country").count(output="seen_so_far", name="after").discard()
    return env.graph.fuse(), env.options


class Waves(OneProcess):
    """Waves of ``rows`` rows from each subtask to each of the next vertex."""

    def __init__(self, graph: JobGraph, options: Options, directory: Path, rows: int) -> None:
        super().__init__(graph, options, directory, standbys=True)
        self._stages = [
            [self.subtasks[SubtaskId(vertex.name, index)] for index in range(options.parallelism)]
            for vertex in graph.vertices
        ]
        for subtask in self._stages[0]:
            subtask.work.pacer = _Pace(rows * options.parallelism)

    def run(self) -> float:
        """A wave; returns the seconds that one subtask of the operator took, on average."""
        spent_s = 0.0
        for stage, subtasks in enumerate(self._stages):
            begun = time.thread_time()
            for subtask in subtasks:
                subtask.run()
            ran = time.thread_time()
            frames = list(self.arriving)
            self.arriving.clear()
            decoding = time.thread_time()
            for frame in frames:
                for message, payload in decode_frame(frame):
                    self.receive(message, payload)
            if stage == STAGE:
                spent_s += ran - begun
            elif stage == STAGE - 1:
                spent_s += time.thread_time() - decoding
        return spent_s / self.options.parallelism


@contextmanager
def _collected() -> Iterator[None]:
    """What exists by now is not looked at by the garbage collector."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def wave_us(operator: str, parallelism: int, rows: int, waves: int) -> float:
    """What one subtask of the operator costs in a wave, in microseconds."""
    graph, options = job_of(OPERATORS[operator], parallelism)
    with (
        tempfile.TemporaryDirectory(prefix="flinkplus-bench-") as directory,
        closing(Waves(graph, options, Path(directory), rows)) as job,
        _collected(),
    ):
        return statistics.median([job.run() for _ in range(WARM_WAVES + waves)][WARM_WAVES:]) * 1e6


def measure(
    parallelisms: tuple[int, ...] = PARALLELISMS, rows: tuple[int, ...] = ROWS, waves: int = WAVES
) -> dict[str, Any]:
    """For each operator the fixed cost, that of a message and of a row, and what was measured; prints as it goes."""
    figures: dict[str, Any] = {}
    for operator in OPERATORS:
        cases = [(parallelism, each) for parallelism in parallelisms for each in rows]
        found = [wave_us(operator, *case, waves) for case in cases]
        fixed, message, row = _fit(cases, found)
        measured: dict[str, dict[str, float]] = defaultdict(dict)
        for (parallelism, each), us in zip(cases, found, strict=True):
            measured[str(parallelism)][str(each)] = round(us, 1)
        figures[operator] = {
            "step_us": round(fixed, 1),
            "message_us": round(message, 1),
            "row_us": round(row, 3),
            "wave_us": measured,
        }
        print(f"{operator:20}  step {fixed:5.0f} us  message {message:4.0f} us  row {row:6.3f} us", flush=True)
    return figures


def _fit(cases: list[tuple[int, int]], found: list[float]) -> tuple[float, float, float]:
    parallelisms, rows = np.array(cases, float).T
    counts = {"step": np.ones(len(cases)), "message": parallelisms, "row": parallelisms * rows}
    costs = fitted_costs(counts, np.array(found))
    return costs.get("step", 0.0), costs.get("message", 0.0), costs.get("row", 0.0)


def main() -> None:
    options = script(
        "What a step, a message and a row cost, by operator.",
        parallelism=option(PARALLELISMS, whole_numbers(1), metavar="N,..."),
        rows=option(ROWS, whole_numbers(1), metavar="N,...", help="in each message"),
        waves=option(WAVES, int, metavar="N", help="that are measured, for each case"),
    )
    operators = measure(options.parallelism, options.rows, options.waves)
    write_figures(options.json, {"waves": options.waves, "operators": operators})


if __name__ == "__main__":
    main()
