"""The program of a driver: the job of a document (JSON), resumed if it had begun; it says how it is in a file.

``python -m experiments.blackbox.driver FILE``. The document has ``job``, ``master`` and ``status``. The status is
replaced all the time. It has ``pid``, ``state``, ``slots`` (slot -> process), ``missing`` standbys, ``recoveries``; at
the end ``finished`` and ``fallback_reasons``.
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

POLL_S = 0.03


def status_of(job: JobHandle) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "state": job.state,
        "slots": job.slot_pids(),
        "missing": job.missing_standbys(),
        "recoveries": len(job.recoveries()),
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
            while not running.wait(POLL_S):
                write_status(status, {**status_of(running), "finished": False})
            running.await_finish()
            reasons = running.metrics()["fallback_reasons"]
            write_status(status, {**status_of(running), "finished": True, "fallback_reasons": reasons})


if __name__ == "__main__":
    main()
