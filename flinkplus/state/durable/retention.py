"""Removal of checkpoints, and of state files that no checkpoint can name any more.

Rule: a state file that no manifest names is unused as soon as no snapshot in progress can name it. While a manifest
cannot be read, or one that this run wrote or read is not listed, nothing is removed (``Manifests.all_named`` raises).
"""

from __future__ import annotations

from flinkplus.errors import CorruptCheckpoint, CorruptState, UntrustedCheckpoint
from flinkplus.state.durable.history import UnusedFiles, left_behind
from flinkplus.state.durable.manifests import Manifests
from flinkplus.state.durable.runs import Runs
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.durable.uploads import Uploads

MOST_REMOVED = 256
"""Maximum number of files removed at a time, because manifests wait for it. The next sweep removes the others."""


class CheckpointRetention:
    """Removes what is no longer needed."""

    def __init__(self, manifests: Manifests, state_files: StateFiles, runs: Runs, uploads: Uploads) -> None:
        self._manifests = manifests
        self._state_files = state_files
        self._runs = runs
        self._uploads = uploads
        self._unused = UnusedFiles()

    def drop(self, checkpoint: int) -> list[str]:
        """Remove a checkpoint and the state files that only it names; returns the names of those files.

        Not for the newest complete checkpoint: running snapshots reuse its files.
        """
        try:
            mine = self._manifests.names_of(checkpoint)
        except (CorruptCheckpoint, CorruptState, UntrustedCheckpoint):
            mine = frozenset()  # ``sweep`` finds them
        self._manifests.remove(checkpoint)
        alone = sorted(mine - self._manifests.all_named()) if mine else []
        self._state_files.remove_named(alone)
        return alone

    def sweep(self, complete: int, triggered: int) -> list[str]:
        """Remove unused state files, at most ``MOST_REMOVED``, and void manifests, while the job runs.

        ``complete``, ``triggered``: the newest such checkpoint. Returns the names of the removed files.
        """
        self._manifests.remove_void()
        stored = {name: checkpoint for name, (_, checkpoint) in self._state_files.listed().items()}
        unused = self._unused.find(stored, self._manifests.all_named(), complete, triggered)[:MOST_REMOVED]
        self._remove_unused(unused)
        self._uploads.abort_old()
        return unused

    def sweep_all(self) -> list[str]:
        """Remove every state file that no manifest names, once no subtask runs that could reuse it."""
        self._runs.check()
        self._uploads.abort()
        unused = self.unnamed()
        self._remove_unused(unused)
        return unused

    def _remove_unused(self, unused: list[str]) -> None:
        """Remove what was listed, and no manifest named, before this call.

        Checking the run once is enough, however long the removal takes. A later run never names one of these files: it
        names those of the checkpoint it restores, which were named at the time of the listing, and its own. A manifest
        that the previous run stores late was cut before the listing.
        """
        if unused:
            self._runs.check()
        self._state_files.remove(unused)

    def unnamed(self) -> list[str]:
        """The state files that no manifest names. Raises as ``Manifests.all_named``."""
        stored, named = self._state_files.listed(), self._manifests.all_named()
        return [name for name in stored if name not in named]

    def collect_garbage(self, keep_generation_from: int, complete: int = 0) -> list[str]:
        """Remove state files that no manifest names, at most ``MOST_REMOVED``; returns their names.

        ``keep_generation_from``: the running generation; files of later generations are kept.
        ``complete``: its newest complete checkpoint; files of the running generation for later ones are kept.
        """
        stored, named = self._state_files.listed(), self._manifests.all_named()
        removed = left_behind(stored, named, keep_generation_from, complete)[:MOST_REMOVED]
        self._state_files.remove(removed)
        return removed
