"""One subtask's copy on one slot: verified files, staged versions, and a RocksDB that lags slightly.

Rules:
- files are under ``<folder>/replica/``, as hard links where the active state of this slot has them too: each side
  removes only its own names;
- only files that the active state has written here, or that were verified whole, are *held*, and trusted from then on:
  a promotion reads none. Files that a dead process of this slot has *left* are held after their checksum was verified.
  The others are removed once a version as new as the newest of them is held whole, with its base: a lagging predecessor
  offers an older version first;
- a version is a list of files, and so is the content of a RocksDB. Further files are ingested on top only when its list
  is a prefix of the version's. Otherwise (a new base has no tombstones for the content of old files) a new RocksDB is
  made from links to the version's files, without reading them;
- such a new RocksDB is made as soon as the version is held. The old one stays until the version is trimmed to;
- a base names the files that it replaces. A copy that holds these *substitutes* them for the base: it takes a version
  on the base at once, and fetches the base later, for the versions after it;
- a version number alone is not trusted: a failover may have given it to another content.

One thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from chain_backup.disk import Disk, Origin, base_name
from chain_backup.replication.figures import ReplicationFigures
from flinkplus.errors import CorruptState
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.state.backend import Prepared
from flinkplus.state.left import FILE_NAME
from flinkplus.state.store import SubtaskStore

log = logging.getLogger("flinkplus")
_to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(slots=True)
class StagedVersion:
    """A version that is held whole. ``generation``: of the chain it was last offered in, or made in. ``named``: the
    files of its handle; ``files``: those that it is made of here, with the same content."""

    number: int
    generation: int
    handle: bytes
    named: tuple[StateFile, ...]
    files: tuple[StateFile, ...]

    def instead_of(self, base: StateFile) -> tuple[StateFile, ...]:
        """The files here that hold what ``base`` does; none when that is not known."""
        replaced = len(base.replaces)
        if replaced and self.named[:replaced] == base.replaces:
            return self.files[: len(self.files) - len(self.named) + replaced]
        if self.named and self.named[0] == base:
            return self.files[: len(self.files) - len(self.named) + 1]
        return ()


@dataclass(slots=True)
class _Copy:
    """A RocksDB that holds exactly ``files``."""

    files: tuple[StateFile, ...]
    store: SubtaskStore

    def begins(self, files: tuple[StateFile, ...]) -> bool:
        """Whether ingesting the rest of ``files`` on top gives their content."""
        return self.files == files[: len(self.files)]


class Replica:
    """The copy of one subtask, whose files are on ``disk``. ``figures``: those of the slot, which it adds to."""

    def __init__(self, disk: Disk, figures: ReplicationFigures) -> None:
        self.staged: dict[int, StagedVersion] = {}
        self.disk = disk
        self._figures = figures
        self._held: dict[str, StateFile] = {}
        self._stands_for: dict[str, tuple[StateFile, ...]] = {}  # base -> what is made do with
        self._copies: list[_Copy] = []  # at most two: of what was trimmed to, and one ahead of it
        self._left: list[SubtaskStore] = []  # to be removed when there is time
        self._untidy: tuple[int, tuple[StateFile, ...]] | None = None
        self._kept: set[str] = set()  # names of files that were left and are held, until the rest of them goes

    # -- files ----------------------------------------------------------------------------------------------------

    def files_of(self, handle: SnapshotHandle) -> tuple[StateFile, ...]:
        """The files of a handle; ``CorruptState`` unless they are all of this subtask."""
        for file in handle.files:
            folder, _, name = file.name.rpartition("/")
            if folder != self.disk.folder or not FILE_NAME.match(name) or file.bytes <= 0:
                raise CorruptState(
                    f"a version in {self.disk.folder!r} names the state file {file.name!r} of {file.bytes} bytes"
                )
        return handle.files

    def holds(self, file: StateFile) -> bool:
        return self._held.get(base_name(file.name)) == file

    def missing(self, files: Sequence[StateFile]) -> list[StateFile]:
        """Those of ``files`` that are needed and not held."""
        return [file for file in self.make_do(files) if not self.holds(file)]

    def make_do(self, files: Sequence[StateFile]) -> tuple[StateFile, ...]:
        """``files``, or, if their base is not held, but what it replaces is, that and the rest of them."""
        if files and files[0].replaces and not self.holds(files[0]):
            for version in self.staged.values():
                if older := version.instead_of(files[0]):
                    return (*older, *files[1:])
            if all(map(self.holds, files[0].replaces)):
                return (*files[0].replaces, *files[1:])
        return tuple(files)

    def serving(self, files: Sequence[StateFile], lacks: Collection[str] | None) -> tuple[StateFile, ...]:
        """What the base of ``files`` replaces, if that is to be used instead: neither the base is here, nor anything
        held that serves for it, but most of what it replaces is.

        ``lacks``: names of files that cannot be asked for; ``None``: all. Those asked for are smaller than the base.
        """
        if not files or not files[0].replaces or self._is_here(files[0]) or self.make_do(files) != tuple(files):
            return ()
        base = files[0]
        away = [file for file in base.replaces if not self._is_here(file)]
        if away and (lacks is None or any(base_name(file.name) in lacks for file in away)):
            return ()
        here = len(away) < len(base.replaces) and sum(file.bytes for file in away) < base.bytes
        return base.replaces if here else ()

    def _is_here(self, file: StateFile) -> bool:
        return self.holds(file) or self.disk.has_left(file)

    @property
    def wanted_base(self) -> StateFile | None:
        """The base of the newest version, if the copy substitutes older files for it."""
        latest = self.latest
        if latest is None or latest.named == latest.files or self.holds(latest.named[0]):
            return None
        return latest.named[0]

    def serves(self, file: StateFile) -> bool:
        """Whether the copy substitutes the files that ``file`` replaces for it, in the newest version."""
        latest, older = self.latest, self._stands_for.get(file.name, ())
        return bool(older) and latest is not None and latest.files[: len(older)] == older

    def adopt_base(self, file: StateFile) -> None:
        """A base came, though perhaps not the newest: versions are made of it from now on."""
        self.adopt(file, Origin.DOWNLOADED)
        older = self._stands_for.pop(file.name)
        for version in self.staged.values():
            if version.named[:1] != (file,) and version.files[: len(older)] == older and version.named != version.files:
                version.files = (file, *version.files[len(older) :])
        for base, stands in list(self._stands_for.items()):
            if stands[: len(older)] == older:
                self._stands_for[base] = (file, *stands[len(older) :])

    def adopt(self, file: StateFile, origin: Origin) -> None:
        """What came from ``origin`` has exactly the bytes of ``file``: it is held from now on."""
        name = base_name(file.name)
        self.disk.adopt(name, origin)
        self._held[name] = file
        if origin is Origin.DOWNLOADED:
            self._figures.bytes_from_storage += file.bytes
        elif origin is Origin.LEFT:
            self._kept.add(name)
            self._figures.bytes_kept += file.bytes

    def take_own(self, files: Sequence[StateFile], generation: int) -> None:
        """Hold files that the active state on this slot has; storage has those that it has removed meanwhile.
        ``generation``: of that state, which needs no standby's RocksDB beside it."""
        self.drop_stores()
        if self._untidy is not None and self._untidy[0] != generation:
            self._untidy = None  # the promoted state is gone, and another has its own files here
        for file in files:
            if not self.holds(file):
                with contextlib.suppress(OSError):
                    self.disk.take_own(base_name(file.name))
                    self._held[base_name(file.name)] = file
        for file in self.missing(files):
            self.fetch(file)

    def fetch(self, file: StateFile) -> None:
        """Hold a file that a dead process has left, or one of durable storage: slow. Raises ``CorruptState`` or
        ``StateError`` when storage does not have it."""
        if not self._keep(file):
            self.disk.download(file)
            self.adopt(file, Origin.DOWNLOADED)
            self._figures.files_from_storage += 1

    def _keep(self, file: StateFile) -> bool:
        """Whether a file that a dead process has left was right, and is held now."""
        if not self.disk.has_left(file):
            return False
        try:
            self.disk.check_left(file, swift=True)
            self.adopt(file, Origin.LEFT)
        except (CorruptState, OSError) as error:
            with contextlib.suppress(OSError):  # storage has it, also if the disk fails
                self.refuse_left(file, error)
        return self.holds(file)

    def refuse_left(self, file: StateFile, error: Exception) -> None:
        """What a dead process has left under the name of ``file`` is another content, or cannot be read."""
        log.info("cannot reuse a state file that an ended process left: %s", error)
        self._figures.left_refused += 1
        self.disk.discard(base_name(file.name), Origin.LEFT)

    def _prune(self, arriving: Sequence[StateFile]) -> None:
        """Remove files that no staged version names, nor the one that is arriving; not those that a dead process has
        left, of which a later version may be made."""
        self._stands_for = {
            base: older
            for base, older in self._stands_for.items()
            if any(version.files[: len(older)] == older for version in self.staged.values())
        }
        needed = {base_name(file.name) for version in self.staged.values() for file in (*version.files, *version.named)}
        needed.update(base_name(file.name) for file in arriving)
        for name in sorted(self._held.keys() - needed - self._kept):
            self.disk.remove(name)
            del self._held[name]

    # -- versions -------------------------------------------------------------------------------------------------

    def stage(self, number: int, generation: int, handle: bytes, files: tuple[StateFile, ...]) -> None:
        """A version is held whole. What older generations made of this number and later ones is void by that."""
        made_of = self.make_do(files)
        void = [v.number for v in self.staged.values() if v.number >= number and v.generation < generation]
        for other in void:
            del self.staged[other]
        self.staged[number] = StagedVersion(number, generation, handle, files, made_of)
        if made_of != files:
            self._stands_for[files[0].name] = made_of[: len(made_of) - len(files) + 1]

    @property
    def latest(self) -> StagedVersion | None:
        """The newest staged version."""
        return self.staged[max(self.staged)] if self.staged else None

    def newest(self, up_to: int) -> StagedVersion | None:
        """The newest staged version that is not newer than ``up_to``."""
        numbers = [number for number in self.staged if number <= up_to]
        return self.staged[max(numbers)] if numbers else None

    def forget(self, numbers: Sequence[int], arriving: Sequence[StateFile] = ()) -> None:
        """These versions are not needed any more, nor the files that only they name. ``arriving``: files to keep."""
        for number in numbers:
            del self.staged[number]
        for copy in list(self._copies):
            if not any(copy.begins(version.files) for version in self.staged.values()):
                self._leave(copy)
        self._prune(arriving)

    # -- the store ------------------------------------------------------------------------------------------------

    def look_ahead(self, files: tuple[StateFile, ...]) -> None:
        """Have a RocksDB on top of which these held files can be reached quickly."""
        if files and self._nearest(files) is None:
            for copy in self._copies[1:]:
                self._leave(copy)
            self._copies.append(self._make(files))

    def apply(self, files: tuple[StateFile, ...]) -> None:
        """Bring a RocksDB to exactly these held files. One that fails is made again the next time."""
        if files:
            copy = self._bring(files)
            self._copies.remove(copy)
            self._copies.insert(0, copy)

    def _nearest(self, files: tuple[StateFile, ...]) -> _Copy | None:
        return max(
            (copy for copy in self._copies if copy.begins(files)), key=lambda copy: len(copy.files), default=None
        )

    def _bring(self, files: tuple[StateFile, ...], swift: bool = False) -> _Copy:
        copy = self._nearest(files)
        if copy is None:
            copy = self._make(files, swift)
            self._copies.append(copy)
        elif copy.files != files:
            try:
                self.disk.ingest(copy.store, files[len(copy.files) :], swift)
            except BaseException:
                self._leave(copy)
                raise
            copy.files = files
        return copy

    def _make(self, files: tuple[StateFile, ...], swift: bool = False) -> _Copy:
        store = self.disk.new_store()
        try:
            self.disk.ingest(store, files, swift)
            store.check_format()
        except BaseException:
            store.destroy()
            raise
        return _Copy(files, store)

    def _leave(self, copy: _Copy) -> None:
        self._copies.remove(copy)
        self._left.append(copy.store)

    def clear_away(self) -> None:
        """Remove what is left of stores that are not used any more."""
        left, self._left = self._left, []
        for store in left:
            store.destroy()

    def drop_stores(self) -> None:
        for copy in list(self._copies):
            self._leave(copy)
        self.clear_away()

    def promote(self, files: tuple[StateFile, ...], generation: int) -> Prepared:
        """A RocksDB, brought to ``files`` and given away. Files that are not held come from storage first."""
        for file in self.serving(files, None):
            if not (self.holds(file) or self._keep(file)):
                break  # the base, then
        for file in self.missing(files):
            self.fetch(file)
        copy = self._bring(self.make_do(files), swift=True) if files else None
        if copy is not None:
            self._copies.remove(copy)
        for other in list(self._copies):
            self._leave(other)
        self._untidy = (generation, files)
        return Prepared(files, None if copy is None else copy.store)

    def tidy(self) -> None:
        """Remove what is not needed; not urgent. After a promotion, give the active state names for its files: to find
        them by itself would delay its restore."""
        self.clear_away()
        latest = self.latest
        if latest is not None and latest.number >= self.disk.newest_left and self.wanted_base is None:
            self.disk.discard_all_left()  # versions to come are made of this one, and of new files
            self._kept.clear()
        if self._untidy is None:
            return
        generation, files = self._untidy
        self._untidy = None
        wanted = () if self.latest is None else self.latest.named
        self.disk.give_own({base_name(file.name): file in wanted and self.holds(file) for file in files}, generation)

    def close(self, keeps: bool = False) -> None:
        """Stop and remove everything. ``keeps``: the files stay, for the slot's next process."""
        self.drop_stores()
        if not keeps:
            self.disk.close()


def encode_handle(handle: SnapshotHandle) -> bytes:
    """A handle as bytes, the same for the same content."""
    return _to_json(handle.to_json()).encode()
