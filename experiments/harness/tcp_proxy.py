"""A TCP proxy with faults: it can swallow what the server answers, pass nothing, hold everything back, or break all."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress

CHUNK = 65_536


class Proxy:
    """Listens on loopback for clients of ``target`` (host:port). ``hosts`` is where.

    ``mode``: "pass"; "deaf" (requests reach the server, its answers do not reach the client); "dead" (nothing passes).
    ``ignored``: so many of the next connections are accepted, and nothing else is done with them.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.mode = "pass"
        self.ignored = 0
        self._held: list[socket.socket] = []
        self._pairs: dict[socket.socket, tuple[socket.socket, bool]] = {}  # the other end; whether we are the client's
        self._gaps: set[socket.socket] = (
            set()
        )  # where something was kept back: what follows must not pass, as in any TCP
        self._wake, self._woken = socket.socketpair()
        self._cut = self._paused = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tcp-proxy")
        self._thread.start()

    def cut(self) -> None:
        """Break all connections."""
        self._cut = True
        self._wake.send(b"x")

    def pause(self) -> None:
        """Hold back everything, also new connections, until ``resume``; nothing is lost."""
        self._paused = True
        self._wake.send(b"x")

    def resume(self) -> None:
        """Pass on what was held back."""
        self._paused = False
        self._wake.send(b"x")

    def close(self) -> None:
        """End it."""
        self._stopping, self._paused = True, False
        self._wake.send(b"x")
        self._thread.join()
        for end in (self._wake, self._woken, self._listener, *self._pairs, *self._held):
            end.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._stopping:
                while self._paused:
                    self._woken.recv(CHUNK)
                for key, _ in selector.select():
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if end is self._listener:
                        self._accept(selector)
                    elif end is self._woken:
                        end.recv(CHUNK)
                    elif end in self._pairs:
                        self._forward(selector, end)
                if self._cut:
                    self._cut = False
                    for end in list(self._pairs):
                        self._drop(selector, end)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        if self.ignored:
            self.ignored -= 1
            self._held.append(client)
            return
        try:
            server = socket.create_connection(self._target, timeout=2)
        except OSError:
            client.close()
            return
        for end, other, is_client in ((client, server, True), (server, client, False)):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs[end] = (other, is_client)
            selector.register(end, selectors.EVENT_READ)

    def _forward(self, selector: selectors.BaseSelector, end: socket.socket) -> None:
        other, is_client = self._pairs[end]
        try:
            data = end.recv(CHUNK)
            passes = self.mode == "pass" or (self.mode == "deaf" and is_client)
            if data and passes and end not in self._gaps:
                other.sendall(data)
            elif data:
                self._gaps.add(end)
        except OSError:
            data = b""
        if not data:
            self._drop(selector, end)

    def _drop(self, selector: selectors.BaseSelector, end: socket.socket) -> None:
        if end in self._pairs:
            for one in (end, self._pairs[end][0]):
                del self._pairs[one]
                with suppress(OSError):
                    selector.unregister(one)
                one.close()
