"""Pulses: the driver detects within half a second that a slot's host hangs or is cut off.

A small process next to each slot (``pulse_process``) sends a datagram four times per ``hang_timeout`` while the slot's
process exists. The datagram reports whether that process is stopped, and whether it receives messages of the driver. A
pulse proves less than a heartbeat (the host and the network work, but the interpreter may not make progress), but it is
punctual at any load of the slot. So the timeout of heartbeats can be long (``heartbeat_timeout``).

Rules: a slot without any pulse so far (because the network carries no UDP, or the system cannot run such processes) is
judged by its heartbeats alone. A datagram is accepted if it is signed with a key derived from the job's secret, and
newer than the last; others are counted. ``protocol.liveness.pulses`` decides which silent slots are lost. On Linux the
kernel drops datagrams without the job's tag, so a flood of them cannot displace pulses in the socket's buffer. Many
other unacceptable datagrams may have displaced pulses; then silence proves nothing, and heartbeats alone count.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import json
import logging
import os
import pkgutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from flinkplus.protocol.liveness.pulses import PulsedSlot, PulseRule
from flinkplus.runtime.base.clock import Clock
from flinkplus.runtime.base.inbox import READ, Inbox
from flinkplus.runtime.base.step_note import StepNote, parse
from flinkplus.runtime.liveness.pulse_process import (
    COUNT,
    DEAF,
    HEARS,
    IS_DEAF,
    IS_LAST,
    IS_STOPPED,
    MAC_BYTES,
    TAG_BYTES,
    tag,
)
from flinkplus.runtime.transport.tcp.connections import parse_address

log = logging.getLogger("flinkplus.pulse")

PULSES_IN_TIMEOUT = 4
MAX_DATAGRAM_BYTES = 1200
MAX_AT_ONCE = 1000
CROWD = 32
"""So many unacceptable datagrams at once may have filled the buffer."""
MAX_LAST_WORDS = 1000
"""Maximum number of slots whose last words are remembered as received; the oldest are forgotten first."""
STOP_TIMEOUT_S = 2.0
LOOK_S = 0.02

LINUX = sys.platform.startswith("linux")
# The socket module does not define these.
SO_ATTACH_FILTER, SO_MEMINFO = 26, 55
MEMINFO = struct.Struct("=9I")  # the last number counts dropped datagrams
INSTRUCTION = struct.Struct("=HBBI")
LOAD_LENGTH, LOAD_WORD, IF_MORE, IF_EQUAL, RETURN = 0x80, 0x20, 0x25, 0x15, 0x06
UDP_HEADER_BYTES = 8


def pulse_key(secret: bytes) -> bytes:
    """The key that signs pulses, and is used for nothing else."""
    return hmac.digest(secret, b"flinkplus-pulse/1", "sha256")


def _filter(begin: bytes) -> bytes:
    """A program for the kernel (classic BPF) that accepts datagrams of limited length that begin with ``begin``."""
    first, second = struct.unpack(">II", begin)
    return b"".join(
        INSTRUCTION.pack(*instruction)
        for instruction in (
            (LOAD_LENGTH, 0, 0, 0),
            (IF_MORE, 5, 0, UDP_HEADER_BYTES + MAX_DATAGRAM_BYTES),
            (LOAD_WORD, 0, 0, UDP_HEADER_BYTES),
            (IF_EQUAL, 0, 3, first),
            (LOAD_WORD, 0, 0, UDP_HEADER_BYTES + 4),
            (IF_EQUAL, 0, 1, second),
            (RETURN, 0, 0, 0xFFFF),
            (RETURN, 0, 0, 0),
        )
    )


def _attach_filter(sock: socket.socket, begin: bytes) -> bool:
    """Have the kernel drop datagrams that do not begin with ``begin``; false if it cannot."""
    if not LINUX:
        return False
    program = _filter(begin)
    kept = ctypes.create_string_buffer(program, len(program))
    try:
        reference = struct.pack("@HP", len(program) // INSTRUCTION.size, ctypes.addressof(kept))
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, reference)
    except OSError as error:
        log.info("could not install the packet filter for pulses: %s", error)
        return False
    return True


class Pulses:
    """The coordinator's end, in its loop. ``timeout_s``: a slot that is silent for longer is lost."""

    def __init__(self, host: str, secret: bytes, timeout_s: float, inbox: Inbox[Any], clock: Clock) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        self.timeout_s = timeout_s
        self._key = pulse_key(secret)
        self._tag = tag(self._key)
        self._inbox = inbox
        self._clock = clock
        self.rule = PulseRule(max(1, round(timeout_s * 1000)), socket.gethostname())
        self._looked_s = clock.monotonic()
        self._rejected = self._dropped = self._logged = 0
        self._crowded = False
        self._last_words: list[str] = []
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setblocking(False)
        _attach_filter(self._socket, self._tag)
        self._socket.bind(address)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        inbox.watch(self._socket, READ, self._on_ready)

    def _on_ready(self, _events: int) -> None:
        self.receive()

    def receive(self) -> bool:
        """Receive the waiting datagrams; true if so many were unacceptable that pulses may be missing."""
        before = self._rejected
        for _ in range(MAX_AT_ONCE):
            try:
                datagram = self._socket.recv(MAX_DATAGRAM_BYTES)
            except OSError:  # the buffer is empty, or an ICMP error of another socket was delivered here
                break
            if not self._accepted(datagram):
                self._rejected += 1
                self._crowded |= len(datagram) == MAX_DATAGRAM_BYTES  # cut; it may have taken the place of many
        self._crowded |= self._rejected - before >= CROWD
        return self._crowded

    def _accepted(self, datagram: bytes) -> bool:
        signed, mac = datagram[:-MAC_BYTES], datagram[-MAC_BYTES:]
        (name, _, words), count = signed[TAG_BYTES : -COUNT.size].partition(b"\0"), signed[-COUNT.size :]
        if not name or not hmac.compare_digest(hmac.digest(self._key, signed, "sha256")[:MAC_BYTES], mac):
            return False
        number, flags = COUNT.unpack(count)
        deaf, stopped = bool(flags & IS_DEAF), bool(flags & IS_STOPPED)
        text = name.decode("ascii", "replace")
        if flags & IS_LAST:
            return self._accepted_words(text, words)
        return self.rule.heard(self._now_ms(), text, number, deaf=deaf, stopped=stopped)

    def _accepted_words(self, name: str, words: bytes) -> bool:
        """Pass the last words of a slot to the coordinator, once."""
        if name not in self._last_words:
            try:
                parsed = parse(name, words)
            except (ValueError, KeyError, TypeError, struct.error):
                return False
            self._last_words = [*self._last_words, name][-MAX_LAST_WORDS:]
            self._inbox.put(parsed)
        return True

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)

    @property
    def refused(self) -> int:
        """Number of datagrams that were rejected here or dropped by the kernel; any thread may read it."""
        with contextlib.suppress(OSError, struct.error):  # closed, or a system without this counter
            found = self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO.size)
            self._dropped = MEMINFO.unpack(found)[-1]
        return self._rejected + self._dropped

    @property
    def due(self) -> bool:
        """Whether ``LOOK_S`` has passed since the last ``silent``: the loop turns a thousand times a second."""
        return self._clock.monotonic() - self._looked_s >= LOOK_S

    def silent(self, slots: Iterable[PulsedSlot], chains: Iterable[Sequence[str]] | None = None) -> list[str]:
        """The names of those of ``slots`` that are lost, by ``PulseRule.given_up``. Time in which this loop was
        blocked, or in which many unacceptable datagrams arrived, does not count as silence."""
        now_s, before_s = self._clock.monotonic(), self._looked_s
        self._looked_s, slots = now_s, list(slots)
        self._log_refused()
        if self._crowded or now_s - before_s > self.timeout_s / 2:
            return self._none_silent(now_s - before_s)
        if not self.rule.any_late(self._now_ms(), [slot.name for slot in slots]):
            return []
        if self.receive():  # waiting datagrams arrived in time
            return self._none_silent()
        return self.rule.to_evict(self._now_ms(), slots, chains)

    def _none_silent(self, for_s: float = 0.0) -> list[str]:
        """Pulses may have been missed, so restart the timeouts."""
        self._crowded = False
        self.rule.missed(self._now_ms(), round(for_s * 1000))
        return []

    def _log_refused(self) -> None:
        """Log the first refused datagram, the second, the fourth and so on."""
        refused = self.refused
        if refused.bit_length() > self._logged:
            self._logged = refused.bit_length()
            log.warning("%s: %d datagrams refused so far", self.address, refused)

    def is_doubtful(self, name: str) -> bool:
        """Whether the pulse ``name`` may be about to be late."""
        self.receive()
        return self.rule.is_doubtful(self._now_ms(), name)

    def forget(self, name: str) -> None:
        """Forget the pulse ``name``: its slot's process has ended."""
        self.rule.forget(name)

    def close(self) -> None:
        self._inbox.forget(self._socket)
        self._socket.close()


