"""How much slower this machine does the job's work when all its cores are at it: they share caches and memory, and may
be two threads of one core.

Real subtasks of the job, at parallelism 1, in processes of their own (``python -m experiments.scaling.busy``): first
in one process, then in as many at once as there are cores.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from pyspark import cloudpickle

from experiments.harness.running import RunError
from experiments.scaling.costs import Bench
from flinkplus.config import Options
from flinkplus.graph import JobGraph

READY, WARM_UP_S = "ready", 0.7
TIMEOUT_S, POLL_S = 60.0, 0.1


def crowding(
    graph: JobGraph, options: Options, directory: Path, cores: int, seconds: float, stop: threading.Event
) -> float:
    """The rows that one process does in so many seconds, by those that each of ``cores`` does at once.

    Raises ``RunError`` when ``stop`` is set, ``RuntimeError`` when a process fails.
    """
    directory.mkdir(parents=True, exist_ok=True)
    job = directory / "job"
    job.write_bytes(cloudpickle.dumps((graph, options)))
    alone = _rows(job, directory / "alone", 1, seconds, stop)
    return max(1.0, alone / max(_rows(job, directory / "all", cores, seconds, stop), 1.0))


def _rows(job: Path, directory: Path, processes: int, seconds: float, stop: threading.Event) -> float:
    """On average, of each."""
    with contextlib.ExitStack() as stack:
        running = []
        for number in range(processes):
            command = [sys.executable, "-m", __name__, str(job), str(directory / str(number)), str(seconds)]
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is not for it: it is killed here
                )
            )
            stack.callback(process.kill)
            running.append(process)
        if any(_next_line(process, stop) != READY for process in running):
            raise RuntimeError(f"{__name__} did not start")
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return sum(float(_next_line(process, stop)) for process in running) / processes


def _next_line(process: subprocess.Popen[str], stop: threading.Event) -> str:
    """The next line that a process prints, empty when it has ended."""
    assert process.stdout is not None
    deadline = time.monotonic() + TIMEOUT_S
    while not select.select([process.stdout], [], [], POLL_S)[0]:
        if stop.is_set():
            raise RunError("interrupted")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{__name__} was not done in time")
    return process.stdout.readline().strip()


def main(job: str, directory: str, seconds: str) -> None:
    graph, options = pickle.loads(Path(job).read_bytes())
    bench = Bench(graph, options, Path(directory))
    try:
        bench.run(WARM_UP_S, threading.Event())
        print(READY, flush=True)
        sys.stdin.readline()
        done = len(bench.steps)
        bench.run(float(seconds), threading.Event())
        print(sum(step.rows for step in bench.steps[done:]), flush=True)
    finally:
        bench.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
