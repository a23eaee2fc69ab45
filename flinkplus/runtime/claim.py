"""Which driver may run the job of a checkpoint directory: a lock in it, where the directory is on a local (or mounted)
disk.

The system takes the lock from a process that ends, however it does. It does not take it from one that hangs, nor, on
some network file systems, from a host that is gone: there the election in an ensemble that both drivers know decides
(``flinkplus.runtime.registry``), and the lock is only tried. In any case a driver that was replaced finds out before it
changes anything (``CheckpointStorage.begin_run``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from pyarrow import fs

from flinkplus.errors import JobRunsElsewhere
from flinkplus.state.files import filesystem_of

LOCK_FILE = ".driver.lock"


class Claim:
    """The lock of the checkpoint directory at ``location``, held until ``release``; of object stores there is none.

    Raises ``JobRunsElsewhere`` when another process has it, unless it is only ``tried``.
    """

    def __init__(self, location: str, tried: bool = False) -> None:
        self._handle: int | None = None
        with contextlib.suppress(OSError, ValueError):  # what is wrong with the directory is found out and told later
            filesystem, path = filesystem_of(location)
            if isinstance(filesystem, fs.LocalFileSystem):
                Path(path).mkdir(parents=True, exist_ok=True)
                self._handle = os.open(os.path.join(path, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self._handle is None:
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._handle, 300, 0).decode("utf-8", "replace").strip() or "another process"
            self.release()
            if not tried:
                raise JobRunsElsewhere(
                    f"the job in {location!r} is run by {holder}; end that driver first, or, if it hangs where it "
                    "cannot be reached, run the job with an ensemble (zookeeper='host:port,...'), which notices"
                ) from None
        except OSError:  # this file system has no locks
            self.release()
        else:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have it. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)
