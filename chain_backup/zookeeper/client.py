"""One kazoo client: its threads, its deadlines, and an end that is always bounded.

Rules: kazoo's connection thread calls ``on_state`` and must not be held up; everything that talks to the server from
within a callback runs in kazoo's callback thread, by ``post``. Every wait for the server has a deadline. ``close``
returns within ``CLOSE_TIMEOUT_S`` + ``SEVER_TIMEOUT_S`` with all threads ended, whether the server answers or not.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from chain_backup.zookeeper.errors import RegistryUnavailable
from chain_backup.zookeeper.records import split_hosts
from flinkplus.errors import ConfigurationError

RETRY_DELAY_S = 0.2
"""Pause before a request is repeated."""
SESSION_TIMEOUT_S = 4.0  # what an ensemble with ZooKeeper's own tick time grants at least
MIN_SESSION_TIMEOUT_S = 1.0  # kazoo's pings come up to 0.4 s late: below this a healthy session could be lost
CONNECT_TIMEOUT_S = 2.0
FIRST_ANSWER_SHARE = 0.25  # of the session timeout: for the answer to the first try to connect
CLOSE_TIMEOUT_S = 1.5
SEVER_TIMEOUT_S = 3.0
RECONNECT_DELAY_S = 0.05
RECONNECT_MAX_DELAY_S = 0.5  # or less: a server that is back waits for a session for its timeout only

UNCERTAIN = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError, KazooTimeoutError)
"""What leaves open whether a request was done; ``KazooTimeoutError`` is no answer within a deadline."""

CONSEQUENCES = ("RolledBackError", "RuntimeInconsistency")
"""Errors of operations whose transaction failed by another one."""

_log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)  # a lost connection is an event here, not a line on the user's terminal


class Client:
    """A kazoo client for ``hosts`` that connects in the background once started.

    ``on_state(state)``: called from kazoo's connection thread, until ``close`` begins.
    ``auth``: ``user:password`` required to read and change this client's nodes; ``None``: no restriction.
    ``tls``: encrypts connections. Raises ``ConfigurationError`` for hosts or a session timeout that cannot work.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        on_state: Callable[[str], None],
        auth: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if session_timeout_s < MIN_SESSION_TIMEOUT_S:
            raise ConfigurationError(
                f"a ZooKeeper session of {session_timeout_s} s is too short; at least {MIN_SESSION_TIMEOUT_S} s"
            )
        self.closing = threading.Event()
        self._on_state = on_state
        self._handler = _Handler(tls, session_timeout_s)
        try:
            self.kazoo = KazooClient(
                hosts,
                timeout=session_timeout_s,
                handler=self._handler,
                connection_retry=KazooRetry(
                    max_tries=-1,
                    delay=RECONNECT_DELAY_S,
                    backoff=1.5,
                    max_delay=min(RECONNECT_MAX_DELAY_S, session_timeout_s / 8),
                ),
                logger=_kazoo_log,
                auth_data=[("digest", auth)] if auth is not None else None,
                default_acl=[make_digest_acl(*auth.split(":", 1), all=True)] if auth is not None else None,
            )
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"{hosts!r} names no ZooKeeper servers; write host:port,host:port,...") from error
        self.kazoo.add_listener(self._state_changed)
        self._connected = threading.Condition()
        self._hopeless: str | None = None
        self._closer: threading.Thread | None = None

    def start(self) -> None:
        """Connect in the background."""
        self.kazoo.start_async()

    @property
    def connected(self) -> bool:
        """Whether there is a connection and a session right now."""
        return bool(self.kazoo.connected) and not self.closing.is_set()

    @property
    def session(self) -> int | None:
        """Number of the session; None while there is no connection."""
        identity = self.kazoo.client_id
        return None if identity is None else int(identity[0])

    timeout = KazooTimeoutError

    def expect_nothing(self, reason: str | None) -> None:
        """Have calls that would wait for a connection raise ``RegistryUnavailable`` at once, for this ``reason``;
        ``None``: have them wait."""
        with self._connected:
            self._hopeless = reason
            self._connected.notify_all()

    def move_to(self, hosts: str) -> None:
        """Connect to ``hosts`` from now on; the session is kept. Ends a try to connect to the old address."""
        self.kazoo.set_hosts(split_hosts(hosts)[0])
        self._handler.cut()

    def await_connected(self, deadline: float, what: str, patient: bool = False) -> None:
        """Wait for a connection; ``patient``: even after ``expect_nothing``. Raises ``RegistryUnavailable`` naming
        ``what`` at ``deadline`` (monotonic seconds)."""
        with self._connected:
            while not self.connected:
                if self._hopeless is not None and not patient:
                    raise RegistryUnavailable(f"{what}: {self._hopeless}")
                left = deadline - time.monotonic()
                if self.closing.is_set() or left <= 0:
                    why = "closed" if self.closing.is_set() else "no connection to ZooKeeper"
                    raise RegistryUnavailable(f"{what}: {why}")
                self._connected.wait(left)

    def post(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the callback thread, after what was posted before."""
        self._handler.callback_queue.put(work)

    def close(self) -> None:
        """End the session and all threads, bounded; may be called twice, and from any thread but the client's own."""
        with self._connected:
            first = self._closer is None
            if first:
                self.closing.set()
                self._connected.notify_all()
                self._closer = threading.Thread(target=self._stop, name="flinkplus-zookeeper-close", daemon=True)
                self._closer.start()
            closer = self._closer
        assert closer is not None
        closer.join(CLOSE_TIMEOUT_S)
        if closer.is_alive():
            self._handler.sever()
            closer.join(SEVER_TIMEOUT_S)
            if closer.is_alive():
                _log.warning("the ZooKeeper connection is still closing: it waits for a name lookup")

    def close_soon(self) -> None:
        """``close`` from one of the client's own threads: begins it, does not wait."""
        threading.Thread(target=self.close, name="flinkplus-zookeeper-close", daemon=True).start()

    def _stop(self) -> None:
        try:
            self.kazoo.stop()
            self.kazoo.close()
        except Exception:  # kazoo raises bare Exceptions here; the threads end as its socket is cut
            _log.exception("closing the connection to ZooKeeper")
        self._handler.join()

    def _state_changed(self, state: str) -> None:
        with self._connected:
            self._connected.notify_all()
        if not self.closing.is_set():
            self._on_state(state)


def result(answer: Any, deadline: float) -> Any:
    """The result of one of kazoo's ``..._async`` calls. Raises what it failed with, ``KazooTimeoutError`` when late."""
    return answer.get(timeout=max(0.0, deadline - time.monotonic()))


def commit(transaction: TransactionRequest, deadline: float) -> tuple[KazooException | None, int]:
    """Commit: the first real error (``None``: all of it is done), and the index of the operation that had it."""
    results = enumerate(result(transaction.commit_async(), deadline))
    failed = [(answer, index) for index, answer in results if isinstance(answer, KazooException)]
    real = [(error, index) for error, index in failed if type(error).__name__ not in CONSEQUENCES]
    return next(iter(real or failed), (None, -1))


class _Handler(SequentialThreadingHandler):
    """kazoo's threads and sockets: threads have names and are joined, the socket can be cut.

    kazoo waits for the answer to a new connection for the whole session timeout. A server that is just starting may
    never answer, and the session would end meanwhile. So the first try waits for a part of that time, each further try
    for twice as long: the server may be slow.
    """

    def __init__(self, tls: ssl.SSLContext | None, session_timeout_s: float = SESSION_TIMEOUT_S) -> None:
        super().__init__()
        self._tls = tls
        self._session_timeout_s = session_timeout_s
        self._first_answer_s = self._answer_s = session_timeout_s * FIRST_ANSWER_SHARE
        self._answer_deadline_s: float | None = None  # monotonic; None: the connection stands
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._severed = False
        self._threads: list[threading.Thread] = []

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name="flinkplus-zookeeper", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def create_connection(self, *args: Any, **kwargs: Any) -> socket.socket:
        kwargs["timeout"] = min(CONNECT_TIMEOUT_S, kwargs.get("timeout") or CONNECT_TIMEOUT_S)
        made: socket.socket = super().create_connection(*args, **kwargs)
        if self._tls is not None:
            made = self._tls.wrap_socket(made, do_handshake_on_connect=False)
        with self._lock:
            self._socket = made
            if self._severed:
                made.close()
                raise OSError("the client is closed")
        if isinstance(made, ssl.SSLSocket):
            try:
                made.do_handshake()  # ``cut`` ends it
            except BaseException:
                made.close()
                raise
        self._answer_deadline_s = time.monotonic() + self._answer_s
        self._answer_s = min(self._session_timeout_s, 2 * self._answer_s)
        return made

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        """What came in one piece with an answer that was read is in TLS's buffer; the system knows nothing of it."""
        ready = [sock for sock in rlist if isinstance(sock, ssl.SSLSocket) and sock.pending()]
        if ready:
            return ready, [], []
        if len(rlist) > 1:  # kazoo waits for its caller's requests as well: it is connected
            self._answer_deadline_s, self._answer_s = None, self._first_answer_s
        elif self._answer_deadline_s is not None:
            left_s = max(0.0, self._answer_deadline_s - time.monotonic())
            timeout = left_s if timeout is None else min(timeout, left_s)
        return super().select(rlist, wlist, xlist, timeout)

    def sever(self) -> None:
        """Cut the connection now and permanently: threads that wait for the server get an error."""
        with self._lock:
            self._severed = True
        self.cut()

    def cut(self) -> None:
        """Cut the present connection, also one whose TLS handshake is not done."""
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


__all__ = ["SESSION_TIMEOUT_S", "UNCERTAIN", "Client", "KazooState", "commit", "result"]
