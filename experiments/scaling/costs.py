"""What each part of the job costs on this machine: the numbers that the model (``model``) is made of.

The real subtasks of the job run in one process and one thread, step by step, without sockets, Spark and coordinator;
each step is timed. Of each vertex, the time of a step is ``step_s`` + rows taken * ``row_s`` + messages sent *
``message_s``, by least squares over the steps of several parallelisms (with the parallelism, messages become small and
many). Beside it what a message from another slot costs: system calls for a frame of its size, and taking it apart.

What a job of one row takes is measured as well (start, last checkpoint, commit), and how much slower a core is when all
of this machine's are busy: they may share caches, and be two threads of one core. Not measured, and so not in the
model: the loop around the steps, garbage collection, the other threads of a slot, the driver.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.harness.fitting import fitted_costs
from experiments.harness.one_process import OneProcess
from experiments.harness.running import RunError
from flinkplus.config import Options
from flinkplus.graph import JobGraph
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.runtime.slot.subtasks.subtask import Subtask
from flinkplus.runtime.transport.wire.message_format import MessageKind, decode_frame, decode_records

ROUND_TRIPS = 400
FRAME_BYTES = (64, 16_384)
"""Sizes of the frames that system calls are timed with."""
LEAST_SNAPSHOTS = 3
WARM_UP = 0.2
"""Part of the steps, from the beginning, that does not count: caches and tables are empty."""
MOST_STEPS = 30_000
SAMPLED = 16
"""One message in so many is looked at for the size of its rows."""


@dataclass
class VertexCosts:
    """Of one vertex, in seconds; ``rows``: that a step of the source reads, or that leave per row taken."""

    name: str
    step_s: float
    row_s: float
    message_s: float
    sync_s: float
    async_s: float
    rows: float


@dataclass
class Costs:
    """``vertices``: from the source to the last. ``frame_s``, ``byte_s``, ``row_bytes``: of what goes to another slot,
    both ends together. ``job_s``: what a job of one row takes. ``crowded``: how much longer the same work takes on this
    machine when all its cores are busy."""

    vertices: list[VertexCosts]
    frame_s: float
    byte_s: float
    row_bytes: float
    job_s: float = 0.0
    crowded: float = 1.0


@dataclass
class _Step:
    vertex: str
    rows: int
    sent: int
    seconds: float


class Bench(OneProcess):
    """Runs a job step by step, and times each step."""

    def __init__(self, graph: JobGraph, options: Options, directory: Path) -> None:
        super().__init__(graph, options, directory, standbys=False)
        self.steps: list[_Step] = []
        self.frames = self.sampled_bytes = self.sampled_rows = 0
        self.decode_s = 0.0
        self._checkpoints = 0

    def run(self, seconds: float, stop: threading.Event) -> None:
        """Step by step, consumers first, with a few checkpoints on the way."""
        order = list(self.subtasks.values())[::-1]
        begun, taken = time.monotonic(), 0
        first = self._checkpoints
        while not stop.is_set() and len(self.steps) < MOST_STEPS:
            elapsed = time.monotonic() - begun
            if elapsed > seconds:
                return
            if elapsed > seconds * (taken + 1) / (LEAST_SNAPSHOTS + 1):
                taken += 1
                self._checkpoints = first + taken
                for subtask in order:
                    if subtask.plan.vertex.is_source:
                        subtask.steps.trigger(CheckpointId(self._checkpoints))
            if not any([self._step(subtask) for subtask in order]):
                return

    def _step(self, subtask: Subtask) -> bool:
        self._deliver()
        before, snapshots = _progress(subtask), len(self.snapshots)
        begun = time.perf_counter()
        if not subtask.steps.runnable(time.monotonic()):
            return False
        subtask.run()
        seconds = time.perf_counter() - begun
        rows, sent = (after - earlier for after, earlier in zip(_progress(subtask), before, strict=True))
        if len(self.snapshots) == snapshots and rows:
            self.steps.append(_Step(subtask.id.vertex, rows, sent, seconds))
        return True

    def _deliver(self) -> None:
        while self.arriving:
            frame = self.arriving.popleft()
            begun = time.perf_counter()
            arrived = list(decode_frame(frame))
            for message, payload in arrived:
                self.receive(message, payload)
            self.decode_s += time.perf_counter() - begun
            for message, payload in arrived:
                if message.kind is MessageKind.RECORDS:
                    self.frames += 1
                    if self.frames % SAMPLED == 0:
                        self.sampled_bytes += len(frame)
                        self.sampled_rows += decode_records(payload).num_rows


def _progress(subtask: Subtask) -> tuple[int, int]:
    """Rows that have come in (of a source: that have left it), and messages that have been made."""
    assert subtask.operators is not None
    nodes = list(subtask.operators.nodes.values())
    rows = nodes[-1].rows_out if subtask.plan.vertex.is_source else nodes[0].rows_in
    return rows, sum(end.log.appended for end in subtask.outputs.channels.values())


def measure_costs(
    make: Callable[[int], tuple[JobGraph, Options]],
    parallelisms: tuple[int, ...],
    seconds: float,
    directory: Path,
    stop: threading.Event,
) -> Iterator[Costs | None]:
    """``make``: the job at a parallelism. Gives ``None`` after each but the last step, and then what was found.

    Raises ``RunError`` when ``stop`` is set.
    """
    steps: list[_Step] = []
    snapshots: list[SnapshotHandle] = []
    decode_s = frames = sampled_bytes = sampled_rows = 0.0
    for parallelism in parallelisms:
        graph, options = make(parallelism)
        bench = Bench(graph, options, directory / str(parallelism))
        try:
            bench.run(seconds, stop)
        finally:
            bench.close()
        if stop.is_set():
            raise RunError("interrupted")
        steps += bench.steps[int(WARM_UP * len(bench.steps)) :]
        if parallelism == parallelisms[0]:
            snapshots = bench.snapshots
        decode_s, frames = decode_s + bench.decode_s, frames + bench.frames
        sampled_bytes, sampled_rows = sampled_bytes + bench.sampled_bytes, sampled_rows + bench.sampled_rows
        yield None
    names = [vertex.name for vertex in graph.vertices]
    frame_s, byte_s = _system_calls()
    yield Costs(
        [_fit(name, [step for step in steps if step.vertex == name], snapshots) for name in names],
        frame_s + decode_s / max(frames, 1),
        byte_s,
        sampled_bytes / max(sampled_rows, 1),
    )


def _fit(name: str, steps: list[_Step], snapshots: list[SnapshotHandle]) -> VertexCosts:
    counts = {
        "step_s": np.ones(len(steps)),
        "row_s": np.array([float(step.rows) for step in steps]),
        "message_s": np.array([float(step.sent) for step in steps]),
    }
    found = fitted_costs(counts, np.array([step.seconds for step in steps]))
    mine = [handle for handle in snapshots if handle.subtask.startswith(f"{name}[")]

    def middle(key: str) -> float:
        return float(np.median([getattr(handle, key) for handle in mine])) / 1e3 if mine else 0.0

    return VertexCosts(
        name,
        found.get("step_s", 0.0),
        found.get("row_s", 0.0),
        found.get("message_s", 0.0),
        middle("sync_ms"),
        middle("async_ms"),
        float(np.median([step.rows for step in steps])) if steps else 0.0,
    )


def _system_calls() -> tuple[float, float]:
    """Seconds that a frame to another process costs both ends, and each byte of it."""
    times = []
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
        for size in FRAME_BYTES:
            data = bytes(size)
            begun = time.perf_counter()
            for _ in range(ROUND_TRIPS):
                one.sendall(data)
                left = size
                while left:
                    left -= len(other.recv(left))
            times.append((time.perf_counter() - begun) / ROUND_TRIPS)
    byte_s = max(0.0, (times[1] - times[0]) / (FRAME_BYTES[1] - FRAME_BYTES[0]))
    return max(0.0, times[0] - FRAME_BYTES[0] * byte_s), byte_s
