"""What a slot's pulse is: a small process that sends a datagram to the driver again and again, as long as the slot's
process lives. A datagram also tells whether that process is stopped, and whether the slot hears the driver.

It is a process of its own since no thread of the slot's is punctual: whatever holds the interpreter holds them all. It
is run by its text (``python -c``), so it imports the standard library only. The first line on its stdin says what to
do, what comes later whether the slot hears the driver (the last byte counts); the end of its stdin, that the slot is
gone. Then it sends the slot's *last words*, if its note of the step that it was in (``step_note``) has any.
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
"""Of the note; see ``step_note``."""
LAST_WORDS_TIMES = 3
MAX_WORDS_BYTES = 900
NOTE_BYTES = 4096
FATAL = b"Fatal Python error: "


def tag(key: bytes) -> bytes:
    """What every pulse of the job begins with: by it alone most of what strangers send is thrown away unread."""
    return hmac.digest(key, b"tag", "sha256")[:TAG_BYTES]


def datagram(name: str, count: int, key: bytes, deaf: bool = False, stopped: bool = False, words: bytes = b"") -> bytes:
    """Number ``count`` of the pulse ``name``, as those who know the key can check. ``deaf``: nothing that the driver
    sends arrives here. ``stopped``: the slot's process stands still. ``words``: its last ones.
    """
    flags = (IS_DEAF if deaf else 0) | (IS_STOPPED if stopped else 0) | (IS_LAST if words else 0)
    said = tag(key) + name.encode() + b"\0" + words + COUNT.pack(count, flags)
    return said + hmac.digest(key, said, "sha256")[:MAC_BYTES]


def last_words(note: bytes, fatal: bytes, secret: bytes = b"") -> bytes:
    """What is to be sent of a note; empty when the process did not end inside an operator. ``fatal``: what
    ``faulthandler`` has written. ``secret``: datagrams are not encrypted, so a row is sent as its digest with this key;
    empty: as it is.
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
        said = {"numbers": note[: NOTE.size].hex(), "text": text, "signal": signal.decode("ascii", "replace")[:80]}
        words = json.dumps(said).encode()
        if len(words) <= MAX_WORDS_BYTES:
            return words
        text = text[: len(text) // 2]


def opened(path: "str | None") -> "BinaryIO | None":
    """A file of the slot's, which may be removed as soon as the slot has ended; ``None`` when it cannot be read."""
    try:
        return open(path, "rb") if path else None
    except OSError:
        return None


def content(file: "BinaryIO | None") -> bytes:
    """What is in a file that was opened."""
    return b"" if file is None else file.read(NOTE_BYTES)


def stands_still(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; false where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in STOPPED
    except (OSError, IndexError):
        return False


def beat() -> None:
    """Send until stdin ends."""
    line, _, said = os.read(0, ORDER_BYTES).partition(b"\n")
    order = json.loads(line)
    note, fatal = opened(order["note"]), opened(order["signal"])
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):  # only root may: it is little work, and should be punctual
            os.setpriority(os.PRIO_PROCESS, 0, PREFERRED)
    family, kind, protocol, _, address = socket.getaddrinfo(order["host"], order["port"], type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as out:
        count = 0
        while True:
            if select.select([0], [], [], order["interval_s"] if count else 0)[0]:
                said = os.read(0, ORDER_BYTES)
                if not said:
                    key = bytes.fromhex(order["key"])
                    words = last_words(content(note), content(fatal), key if order["hides_rows"] else b"")
                    last = datagram(order["name"], count + 1, key, words=words)
                    for _ in range(LAST_WORDS_TIMES if words else 0):
                        with contextlib.suppress(OSError):
                            out.sendto(last, address)
                    return
            count += 1
            with contextlib.suppress(OSError):  # no way there just now
                deaf, stopped = said.endswith(DEAF), stands_still(order["pid"])
                out.sendto(datagram(order["name"], count, bytes.fromhex(order["key"]), deaf, stopped), address)


if __name__ == "__main__":
    beat()
