"""``flinkplus list``: the running jobs of this user on this host; ``flinkplus cancel``: end one."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from flinkplus.cli.arguments import add_job_arguments, job_of
from flinkplus.cli.tables import Table, console
from flinkplus.errors import CommandRefused, ConfigurationError, NoRunningJob
from flinkplus.printable import escaped
from flinkplus.runtime.coordinator.commands.operations import CancelCommand, StatusCommand
from flinkplus.runtime.operations.access_file import Access, call, running_jobs

ANSWER_S = 5.0
POLL_S = 0.1
WAIT_S, MAX_WAIT_S = 60.0, 86_400.0
EXIT_NOT_DONE = 1
UNANSWERED = "does not answer"


def add_jobs(commands: Any) -> None:
    listing = commands.add_parser("list", help="the running jobs of this user on this host")
    listing.add_argument("--json", action="store_true", help="one JSON document per line")
    listing.set_defaults(run=run_list)
    cancel = commands.add_parser("cancel", help="end a running job now; committed output and checkpoints stay")
    add_job_arguments(cancel)
    cancel.add_argument(
        "--wait",
        type=float,
        default=WAIT_S,
        metavar="S",
        help="seconds to wait for the end (%(default)s; 0: do not wait)",
    )
    cancel.set_defaults(run=run_cancel)


def run_list(arguments: argparse.Namespace) -> int:
    """The exit code. Jobs that do not answer are listed as such."""
    found = [_described(path, access) for path, access in running_jobs()]
    if arguments.json:
        for job in found:
            print(escaped(json.dumps(job, ensure_ascii=False)), flush=True)
        return 0
    if not found:
        print("no running job of yours was found on this host")
        return 0
    table = Table("Jobs", ("name",), ("job_id", "state", "page"), ("pid", "parallelism", "running s"), "access file")
    for job in found:
        seconds = "-" if job["running_s"] is None else f"{job['running_s']:,.1f}"
        parallelism = "-" if job["parallelism"] is None else str(job["parallelism"])
        cells = (job["job_id"], job["state"], job["ui"] or "-", str(job["pid"]), parallelism, seconds, job["access"])
        table.add_row(job["name"], *cells)
    console().print(table)
    return 0


def _described(path: Path, access: Access) -> dict[str, Any]:
    known = {"name": access.name, "job_id": access.job_id, "pid": access.driver[0], "access": str(path)}
    try:
        status = call(access, StatusCommand(), ANSWER_S)
    except (NoRunningJob, CommandRefused):  # it hangs, or ends right now
        return {
            **known,
            "state": UNANSWERED,
            "parallelism": None,
            "running_s": None,
            "ui": None,
            "checkpoint_dir": None,
        }
    job, metrics = status["job"], status["metrics"]
    return {
        **known,
        "state": metrics["state"],
        "parallelism": job["parallelism"],
        "running_s": metrics["running_s"],
        "ui": job["ui"],
        "checkpoint_dir": job["checkpoint_dir"],
    }


def run_cancel(arguments: argparse.Namespace) -> int:
    """The exit code. Raises as ``job_of`` and ``call``."""
    if not 0 <= arguments.wait <= MAX_WAIT_S:
        raise ConfigurationError(f"--wait must be from 0 to {MAX_WAIT_S:g} seconds, not {arguments.wait:g}")
    access = job_of(arguments)
    call(access, CancelCommand())
    deadline = time.monotonic() + arguments.wait
    while arguments.wait > 0:
        if not _answers(access):
            print(f"job {access.name} has ended")
            return 0
        if time.monotonic() >= deadline:
            print(f"job {access.name} is still ending")
            return EXIT_NOT_DONE
        time.sleep(POLL_S)
    print(f"job {access.name} is ending")
    return 0


def _answers(access: Access) -> bool:
    try:
        call(access, StatusCommand(), ANSWER_S)
    except (NoRunningJob, CommandRefused):
        return False
    return True
