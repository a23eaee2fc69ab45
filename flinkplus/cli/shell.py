"""What commands to a running job have in common: which job is meant, and asking it."""

from __future__ import annotations

import argparse
from typing import Any

from flinkplus.errors import ConfigurationError
from flinkplus.runtime.operations.access_file import (
    REPLY_TIMEOUT_S,
    Access,
    access_of,
    call,
    read_access,
    the_running_job,
)
from flinkplus.runtime.operations.commands import Body


def add_job_arguments(command: argparse.ArgumentParser) -> None:
    """``--checkpoint-dir`` and ``--access``."""
    command.add_argument("--checkpoint-dir", metavar="DIR", help="the job that keeps its checkpoints here")
    command.add_argument("--access", metavar="FILE", help="the job with this access file (default: the only one here)")


def job_of(arguments: argparse.Namespace) -> Access:
    """The job that is meant. Raises ``NoRunningJob``, ``ConfigurationError``, ``CheckpointDirectoryError``."""
    if arguments.access is not None and arguments.checkpoint_dir is not None:
        raise ConfigurationError("give --checkpoint-dir or --access, not both")
    if arguments.access is not None:
        return read_access(arguments.access)
    if arguments.checkpoint_dir is not None:
        return access_of(arguments.checkpoint_dir)
    return the_running_job()


def ask(arguments: argparse.Namespace, request: Any, timeout_s: float = REPLY_TIMEOUT_S) -> Body:
    """What the job that is meant answers. Raises also ``CommandRefused``."""
    return call(job_of(arguments), request, timeout_s)
