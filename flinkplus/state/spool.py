"""A file that reaches the disk by way of memory, for a library that holds the interpreter lock while it writes.

rocksdict does so: with a file on disk, all threads of the process would wait hundreds of milliseconds for a busy disk.

Rules:
- the library opens ``name`` and writes from the first byte to the last; between its writes, ``move_on`` moves the
  written part to disk, without the interpreter lock. So memory never holds more than was written between two calls;
- on systems without such memory (Linux has it), ``name`` is the file itself.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from typing_extensions import Self

from flinkplus.state.file_system import SteadyFile


class Spool:
    """The file at ``path``, a new one. A context manager that closes it. Raises ``OSError``."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._file = SteadyFile(path)
        self._moved = 0
        self._memory: int | None = None
        with contextlib.suppress(AttributeError, OSError):
            self._memory = os.memfd_create(path.name)
            name = f"/proc/self/fd/{self._memory}"
            if os.path.exists(name):
                self.name = name

    def move_on(self) -> None:
        """Move on what was written."""
        if self._memory is None:
            return
        written = os.fstat(self._memory).st_size
        if written > self._moved:
            self._file.take(self._memory, self._moved, written)
            self._moved = written
            os.ftruncate(self._memory, 0)  # the writer continues at its position; the part before it takes no space

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._memory is not None:
            os.close(self._memory)
        self._file.close()
