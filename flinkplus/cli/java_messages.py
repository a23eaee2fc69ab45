"""A process that passes on what Spark's Java process writes to stderr, except for a warning of an incubator module.

Java prints it at each start, and no option prevents that. This process outlives the command, as long as anything holds
the pipe. It is run by its text (``python -c``), so it imports the standard library only.
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
