"""The standbys of a slot: the agent of its chains, run by one thread of its own.

The slot's loop posts orders about chains to it. The agent sends frames over the same streams as the data, in pieces
small enough not to delay it. Its answers come back as events. A second thread fetches from durable storage.

Rules: a fault of a standby is never a fault of the stream. It is logged, and the copy lags.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chain_backup.disk import SlotDisk
from chain_backup.replication.agent import ReplicationAgent
from flinkplus.errors import described
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.runtime.slot.control.ports import StandbyReady
from flinkplus.runtime.transport.wire.message_format import Message, MessageKind, encode
from flinkplus.state.durable.state_files import StateTransfers

log = logging.getLogger("flinkplus.slot")
REST_S, LOOK_S = 0.25, 0.05
DEPLOYMENT_S = 10.0
"""A deployment that takes longer is not waited for any more."""
NO_CHANNEL = ChannelId(0, 0, 0)


class Standbys:
    """Called by the slot's loop; see ``ReplicationAgent`` for most methods. ``deliver`` may be called in any thread and
    must only enqueue. ``in_turn`` has the loop call a function later: slots that receive the same order do not all work
    at once."""

    def __init__(
        self,
        slot: int,
        work_dir: Path,
        storage: StateTransfers,
        send: Callable[[int, list[Any]], None],
        staged: Callable[[str, int, int], None],
        deliver: Callable[[StandbyReady], None],
        in_turn: Callable[[Callable[[], None]], None],
    ) -> None:
        self._send = send
        self._deliver = deliver
        self._in_turn = in_turn
        self._closed = False
        self._rest_until_s = 0.0
        self._needed = threading.Event()
        self._lock = threading.Lock()
        self._agents_turn = threading.Lock()
        self._waiting = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flinkplus-standbys")
        self._fetching = ThreadPoolExecutor(1, thread_name_prefix="flinkplus-fetching")
        self._agent = ReplicationAgent(
            slot,
            lambda subtask: SlotDisk(work_dir, subtask, storage),
            self._send_frame,
            staged,
            later=self._post,
            beside=self._beside,
        )
        self.figures = self._agent.figures

    def _send_frame(self, slot: int, frame: bytes) -> None:
        message = Message(MessageKind.REPLICA, NO_CHANNEL, Generation(0), Seq(0), CheckpointId(0))
        self._send(slot, encode(message, frame))

    def _post(self, action: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                action(*arguments)
            except Exception:
                log.warning("replication task failed; the standby may lag until the next version", exc_info=True)

        if not self._closed:  # what an action of the agent's own thread leaves for later needs not be done any more
            self._submit(run)

    def _beside(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        def ended(fetched: Future[None]) -> None:
            if not fetched.cancelled():
                self._post(done, fetched.exception())

        with contextlib.suppress(RuntimeError):  # it is being closed
            self._fetching.submit(work).add_done_callback(ended)

    def _submit(self, run: Callable[[], None]) -> None:
        def counted() -> None:
            while (left_s := self._rest_until_s - time.monotonic()) > 0:
                if self._needed.wait(min(left_s, LOOK_S)):
                    break
            try:
                with self._agents_turn:
                    run()
            finally:
                with self._lock:
                    self._waiting -= 1

        with self._lock:
            self._waiting += 1
        with contextlib.suppress(RuntimeError):  # it is being closed
            self._pool.submit(counted)

    def rest(self, started: bool) -> None:
        """The job is being deployed, or has ``started``: leave the processor to the stream until it starts, and for
        ``REST_S`` after that, unless a standby is needed."""
        self._rest_until_s = time.monotonic() + (REST_S if started else DEPLOYMENT_S)
        self._needed.clear()

    def form(self, chains: Mapping[str, tuple[int, tuple[int, ...]]]) -> None:
        self._post(self._agent.form, chains)

    def persisted(self, subtask: str, generation: int, handle: SnapshotHandle) -> None:
        self._post(self._agent.persisted, subtask, generation, handle)

    def receive(self, peer: int, frame: bytes) -> None:
        self._post(self._agent.receive, peer, frame)

    def peer_connected(self, peer: int) -> None:
        self._post(self._agent.peer_connected, peer)

    def trim(self, version: int) -> None:
        """No subtask goes back before ``version``. The cleanup that follows is not urgent."""
        self._in_turn(lambda: self._post(self._agent.trim, version))

    def abort(self, version: int) -> None:
        self._post(self._agent.abort, version)

    def retire(self, subtask: str) -> None:
        self._post(self._agent.retire, subtask)

    def prepare(self, attempt: int, subtask: str, version: int, handle: SnapshotHandle, generation: int) -> None:
        """Have a standby ready to take over with exactly ``version``; ``StandbyReady`` answers. It takes a millisecond,
        so it is done here, unless the agent has something to do."""

        def run() -> None:
            try:
                prepared = self._agent.prepare(subtask, version, handle, generation)
            except Exception as error:
                log.warning("could not prepare the standby of %s for promotion", subtask, exc_info=True)
                self._deliver(StandbyReady(attempt, subtask, None, described(error)))
            else:
                self._deliver(StandbyReady(attempt, subtask, prepared, ""))

        self._needed.set()
        with self._lock:
            idle = self._waiting == 0
        if idle:
            with self._agents_turn:  # something may have been fetched this very moment
                if self._agent.has_all(subtask, handle):
                    run()
                    return
        self._submit(run)

    def close(self, keeps: bool = False) -> None:
        """Close every copy; waits for what is under way. ``keeps``: the files stay, for the slot's next process."""
        self._closed = True
        self._needed.set()
        self._fetching.shutdown(wait=False, cancel_futures=True)  # what is on its way may take long, and has no effect
        self._pool.submit(self._agent.close, keeps)
        self._pool.shutdown(wait=True)
