"""``flinkplus resume``: continue any job from its checkpoint directory."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from flinkplus.api.job import JobHandle
from flinkplus.cli import session
from flinkplus.runtime.job.plan import find_job
from flinkplus.runtime.job.savepoints import resume_found

POLL_S = 0.25


def run_resume(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the job to its end; returns its figures. Raises as ``StreamEnvironment.resume`` and ``await_finish``."""
    found = find_job(arguments.directory, arguments.signing_key, arguments.trust, arguments.job)
    parallelism = arguments.parallelism or found.plan.options.parallelism
    master = session.check_master(arguments.master, parallelism)
    terminal = sys.stderr.isatty()
    given: dict[str, Any] = {"parallelism": parallelism, "ui": arguments.ui}
    if arguments.signing_key is not None:
        given["signing_key"] = arguments.signing_key
    new = arguments.checkpoint_dir
    with session.session(master) as spark, JobHandle(resume_found(spark, found, new, given)) as job:
        print(f"resumed job {job.name!r} from checkpoint {job.restored_from or '(none: from the start)'}")
        try:
            while not job.wait(POLL_S):
                if terminal:
                    rows = job.metrics()["committed_rows"]
                    text = ", ".join(f"{name}: {count:,} rows" for name, count in rows.items())
                    print(f"\r{job.state:<9} {text}", end="", file=sys.stderr, flush=True)
        finally:
            if terminal:
                print(file=sys.stderr)
        job.await_finish()
        if job.state == "stopped":
            print("the job was stopped with a savepoint")
        result = {**job.metrics(), "checkpoints": job.checkpoints(), "recoveries": job.recoveries()}
    for name, count in result["committed_rows"].items():
        print(f"{name}: {count:,} rows committed in all")
    return result
