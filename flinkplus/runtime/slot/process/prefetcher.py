"""The thread of a slot that fetches state before a deployment needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flinkplus.runtime.control import messages as control
from flinkplus.state.durable.prefetched import PREFETCH_FOLDER, PrefetchedFiles
from flinkplus.state.durable.state_files import StateFiles


@dataclass(frozen=True, slots=True)
class FilesFetched:
    """How far the files of an order are; ``report`` is for the coordinator."""

    report: control.Prefetched


class Prefetcher:
    """Carries out orders to fetch files; ``files`` has them.

    ``storage``: durable storage.
    ``work_dir``: the slot's scratch directory.
    ``deliver``: puts an event into the slot's inbox.
    """

    def __init__(self, storage: StateFiles, work_dir: Path, deliver: Callable[[FilesFetched], object]) -> None:
        self.files = PrefetchedFiles(storage, work_dir / PREFETCH_FOLDER)
        self._deliver = deliver
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flinkplus-prefetch")

    def begin(self, order: control.Prefetch) -> None:
        """Fetch the files of ``order``; no others are needed any more."""

        def report(left_bytes: int, reason: str) -> None:
            self._deliver(FilesFetched(control.Prefetched(order.request, left_bytes, reason)))

        number = self.files.begin(order.files)
        if order.files:
            self._submit(lambda: self.files.prefetch(number, order.files, report))

    def drop(self) -> None:
        """What was fetched is not needed any more."""
        self._submit(self.files.drop)

    def _submit(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the slot is closing
            self._pool.submit(work)

    def close(self) -> None:
        """Do not wait for a file that is on its way: it may take long."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.files.drop()
