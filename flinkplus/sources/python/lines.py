"""The lines of a TCP server, for demonstrations, as Spark's socket source.

Rules: subtask 0 is the client; the other subtasks end at once. A server sends a line once. So lines that were read
after the last complete checkpoint are lost with the subtask: its successor cannot repeat what it read, and the job
goes back to that checkpoint, where it continues with the lines that come then.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError, InputLost
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import LAG_ROWS, LiveReader, Source
from flinkplus.sources.files.watch import Woken

CONNECT_S = 10.0
WAIT_S = 0.1
RECEIVED_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 24
BUFFER_LINES = 1 << 16
END = 0
VALUE = pa.schema([("value", pa.string())])

log = logging.getLogger("flinkplus")


@dataclass(frozen=True)
class SocketLines(Source):
    """The lines that the server at ``host`` and ``port`` sends, as text; what is not UTF-8 is replaced.

    Raises ``ConfigurationError`` for what is no port.
    """

    name: str
    host: str
    port: int
    schema: pa.Schema = VALUE

    is_live: ClassVar[bool] = True
    is_repeatable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self.port) is not int or not 0 < self.port < 1 << 16:
            raise ConfigurationError(f"source {self.name!r}: port must be 1 to 65535, not {self.port!r}")

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"

    @override
    def reader(self, index: int, parallelism: int) -> LiveReader:
        return SocketReader(self, index)

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        return [positions[0], *[None] * (parallelism - 1)]


class SocketReader(LiveReader):
    """A choice is the number of lines; 0: the server has closed the connection, or the subtask is another one."""

    def __init__(self, source: SocketLines, index: int) -> None:
        super().__init__()
        self._source, self._index = source, index
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._ended = index != 0
        self._closed = False

    @override
    def open(self, position: JsonValue) -> None:
        if position is not None:
            if type(position) is not int or position < 0:
                raise InputError(f"source {self._source.name!r}: not a position of this version: {position!r:.200}")
            self.metrics["rows"] = position

    @override
    def position(self) -> JsonValue:
        return self.metrics["rows"]

    @override
    def begin(self, woken: Woken) -> None:
        if self._index == 0:
            name = f"flinkplus-{self._source.name}"
            threading.Thread(target=self._run, args=(woken,), name=name, daemon=True).start()

    @override
    def choose(self, max_rows: int) -> int | None:
        with self._changed:
            return min(len(self._lines), max_rows) or (END if self._ended else None)

    @override
    def can_read(self, choice: int) -> bool:
        if choice == END:
            return True
        raise InputLost(
            f"source {self._source.name!r}: {choice} lines of {self._source.shown} are lost: a socket cannot be read "
            "again"
        )

    @override
    def rows_of(self, choice: int) -> int:
        return choice

    @override
    def read(self, choice: int) -> pa.RecordBatch | None:
        if choice == END:
            return None
        with self._changed:
            taken, self._lines = self._lines[:choice], self._lines[choice:]
            self._changed.notify()
        assert len(taken) == choice, "read without choose"
        self.metrics["rows"] += choice
        texts = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in taken]
        return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=VALUE)

    @override
    def gauges(self) -> Mapping[str, int]:
        with self._changed:
            return {LAG_ROWS: len(self._lines)}

    @override
    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    # --- the thread

    def _run(self, woken: Woken) -> None:
        try:
            connection = self._connect()
            if connection is not None:
                with connection:
                    self._receive(connection, woken)
        except Exception as error:  # of whatever kind: without this thread the reader would wait for ever
            if not self._closed:
                woken(error)

    def _connect(self) -> socket.socket | None:
        """A connection; ``None``: the reader was closed. Raises ``InputError``."""
        deadline_s = time.monotonic() + CONNECT_S
        while not self._closed:
            try:
                return socket.create_connection((self._source.host, self._source.port), CONNECT_S)
            except OSError as error:
                if time.monotonic() >= deadline_s:
                    raise InputError(
                        f"source {self._source.name!r}: cannot connect to {self._source.shown}: {error}"
                    ) from error
            with self._changed:
                self._changed.wait_for(lambda: self._closed, WAIT_S)
        return None

    def _receive(self, connection: socket.socket, woken: Woken) -> None:
        connection.settimeout(WAIT_S)
        begun = b""
        while not self._closed:
            try:
                data = connection.recv(RECEIVED_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                raise InputError(f"source {self._source.name!r}: {self._source.shown}: {error}") from error
            *lines, begun = (begun + data).split(b"\n")
            if len(begun) > MAX_LINE_BYTES:
                raise InputError(f"source {self._source.name!r}: a line has more than {MAX_LINE_BYTES} bytes")
            if not data and begun:
                lines.append(begun)
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._lines) < BUFFER_LINES)
                self._lines += lines
                self._ended = not data
            if lines or not data:
                woken(None)
            if not data:
                log.info(
                    "source %r: %s has closed the connection: the stream ends", self._source.name, self._source.shown
                )
                return
