"""Which files of a reader were read, which one is next, and which are forgotten.

Rules:

- Pure: listings come in as what they have changed.
- Files are begun oldest first. A file that was read is not begun again, unless it was removed, forgotten, and comes
  again.
- What was read is forgotten when it has been absent from ``FORGET_AFTER`` listings, or when it is older than the
  horizon. The horizon is ``max_age_ns`` before the newest file, but never after a file that is still to be read; so
  nothing that was found is lost, and what was there at the start is read whatever its age.
- A file that is found later than that, and is older than the horizon, is ignored: it may have been read and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from flinkplus.sources.files.choices import upper_half
from flinkplus.sources.files.position import FilesPosition, OpenFile, pack, pruned
from flinkplus.sources.files.seen import SeenFile

FORGET_AFTER = 10


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """What a listing shows that the one before did not, of the files of one reader.

    ``number``: of the listing, from 1. ``gone``: keys of files that are no longer there. ``newest_ns``: the time of the
    newest file, also of other readers.
    """

    number: int
    added: tuple[SeenFile, ...] = ()
    changed: tuple[SeenFile, ...] = ()
    gone: tuple[int, ...] = ()
    newest_ns: int = 0


class Backlog:
    """The files of one reader.

    ``max_age_ns``: ``None``: nothing is forgotten for its age.
    ``changed``: called with each file that is there with another size or time than before, unless it is to be ignored;
    may raise.
    """

    def __init__(self, at: FilesPosition, max_age_ns: int | None, changed: Callable[[SeenFile], None]) -> None:
        self._at = replace(at, read={}, opened=())
        self.read = dict(at.read)
        self.opened = list(at.opened)
        self.listings = 0
        self.ignored = 0
        self._packed: str | None = None
        self._max_age_ns = max_age_ns
        self._changed = changed
        self._present: dict[int, SeenFile] = {}
        self._absent: dict[int, int] = dict.fromkeys(self.read, 0)
        self._unread: dict[int, SeenFile] = {}
        self._unread_bytes = 0
        self._order: list[SeenFile] = []
        self._aging: list[tuple[int, int]] = []
        self._newest_ns = 0

    # --- listings

    def apply(self, listing: DirectoryListing) -> list[SeenFile]:
        """Take over a listing; returns files that are ignored because they came too late. Raises what ``changed``
        raises."""
        self.listings = listing.number
        self._newest_ns = max(self._newest_ns, listing.newest_ns)
        for key in listing.gone:
            self._leave(key)
        late = [file for file in listing.added if not self._arrive(file)]
        for file in listing.changed:
            self._arrive(file)
        self._forget()
        self.ignored += len(late)
        return late if listing.number > 1 else []

    def _arrive(self, file: SeenFile) -> bool:
        """A file is there, or there with another size or time; returns whether it counts."""
        before = self._present.get(file.key)
        self._present[file.key] = file
        self._absent.pop(file.key, None)
        opened = next((o.file for o in self.opened if o.file.key == file.key), None)
        if file.key in self.read:
            heappush(self._aging, (file.mtime_ns, file.key))
            if self.read[file.key] != file.version:
                self._changed(file)
        elif opened is not None:
            if opened.version != file.version:
                self._changed(file)
        elif before is not None and before.fingerprint in self._unread:
            self._changed(file)
            self.remove(before)
            self._add(file)
        elif self._at.may_begin(file):
            self._add(file)
        else:
            return False
        return True

    def _add(self, file: SeenFile) -> None:
        self._unread[file.fingerprint] = file
        self._unread_bytes += file.size
        heappush(self._order, file)

    def _leave(self, key: int) -> None:
        file = self._present.pop(key, None)
        if file is not None:
            self.remove(file)
        if key in self.read:
            self._absent[key] = self.listings

    def _forget(self) -> None:
        for key, since in list(self._absent.items()):
            if self.listings - since >= FORGET_AFTER:
                del self._absent[key]
                self._drop(key)
        if self._max_age_ns is not None:
            pending = [file.mtime_ns for file in (self.oldest(), *(o.file for o in self.opened)) if file is not None]
            horizon_ns = min([self._newest_ns - self._max_age_ns, *pending])
            if horizon_ns > self._at.horizon_ns:
                self._at = pruned(replace(self._at, horizon_ns=horizon_ns))
        while self._aging and self._aging[0][0] < self._at.horizon_ns:
            mtime_ns, key = heappop(self._aging)
            if key in self._present and self._present[key].mtime_ns == mtime_ns:
                self._drop(key)

    def _drop(self, key: int) -> None:
        if self.read.pop(key, None) is not None:
            self._packed = None

    # --- what is to be read

    def oldest(self) -> SeenFile | None:
        """The file to begin next."""
        while self._order and self._unread.get(self._order[0].fingerprint) != self._order[0]:
            heappop(self._order)
        return self._order[0] if self._order else None

    def upcoming(self, count: int) -> list[SeenFile]:
        """The files to begin next, in order: the first ``count``, or fewer."""
        found: list[SeenFile] = []
        front = [(self._order[0], 0)] if self._order else []
        while front and len(found) < count:  # walks the heap from its root
            file, at = heappop(front)
            if self._unread.get(file.fingerprint) == file:
                found.append(file)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(self._order):
                    heappush(front, (self._order[child], child))
        return found

    def find(self, fingerprint: int) -> SeenFile | None:
        """The file with this fingerprint that was not begun."""
        return self._unread.get(fingerprint)

    def with_upper_half(self, half: int) -> SeenFile | None:
        """The oldest file that was not begun with this upper half of its fingerprint."""
        oldest = self.oldest()
        if oldest is not None and upper_half(oldest.fingerprint) == half:
            return oldest
        return min((f for number, f in self._unread.items() if upper_half(number) == half), default=None)

    def remove(self, file: SeenFile) -> None:
        """A file is no longer among those that were not begun."""
        if self._unread.pop(file.fingerprint, None) is not None:
            self._unread_bytes -= file.size

    def forget(self, file: SeenFile) -> None:
        """As if a file that was not begun had never been there."""
        self.remove(file)
        self._present.pop(file.key, None)

    def begin(self, file: SeenFile) -> None:
        """A file is being read."""
        self.remove(file)
        self.opened.append(OpenFile(file))

    def end(self) -> None:
        """The first of the opened files was read to its end."""
        file = self.opened.pop(0).file
        self.read[file.key] = file.version
        self._packed = None
        present = self._present.get(file.key)
        if present is None:
            self._absent[file.key] = self.listings
        else:
            heappush(self._aging, (present.mtime_ns, file.key))

    @property
    def unread(self) -> tuple[int, int]:
        """Number and bytes of the files that are to be read."""
        opened_bytes = sum(opened.file.size for opened in self.opened)
        return len(self._unread) + len(self.opened), self._unread_bytes + opened_bytes

    # --- what was read

    def covered(self, read: Mapping[int, int]) -> Iterator[SeenFile]:
        """Of the files that a position says were read, those that are there, unchanged."""
        for key, version in read.items():
            file = self._present.get(key)
            if file is not None and file.version == version:
                yield file

    def position(self, half: int | None, metrics: dict[str, int]) -> FilesPosition:
        return replace(self._at, read=self.read, opened=tuple(self.opened), half=half, metrics=metrics)

    def packed(self) -> str:
        """``pack(read)``."""
        if self._packed is None:
            self._packed = pack(self.read)
        return self._packed
