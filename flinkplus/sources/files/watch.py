"""The thread that lists the directory for one reader, and removes files that no checkpoint needs any more.

Rules:

- Each reader lists the directory by itself, ``poll_s`` after the last listing, a little more or less, so that readers
  do not do it all at once. A listing that takes long is followed by a longer pause, so that listing takes at most a
  tenth of the time.
- A directory that cannot be listed is a warning, not an error: the thread tries again, since stores may be away for a
  while. The warning is repeated every minute.
- Only the files of the reader, and what has changed since the last listing, go to the reader.
- A time in the future counts as now: otherwise one file with a wrong time would make all later ones too old.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from flinkplus.errors import described
from flinkplus.sources.files.backlog import DirectoryListing
from flinkplus.sources.files.directory import InputDirectory
from flinkplus.sources.files.seen import SeenFile

_PAUSE_TO_LISTING = 10
_JITTER = 0.25
_WARN_AGAIN_S = 60.0

log = logging.getLogger("flinkplus")
Woken = Callable[[Exception | None], None]


class RareWarning:
    """A warning that is not repeated within a minute."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def __call__(self, text: str, *arguments: object) -> None:
        now_s = time.monotonic()
        if self._last_s is None or now_s - self._last_s >= _WARN_AGAIN_S:
            self._last_s = now_s
            log.warning(text, *arguments)


class DirectoryWatch:
    """Lists a directory until it is closed.

    ``owns``: whether the file with this key belongs to the reader.
    ``planned``: the files, if they are known and no others count; then nothing is listed.
    ``dispose``: what is done with files that were read.
    """

    def __init__(
        self,
        directory: InputDirectory,
        owns: Callable[[int], bool],
        poll_s: float,
        planned: Iterable[SeenFile] | None = None,
        dispose: Callable[[SeenFile], None] | None = None,
    ) -> None:
        self._directory = directory
        self._owns = owns
        self._poll_s = poll_s
        self._planned = planned
        self._dispose = dispose
        self._listings: deque[DirectoryListing] = deque()
        self._covered: deque[SeenFile] = deque()
        self._disposed: dict[int, SeenFile] = {}
        self._looked_for: deque[int] = deque()
        self._known: dict[int, SeenFile] = {}
        self._number = 0
        self._stop = threading.Event()
        self._random = random.Random()  # not the one that users may have seeded
        self._cannot_list, self._cannot_dispose = RareWarning(), RareWarning()

    def begin(self, woken: Woken) -> None:
        """Start the thread. ``woken``: called after each listing."""
        threading.Thread(target=self._run, args=(woken,), name="flinkplus-listing", daemon=True).start()

    def take(self) -> Iterator[DirectoryListing]:
        """The listings since the last call."""
        while self._listings:
            yield self._listings.popleft()

    def cover(self, files: Iterable[SeenFile]) -> None:
        """These files are no longer needed."""
        self._covered.extend(files)

    def look_again(self, file: SeenFile) -> None:
        """The next listing shows this file as one that has come, if it is there."""
        self._looked_for.append(file.key)

    def close(self) -> None:
        """Ask the thread to end; does not wait."""
        self._stop.set()

    def _run(self, woken: Woken) -> None:
        try:
            while not self._stop.is_set():
                begun_s = time.monotonic()
                self._remove_covered()
                self._look()
                woken(None)
                pause_s = max(self._poll_s, _PAUSE_TO_LISTING * (time.monotonic() - begun_s))
                self._stop.wait(pause_s * self._random.uniform(1 - _JITTER, 1 + _JITTER))
            self._remove_covered()
        except Exception as error:  # of whatever kind: without this thread the reader would wait for ever
            woken(error)

    def _look(self) -> None:
        if self._planned is not None and self._number:
            return
        try:
            found = list(self._directory.files() if self._planned is None else self._planned)
        except OSError as error:
            self._cannot_list("cannot list the directory %r, trying again: %s", self._directory.shown, described(error))
            return
        self._number += 1
        while self._looked_for:
            self._known.pop(self._looked_for.popleft(), None)
        mine = {file.key: file for file in found if self._owns(file.key)}
        known = self._known
        listing = DirectoryListing(
            self._number,
            added=tuple(file for key, file in mine.items() if key not in known),
            changed=tuple(file for key, file in mine.items() if key in known and known[key] != file),
            gone=tuple(key for key in known if key not in mine),
            newest_ns=min(max((file.mtime_ns for file in found), default=0), time.time_ns()),
        )
        self._known = mine
        self._disposed = {key: file for key, file in self._disposed.items() if key in mine}
        self._listings.append(listing)

    def _remove_covered(self) -> None:
        while self._dispose is not None and self._covered:
            file = self._covered.popleft()
            if self._disposed.get(file.key) == file:
                continue
            try:
                self._dispose(file)
                self._disposed[file.key] = file
            except OSError as error:
                name = self._directory.full_path(file.path)
                self._cannot_dispose("cannot remove %r, which was read: %s", name, described(error))
