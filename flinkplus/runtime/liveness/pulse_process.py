"""The pulse process of a slot: sends datagrams to the driver at an interval while the slot's process lives. A datagram
also reports whether that process is stopped, and whether the slot receives messages of the driver.

It is a separate process because no thread of the slot is punctual: the interpreter lock can delay all of them. It is
started from its source text (``python -c``), so it imports only the standard library. The first line on its stdin is
the configuration; the last later byte says whether the slot receives messages of the driver; the end of stdin means
that the slot has ended. Then it sends the slot's *last words* if the step note (``step_note``) has any.
"""

import contextlib
import hmac
import json
import os
import select
import socket
import struct
from typing import BinaryIO

COUNT = struct.Struct(">QB")
IS_DEAF, IS_STOPPED, IS_LAST = 1, 2, 4
HEARS, DEAF = b"1", b"0"
TAG_BYTES = 8
MAC_BYTES = 16
ORDER_BYTES = 4096
STOPPED = (b"T", b"t")
PREFERRED = -10
NOTE = struct.Struct("=8Q")
SUBTASK, OPERATOR, TEXT_BYTES, TEXT_AT = 0, 1, 7, 128
"""Positions in the step note; see ``step_note``."""
LAST_WORDS_TIMES = 3
MAX_WORDS_BYTES = 900
NOTE_BYTES = 4096
FATAL = b"Fatal Python error: "


def tag(key: bytes) -> bytes:
    """The first bytes of every pulse of the job, by which the kernel drops most foreign datagrams."""
    return hmac.digest(key, b"tag", "sha256")[:TAG_BYTES]


def datagram(name: str, count: int, key: bytes, deaf: bool = False, stopped: bool = False, words: bytes = b"") -> bytes:
    """The signed datagram number ``count`` of the pulse ``name``. ``deaf``: the slot receives no messages of the
    driver; ``stopped``: its process is stopped; ``words``: its last words."""
    flags = (IS_DEAF if deaf else 0) | (IS_STOPPED if stopped else 0) | (IS_LAST if words else 0)
    signed = tag(key) + name.encode() + b"\0" + words + COUNT.pack(count, flags)
    return signed + hmac.digest(key, signed, "sha256")[:MAC_BYTES]


def last_words(note: bytes, fatal: bytes, secret: bytes = b"") -> bytes:
    """The last words in a step note; empty if the process did not end inside an operator.

    ``fatal``: the output of ``faulthandler``.
    ``secret``: key of the digest that is sent instead of a row, since datagrams are not encrypted; empty: send the row.
    """
    if len(note) < NOTE.size:
        return b""
    numbers = NOTE.unpack_from(note)
    if not (numbers[SUBTASK] and numbers[OPERATOR]):
        return b""
    row = note[TEXT_AT : TEXT_AT + numbers[TEXT_BYTES]]
    text = row.decode("utf-8", "ignore")
    if row and secret:
        text = f"not shown, since pulses are not encrypted (digest {hmac.digest(secret, row, 'sha256').hex()[:16]})"
    signal = fatal.partition(b"\n")[0]
    signal = signal[len(FATAL) :] if signal.startswith(FATAL) else b""
    while True:
        content = {"numbers": note[: NOTE.size].hex(), "text": text, "signal": signal.decode("ascii", "replace")[:80]}
        words = json.dumps(content).encode()
        if len(words) <= MAX_WORDS_BYTES:
            return words
        text = text[: len(text) // 2]


def opened(path: "str | None") -> "BinaryIO | None":
    """An open file of the slot, which may be removed when the slot ends; ``None`` if it cannot be read."""
    try:
        return open(path, "rb") if path else None
    except OSError:
        return None


def read(file: "BinaryIO | None") -> bytes:
    return b"" if file is None else file.read(NOTE_BYTES)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger; false if the system does not show that."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in STOPPED
    except (OSError, IndexError):
        return False


def beat() -> None:
    """Send until stdin ends."""
    line, _, reported = os.read(0, ORDER_BYTES).partition(b"\n")
    order = json.loads(line)
    note, fatal = opened(order["note"]), opened(order["signal"])
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):  # for punctuality; needs root
            os.setpriority(os.PRIO_PROCESS, 0, PREFERRED)
    family, kind, protocol, _, address = socket.getaddrinfo(order["host"], order["port"], type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as out:
        count = 0
        while True:
            if select.select([0], [], [], order["interval_s"] if count else 0)[0]:
                reported = os.read(0, ORDER_BYTES)
                if not reported:
                    key = bytes.fromhex(order["key"])
                    words = last_words(read(note), read(fatal), key if order["hides_rows"] else b"")
                    last = datagram(order["name"], count + 1, key, words=words)
                    for _ in range(LAST_WORDS_TIMES if words else 0):
                        with contextlib.suppress(OSError):
                            out.sendto(last, address)
                    return
            count += 1
            with contextlib.suppress(OSError):  # the network is down; the next datagram follows
                deaf, stopped = reported.endswith(DEAF), is_stopped(order["pid"])
                out.sendto(datagram(order["name"], count, bytes.fromhex(order["key"]), deaf, stopped), address)


if __name__ == "__main__":
    beat()
