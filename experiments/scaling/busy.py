"""How much slower this machine does the job's work when all its cores are at it: they share caches and memory, and may
be two threads of one core.

Real subtasks of the job, at parallelism 1, in processes of their own (``python -m experiments.scaling.busy``): first
in one process, then in as many at once as there are cores.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
from pathlib import Path

from pyspark import cloudpickle

from experiments.scaling.costs import Bench
from flinkplus.config import Options
from flinkplus.graph import JobGraph

READY, WARM_UP_S = "ready", 0.7
TIMEOUT_S = 60.0


def crowding(graph: JobGraph, options: Options, directory: Path, cores: int, seconds: float) -> float:
    """The rows that one process does in so many seconds, by those that each of ``cores`` does at once."""
    directory.mkdir(parents=True, exist_ok=True)
    job = directory / "job"
    job.write_bytes(cloudpickle.dumps((graph, options)))
    alone = _rows(job, directory / "alone", 1, seconds)
    return max(1.0, alone / max(_rows(job, directory / "all", cores, seconds), 1.0))


def _rows(job: Path, directory: Path, processes: int, seconds: float) -> float:
    """On average, of each. Raises ``RuntimeError`` when one of them fails."""
    with contextlib.ExitStack() as stack:
        running = []
        for number in range(processes):
            command = [sys.executable, "-m", __name__, str(job), str(directory / str(number)), str(seconds)]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            running.append(process)
        for process in running:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise RuntimeError(f"{__name__} did not start")
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return sum(float(process.communicate(timeout=TIMEOUT_S)[0]) for process in running) / processes


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