class Pulse:
    """The slot's end: starts and stops the process that sends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def open(
        self,
        address: str,
        secret: bytes,
        name: str,
        timeout_s: float,
        note: StepNote | None = None,
        hides_rows: bool = False,
    ) -> None:
        """Begin to send to ``address`` as ``name``; a failure is only logged. ``note``: the slot's step note, sent as
        last words at its end. ``hides_rows``: send the digest of a row instead of the row."""
        text = pkgutil.get_data(__package__ or "", "pulse_process.py")
        assert text is not None
        host, port = parse_address(address)
        order = {"host": host, "port": port, "key": pulse_key(secret).hex(), "name": name}
        order |= {"interval_s": timeout_s / PULSES_IN_TIMEOUT, "pid": os.getpid()}
        order |= {"note": note and str(note.path), "signal": note and str(note.signal_path), "hides_rows": hides_rows}
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", text.decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            log.info("cannot send pulses to %s: %s", address, error)

    @property
    def pid(self) -> int | None:
        """PID of the process that sends; ``None``: it was not started."""
        return None if self._process is None else self._process.pid

    def tell(self, deaf: bool) -> None:
        """Report in later pulses whether this slot receives messages of the driver."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # the process has ended; the driver notices its silence
                self._process.stdin.write(DEAF if deaf else HEARS)
                self._process.stdin.flush()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # the process has already ended
                process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
