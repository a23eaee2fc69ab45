"""The job's own directory in this machine's temporary space, and its lock of the checkpoint directory.

Only the driver that holds the lock may run the job. The system releases it when a process ends, but not when it hangs,
nor, on some network file systems, when a host is lost. There the election in an ensemble that both drivers use decides
(``flinkplus.runtime.coordinator.dispatch.registry``), and the lock is only tried. In any case, a driver that was
replaced finds that out before it changes anything (``Runs.begin``).

Rules: ``remove`` releases both at every end of the job.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import tempfile
from pathlib import Path

from pyarrow import fs
from pyspark.sql import SparkSession

from flinkplus.config import Options
from flinkplus.errors import CheckpointDirectoryError, ConfigurationError, JobRunsElsewhere
from flinkplus.local_files import NoRegularFile, open_regular
from flinkplus.printable import printable
from flinkplus.runtime.host.cleanup import remove_tree
from flinkplus.runtime.host.scratch import JOB_PREFIX, mark_over, mark_running, sweep_jobs, wait_for_slots
from flinkplus.runtime.job.homes import local_master
from flinkplus.state.file_system import absolute, filesystem_of

REMOVE_PATIENCE_S = 5.0
LOCK_FILE = ".driver.lock"


class Claim:
    """The lock of the checkpoint directory at ``location``, held until ``release``; object stores have no lock.

    Raises ``JobRunsElsewhere`` when another process holds it, unless it is only ``tried``;
    ``CheckpointDirectoryError`` when the lock file is not a regular file, such as a link to another file.
    """

    def __init__(self, location: str, tried: bool = False) -> None:
        self._handle: int | None = None
        with contextlib.suppress(OSError, ValueError):  # a directory that cannot be used is reported later
            filesystem, path = filesystem_of(location)
            if isinstance(filesystem, fs.LocalFileSystem):
                Path(path).mkdir(parents=True, exist_ok=True)
                self._handle = _opened(os.path.join(path, LOCK_FILE))
        if self._handle is None:
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(self._handle, 300, 0).decode("utf-8", "replace").strip()
            holder = printable(text) or "another process"
            self.release()
            if not tried:
                raise JobRunsElsewhere(
                    f"the job in {location!r} is run by {holder}; end that driver first, or, if it hangs on a host "
                    "that cannot be reached, run the job with an ensemble (zookeeper='host:port,...')"
                ) from None
        except OSError:  # the file system does not support locks
            self.release()
        else:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _opened(path: str) -> int:
    """The lock file with mode 600: a user who can read it could also take the lock."""
    try:
        handle = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP or isinstance(error, NoRegularFile):
            raise _in_the_way(path) from None
        raise
    found = os.fstat(handle)
    if found.st_nlink > 1:
        os.close(handle)
        raise _in_the_way(path)
    if found.st_uid == os.geteuid():
        os.fchmod(handle, 0o600)
    return handle


def _in_the_way(path: str) -> CheckpointDirectoryError:
    return CheckpointDirectoryError(f"{path!r}, the driver's lock file, is a link or not a file; remove it")


class JobDirectory:
    """The job's own directory: scratch space of the slots (local masters), and checkpoints if the user named none."""

    def __init__(self, spark: SparkSession, options: Options) -> None:
        master = spark.sparkContext.master or ""
        self.local = local_master(master) is not None
        self.one_host = self.local or master.startswith("local-cluster")
        if options.checkpoint_dir is None and not self.one_host:
            raise ConfigurationError(
                f"on {master} the slots run on other machines: give checkpoint_dir, a directory or URI that all of "
                "them can reach"
            )
        try:
            sweep_jobs(options.work_dir)
            self.path = Path(tempfile.mkdtemp(prefix=JOB_PREFIX, dir=options.work_dir))
        except OSError as error:
            raise ConfigurationError(f"work_dir {options.work_dir!r} cannot be used: {error}") from error
        self._alive: int | None = mark_running(self.path)
        self.ephemeral = options.checkpoint_dir is None
        self._ensemble = options.zookeeper is not None
        self._claim: Claim | None = None
        self.checkpoints = absolute(options.checkpoint_dir or str(self.path / "checkpoints"))
        self.scratch = str(self.path) if self.local else None

    def claim(self, resume: bool) -> None:
        """Lock the checkpoints for this driver until ``remove``. Raises ``JobRunsElsewhere``."""
        if not self.ephemeral:
            self._claim = Claim(self.checkpoints, tried=resume and self._ensemble)

    def remove(self, run: str | None = None) -> None:
        """Remove the directory once the slots of this ``run`` have left it; ``None``: no slot was started."""
        mark_over(self.path)
        if run is not None:
            wait_for_slots(run, self.path, REMOVE_PATIENCE_S)
        remove_tree(self.path, REMOVE_PATIENCE_S)
        if self._claim is not None:
            self._claim.release()
        alive, self._alive = self._alive, None
        if alive is not None:
            os.close(alive)
