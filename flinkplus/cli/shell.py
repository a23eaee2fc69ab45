"""Which running job a command means."""

from __future__ import annotations

import argparse

from flinkplus.errors import ConfigurationError
from flinkplus.runtime.operations.access_file import Access, access_of, read_access, the_running_job


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
