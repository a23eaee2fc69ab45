"""The program of a driver that is killed: the job of a document (JSON), with a mark in a file at each step.

A mark is a line of JSON: ``mark``, ``time_s`` (since the Unix epoch), ``pid``, and what it is about.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGUN_S = time.time()
IMPORTED, SPARK, EXECUTED, FINISHED = "imported", "spark", "executed", "finished"
BEGUN, DEPLOYING, RUNNING = "begun", "deploying", "running"
POLL_S = 0.002
CALM_POLL_S = 0.1


def marker(path: Path) -> Callable[..., None]:
    """Writes a mark to ``path``, whole or not at all."""

    def mark(name: str, time_s: float | None = None, **more: Any) -> None:
        line = {"mark": name, "time_s": time.time() if time_s is None else time_s, "pid": os.getpid(), **more}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    return mark


def read_marks(path: Path) -> list[dict[str, Any]]:
    """All marks so far, of all runs of the program."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    mark = marker(Path(settings["marks"]))
    mark(BEGUN, BEGUN_S)
    from experiments.recovery.jobs import job_of_document
    from flinkplus.api.environment import StreamEnvironment
    from flinkplus.cli.session import session

    mark(IMPORTED)
    with session(settings["master"]) as spark:
        mark(SPARK)
        env = StreamEnvironment(spark, **settings["options"])
        job_of_document(settings["job"]).draw(env, {}, settings["state_keys"])
        with env.execute("recovery", resume="auto") as job:
            mark(EXECUTED, restored_from=job.restored_from)
            seen = job.state
            while not job.done and seen != RUNNING:
                if job.state != seen:
                    seen = job.state
                    mark(seen)
                time.sleep(POLL_S)
            while not job.wait(CALM_POLL_S):
                pass
            job.await_finish()
            metrics = job.metrics()
    counted = settings["job"]["counted"]
    mark(FINISHED, rows=metrics["operators"][counted]["rows_out"], fallbacks=metrics["fallbacks"])


if __name__ == "__main__":
    main()
