"""The program of a driver: the job of a document (JSON), resumed if it had begun; it says how it is in a file.

``python -m experiments.blackbox.driver FILE``. The document has ``job``, ``master`` and ``status``. The status is
replaced all the time. It has ``pid``, ``state``, ``slots`` (slot -> process), ``missing`` standbys, ``recoveries``,
``parallelism`` (``null`` while it changes); at the end ``finished`` and ``fallback_reasons``, or ``error``.

Orders are files beside the status, which are taken: ``order``, with a number: the job is rescaled to it; ``drain``: its
input ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from experiments.blackbox.pipelines import PIPELINES, Job
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.session import session
from flinkplus.errors import InsufficientSlots, MoveRefused
from flinkplus.runtime.coordinator.membership.moves import PlannedMove

POLL_S = 0.03
ORDER, DRAIN = "order", "drain"


class Watched:
    """A running job. ``directory``: where orders come."""

    def __init__(self, job: JobHandle, parallelism: int, directory: Path) -> None:
        self._job, self._parallelism = job, parallelism
        self._order, self._drain = directory / ORDER, directory / DRAIN
        self._asked = parallelism
        self._move: PlannedMove | None = None

    def obey(self) -> None:
        """Carry out the orders that have come."""
        if self._drain.exists() and self._job.state == "running":
            self._job.drain()
            self._drain.unlink()
        try:
            self._asked = int(self._order.read_text())
        except FileNotFoundError:
            pass
        else:
            try:
                self._move = self._job.rescale(self._asked)
            except (MoveRefused, InsufficientSlots):
                return  # it is asked again, until it is over
            self._order.unlink()
        if self._move is not None and self._move.status != "under_way":
            if self._move.status == "done":
                self._parallelism = self._asked
            self._move = None

    def status(self) -> dict[str, Any]:
        job = self._job
        return {
            "pid": os.getpid(),
            "state": job.state,
            "slots": job.slot_pids(),
            "missing": job.missing_standbys(),
            "recoveries": len(job.recoveries()),
            "parallelism": None if self._move is not None or self._order.exists() else self._parallelism,
        }


def write_status(path: Path, content: dict[str, Any]) -> None:
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(content))
    os.replace(beside, path)


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    job, status = Job.from_json(document["job"]), Path(document["status"])
    with session(document["master"]) as spark:
        env = StreamEnvironment(spark, **job.options)
        PIPELINES[job.pipeline].draw(env, job)
        with env.execute("black-box", resume="auto") as running:
            watched = Watched(running, job.options["parallelism"], status.parent)
            while not running.wait(POLL_S):
                watched.obey()
                write_status(status, {**watched.status(), "finished": False})
            try:
                running.await_finish()
            except Exception as problem:
                write_status(
                    status, {**watched.status(), "finished": False, "error": f"{type(problem).__name__}: {problem}"}
                )
                raise
            metrics = running.metrics()
            last = {name: metrics[name] for name in ("fallback_reasons",)}
            write_status(status, {**watched.status(), "finished": True, "rescales": len(running.rescales()), **last})


if __name__ == "__main__":
    main()
