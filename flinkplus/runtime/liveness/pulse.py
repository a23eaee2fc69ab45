"""Pulses: how the driver notices within half a second that a slot's host hangs, or cannot be heard any more.

Beside each slot a small process (``pulse_process``) sends a datagram four times in ``hang_timeout``, as long as the
slot's process is there; it says whether that is stopped, and whether it hears the driver. It proves less than a
heartbeat (that the host runs and the network carries, not that the interpreter gets anywhere), but it is punctual
whatever the slot computes; so a heartbeat may take its time (``heartbeat_timeout``).

Rules: a slot of which no pulse ever came (a network that carries no UDP, a system without processes like these) is
judged by its heartbeats alone. A datagram is believed when it is signed with a key of the job's secret and newer than
the last; others are counted. Whom silence condemns is for ``protocol.pulses`` to say. On Linux the kernel throws away
what does not begin with the job's tag, so that a flood of datagrams takes no pulse's place in the socket's buffer.
Whatever else comes in numbers may have done so: then silence proves nothing, and heartbeats alone tell.
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
"""So many datagrams at once that are not believed may have filled the buffer."""
MAX_LAST_WORDS = 1000
"""Slots whose last words have come, and are not taken again; the oldest are forgotten first."""
STOP_TIMEOUT_S = 2.0
LOOK_S = 0.02

LINUX = sys.platform.startswith("linux")
# The socket module does not name them.
SO_ATTACH_FILTER, SO_MEMINFO = 26, 55
MEMINFO = struct.Struct("=9I")  # the last number is that of datagrams thrown away
INSTRUCTION = struct.Struct("=HBBI")
LOAD_LENGTH, LOAD_WORD, IF_MORE, IF_EQUAL, RETURN = 0x80, 0x20, 0x25, 0x15, 0x06
UDP_HEADER_BYTES = 8


def pulse_key(secret: bytes) -> bytes:
    """What pulses are signed with: a key that proves nothing elsewhere."""
    return hmac.digest(secret, b"flinkplus-pulse/1", "sha256")


def _filter(begin: bytes) -> bytes:
    """A program for the kernel (classic BPF) that takes datagrams which begin with ``begin`` and are not too long."""
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
    """Have the kernel take nothing but datagrams that begin with ``begin``; false where it cannot be asked to."""
    if not LINUX:
        return False
    program = _filter(begin)
    kept = ctypes.create_string_buffer(program, len(program))
    try:
        told = struct.pack("@HP", len(program) // INSTRUCTION.size, ctypes.addressof(kept))
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, told)
    except OSError as error:
        log.info("could not install the packet filter for pulses: %s", error)
        return False
    return True


class Pulses:
    """The coordinator's end, in its loop. ``timeout_s``: who is silent for longer is to be given up."""

    def __init__(self, host: str, secret: bytes, timeout_s: float, inbox: Inbox[Any], clock: Clock) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        self.timeout_s = timeout_s
        self._key = pulse_key(secret)
        self._tag = tag(self._key)
        self._inbox = inbox
        self._clock = clock
        self.rule = PulseRule(max(1, round(timeout_s * 1000)), socket.gethostname())
        self._looked_s = clock.monotonic()
        self._unbelieved = self._thrown_away = self._told = 0
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
        """Take what has come; true when it is a crowd of strangers', in which pulses may be missing."""
        before = self._unbelieved
        for _ in range(MAX_AT_ONCE):
            try:
                said = self._socket.recv(MAX_DATAGRAM_BYTES)
            except OSError:  # there is no more; or somebody was told that nobody listens, which is not for us
                break
            if not self._believed(said):
                self._unbelieved += 1
                self._crowded |= len(said) == MAX_DATAGRAM_BYTES  # it was longer, and may have been as long as many
        self._crowded |= self._unbelieved - before >= CROWD
        return self._crowded

    def _believed(self, datagram: bytes) -> bool:
        said, mac = datagram[:-MAC_BYTES], datagram[-MAC_BYTES:]
        (name, _, words), count = said[TAG_BYTES : -COUNT.size].partition(b"\0"), said[-COUNT.size :]
        if not name or not hmac.compare_digest(hmac.digest(self._key, said, "sha256")[:MAC_BYTES], mac):
            return False
        number, flags = COUNT.unpack(count)
        deaf, stopped = bool(flags & IS_DEAF), bool(flags & IS_STOPPED)
        text = name.decode("ascii", "replace")
        if flags & IS_LAST:
            return self._takes_words(text, words)
        return self.rule.heard(self._now_ms(), text, number, deaf=deaf, stopped=stopped)

    def _takes_words(self, name: str, words: bytes) -> bool:
        """The last words of a slot are for the coordinator, once."""
        if name not in self._last_words:
            try:
                said = parse(name, words)
            except (ValueError, KeyError, TypeError, struct.error):
                return False
            self._last_words = [*self._last_words, name][-MAX_LAST_WORDS:]
            self._inbox.put(said)
        return True

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)

    @property
    def refused(self) -> int:
        """Datagrams that were not believed, or not taken in at all; any thread may ask."""
        try:
            found = self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO.size)
            self._thrown_away = MEMINFO.unpack(found)[-1]
        except (OSError, struct.error):  # closed, or another system, which does not tell
            pass
        return self._unbelieved + self._thrown_away

    @property
    def due(self) -> bool:
        """Whether it is worth a look again: the loop turns a thousand times a second."""
        return self._clock.monotonic() - self._looked_s >= LOOK_S

    def silent(self, slots: Iterable[PulsedSlot], chains: Iterable[Sequence[str]] | None = None) -> list[str]:
        """The names of those of ``slots`` that are to be given up, by ``PulseRule.given_up``.

        The time in which this loop itself was not there to listen counts for nobody, nor does that in which a crowd of
        other datagrams came.
        """
        now_s, before_s = self._clock.monotonic(), self._looked_s
        self._looked_s, slots = now_s, list(slots)
        self._tell_of_strangers()
        if self._crowded or now_s - before_s > self.timeout_s / 2:
            return self._none_silent(now_s - before_s)
        if not self.rule.any_late(self._now_ms(), [slot.name for slot in slots]):
            return []
        if self.receive():  # what waits in the socket was in time
            return self._none_silent()
        return self.rule.given_up(self._now_ms(), slots, chains)

    def _none_silent(self, for_s: float = 0.0) -> list[str]:
        """Nobody could be heard."""
        self._crowded = False
        self.rule.missed(self._now_ms(), round(for_s * 1000))
        return []

    def _tell_of_strangers(self) -> None:
        """In the log: the first datagram that was refused, the second, the fourth and so on."""
        refused = self.refused
        if refused.bit_length() > self._told:
            self._told = refused.bit_length()
            log.warning("%s: %d datagrams refused so far", self.address, refused)

    def is_doubtful(self, name: str) -> bool:
        """Whether this one may be about to be late."""
        self.receive()
        return self.rule.is_doubtful(self._now_ms(), name)

    def forget(self, name: str) -> None:
        """Nobody asks for this one any more."""
        self.rule.forget(name)

    def close(self) -> None:
        """Listen no more."""
        self._inbox.forget(self._socket)
        self._socket.close()


class Pulse:
    """The slot's end: the process that sends."""

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
        """Begin to send to ``address`` as ``name``. Where that cannot be, the reason is logged. ``note``: of the step
        that this slot is in, to be sent when its process has ended. ``hides_rows``: a digest instead of a row in it.
        """
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
        """Of the process that sends, if there is one."""
        return None if self._process is None else self._process.pid

    def tell(self, deaf: bool) -> None:
        """Say from now on that this slot does not hear the driver, or that it does."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended, which the driver knows by its silence
                self._process.stdin.write(DEAF if deaf else HEARS)
                self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            try:
                process.stdin.close()
            except OSError:
                log.debug("the pulse process had already ended")
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
