"""A small process that passes on what Spark's Java process writes to stderr, except for one line of no use.

Spark asks Java for a module that is still incubating, and Java prints a warning of that at each start. No option of
Java or Spark prevents that. A process of its own passes lines on also after the command has ended, or was killed, for
as long as anything holds the pipe. It is run by its text (``python -c``), so it imports the standard library only.
"""

import contextlib
import os
import signal

HIDDEN = b"WARNING: Using incubator modules: jdk.incubator.vector"
STDIN, STDERR = 0, 2


def relay() -> None:
    """Until the end of stdin: a command that ends its children ends Java, and that ends this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(STDIN, "rb", closefd=False) as lines:
        for line in lines:
            if line.rstrip() != HIDDEN:
                write(line)


def write(data: bytes) -> None:
    """Write to stderr; where the terminal was closed, the data is dropped."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(STDERR, data) :]


if __name__ == "__main__":
    relay()
