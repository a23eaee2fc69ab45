"""Manifests of a checkpoint directory: ``checkpoints/<checkpoint, 8 digits>-<epoch>.json``, signed.

Rules:
- a checkpoint exists when its manifest exists and no cut voids it. The manifest is written after every file it names;
- a manifest is created, and never replaced: what is written late under its name changes nothing;
- a manifest that is short, altered or of another format is ``CorruptCheckpoint``. One that is not signed with the
  given key is ``UntrustedCheckpoint``: an older one never replaces it silently;
- a manifest has the checksum of each state file, so the signature covers all that a resumed job reads, except for
  staged input.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from flinkplus.documents import parse_document
from flinkplus.errors import CorruptCheckpoint, CorruptState, StateError
from flinkplus.local_files import NoRegularFile
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.state.durable.runs import Runs
from flinkplus.state.durable.signed_files import SignedFiles
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.file_system import Files

MANIFEST_MAGIC = b"flinkplus-manifest"
FOLDER = "checkpoints"
CHECKED_AT_ONCE = 4
"""State files that are read at a time: most of the work is done without the interpreter lock."""
_NAME = re.compile(rf"{FOLDER}/([0-9]{{8,}})(?:-([0-9]+))?\.json\Z")

log = logging.getLogger("flinkplus")


class Manifests:
    """The manifests in the directory ``uri``."""

    def __init__(self, uri: str, files: Files, signed: SignedFiles, runs: Runs, state_files: StateFiles) -> None:
        self._uri = uri
        self._files = files
        self._signed = signed
        self._runs = runs
        self._state_files = state_files
        self._lock = threading.Lock()
        self._named: dict[int, frozenset[str]] = {}  # by checkpoints that this run has written or read

    def write(self, manifest: Manifest) -> None:
        """Make a checkpoint exist. Every state file it names must have been uploaded before."""
        body = json.dumps(manifest.to_json(), sort_keys=True).encode()
        name = _name(manifest.checkpoint, self._runs.epoch)
        try:
            self._create(name, body)
        except OSError as error:
            raise StateError(f"manifest {manifest.checkpoint} cannot be stored in {self._uri!r}: {error}") from error
        self._note(manifest)

    def _create(self, name: str, body: bytes) -> None:
        if not self._signed.create(MANIFEST_MAGIC, name, body, self._runs.check):
            self._runs.check()
            raise FileExistsError(f"{self._files.describe(name)} exists, with another content")

    def read(self, checkpoint: int) -> Manifest:
        """The manifest as it was written.

        Raises ``CorruptCheckpoint`` when it is missing, short, altered or of another format; ``UntrustedCheckpoint``.
        """
        name = self.listed(lambda number, _: number == checkpoint).get(checkpoint, _name(checkpoint, 0))
        where = self._files.describe(name)
        try:
            body = self._content(name)
        except FileNotFoundError as error:
            raise CorruptCheckpoint(f"manifest {where} is missing") from error
        try:
            manifest = Manifest.from_json(parse_document(body))
        except (ValueError, CorruptCheckpoint) as error:
            raise CorruptCheckpoint(f"{where} is not a manifest: {error}") from error
        if manifest.checkpoint != checkpoint:
            raise CorruptCheckpoint(f"manifest {where} names checkpoint {manifest.checkpoint}")
        self._note(manifest)
        return manifest

    def _content(self, name: str) -> bytes:
        try:
            return self._signed.read(MANIFEST_MAGIC, name)
        except NoRegularFile as error:
            raise CorruptCheckpoint(f"manifest {self._files.describe(name)} cannot be read: {error}") from error

    def _note(self, manifest: Manifest) -> None:
        with self._lock:
            self._named[manifest.checkpoint] = frozenset(file.stored for file in manifest.files)

    def checkpoints(self) -> list[int]:
        """The checkpoints that exist, ascending."""
        return sorted(self.listed())

    def listed(
        self, wanted: Callable[[int, int], bool] = lambda _number, _epoch: True, void: bool = False
    ) -> dict[int, str]:
        """Checkpoint -> file name, for the manifests that count (or that are ``void``)."""
        cuts = self._runs.cuts
        found = {}
        for name in self._files.names(FOLDER):
            numbers = numbers_of(name)
            if numbers is not None and wanted(*numbers) and cuts.voids(numbers[1], numbers[0]) == void:
                found[numbers[0]] = name
        return found

    def newest_epoch(self) -> int:
        """The highest epoch in the name of a manifest, void or not; 0: there is no manifest."""
        found = (numbers_of(name) for name in self._files.names(FOLDER))
        return max((numbers[1] for numbers in found if numbers is not None), default=0)

    def latest_valid(self) -> tuple[int, Manifest, list[str]] | None:
        """The newest checkpoint that can be restored, and why newer ones were skipped; ``None`` without any checkpoint.

        Reads and checks every state file, ``CHECKED_AT_ONCE`` at a time. Raises ``CorruptCheckpoint`` when all
        checkpoints are damaged, ``UntrustedCheckpoint`` when the newest undamaged one is not signed as it must be.
        """
        skipped: list[str] = []
        for checkpoint in reversed(self.checkpoints()):
            try:
                manifest = self.read(checkpoint)
                self._verify(manifest.files)
            except (CorruptCheckpoint, CorruptState) as error:
                skipped.append(f"checkpoint {checkpoint}: {error}")
            else:
                return checkpoint, manifest, skipped
        if skipped:
            raise CorruptCheckpoint(f"no checkpoint in {self._uri!r} can be restored: " + "; ".join(skipped))
        return None

    def _verify(self, files: list[StateFile]) -> None:
        """Raise ``CorruptState`` if one of ``files`` is missing or damaged."""
        with ThreadPoolExecutor(CHECKED_AT_ONCE, thread_name_prefix="flinkplus-checks") as pool:
            checks = [pool.submit(self._state_files.verify, file) for file in files]
            try:
                for check in checks:
                    check.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def names_of(self, checkpoint: int) -> frozenset[str]:
        """The state files that a checkpoint names. Raises as ``read``."""
        with self._lock:
            known = self._named.get(checkpoint)
        if known is not None:
            return known
        return frozenset(file.stored for file in self.read(checkpoint).files)

    def all_named(self) -> frozenset[str]:
        """The state files that any checkpoint names.

        Raises ``CorruptCheckpoint``, ``UntrustedCheckpoint``, ``CorruptState`` or ``StateError`` if that is not known.
        """
        with self._lock:
            known = set(self._named)
        listed = self.checkpoints()
        missing = sorted(known.difference(listed))
        if missing:
            raise StateError(
                f"the listing of {self._uri!r} lacks the manifest of checkpoint {missing[0]}, which exists: "
                "no state file is removed; check the file system"
            )
        return frozenset().union(*(self.names_of(checkpoint) for checkpoint in listed))

    def remove(self, checkpoint: int) -> None:
        """Remove the manifest of a checkpoint."""
        with self._lock:
            self._named.pop(checkpoint, None)
        for name in self.listed(lambda number, _: number == checkpoint).values():
            self._files.delete(name)

    def withdraw_after(self, checkpoint: int) -> None:
        """Make all checkpoints after this one void, and remove their manifests.

        Their state files stay: later snapshots may include them. Otherwise ``CheckpointRetention.sweep`` removes them.
        """
        self._runs.cut(checkpoint)
        with self._lock:
            self._named = {number: names for number, names in self._named.items() if number <= checkpoint}
        self._runs.drop_older_cuts()
        self.remove_void()

    def remove_void(self) -> None:
        """Remove manifests that are void, also those that appeared late."""
        for number, name in self.listed(void=True).items():
            log.info("removing void manifest %s of checkpoint %d", name, number)
            self._files.delete(name)

    def sign_again(self) -> None:
        """Sign the trusted manifests with our own key, each under this run's epoch, before the old file goes."""
        for number, name in self.listed().items():
            renewed = _name(number, self._runs.epoch)
            with suppress(CorruptCheckpoint):  # every later read reports it
                self._create(renewed, self._content(name))
                if name != renewed:
                    self._files.delete(name)


def _name(checkpoint: int, epoch: int) -> str:
    return f"{FOLDER}/{checkpoint:08d}-{epoch}.json" if epoch else f"{FOLDER}/{checkpoint:08d}.json"


def numbers_of(name: str) -> tuple[int, int] | None:
    """Checkpoint and epoch in the name of a manifest; ``None`` for any other name."""
    match = _NAME.match(name)
    return None if match is None else (int(match.group(1)), int(match.group(2) or 0))
