"""Which stored checkpoints count, and which stored files no checkpoint can name any more. Pure: no I/O.

A write may hang beyond every timeout and complete long after the driver abandoned it, even after that driver's end. So
the existence of a manifest alone does not make it valid. Each is written in an *epoch*, a number that only rises: every
run of the job begins one, and every *cut* ends one. After a cut, manifests of earlier epochs count only up to the
checkpoint that it names. It is stored before any file is removed that a later manifest might need. So a late manifest
is always void.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

EPOCHS_PER_RUN = 100_000
MAX_CUTS = 1_000
"""The newest are kept. What older ones void is far behind every checkpoint that is kept."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Checkpoints whose manifests were written before ``epoch`` count only up to ``through``."""

    epoch: int
    through: int

    def voids(self, epoch: int, checkpoint: int) -> bool:
        return epoch < self.epoch and checkpoint > self.through


class Cuts:
    """All cuts of a job's history; immutable."""

    def __init__(self, cuts: Iterable[Cut] = ()) -> None:
        self._cuts: list[Cut] = []  # ascending in both numbers: what another cut covers is left out
        for cut in sorted(cuts, key=lambda cut: (-cut.epoch, cut.through)):
            if not self._cuts or cut.through < self._cuts[0].through:
                self._cuts.insert(0, cut)
        del self._cuts[:-MAX_CUTS]

    def united(self, other: Cuts) -> Cuts:
        """These and those of ``other``."""
        return Cuts([*self._cuts, *other._cuts])

    def voids(self, epoch: int, checkpoint: int) -> bool:
        """Whether the manifest of ``checkpoint`` that was written in ``epoch`` does not count."""
        return any(cut.voids(epoch, checkpoint) for cut in self._cuts)

    def to_json(self) -> list[list[int]]:
        return [[cut.epoch, cut.through] for cut in self._cuts]

    @staticmethod
    def from_json(found: object) -> Cuts:
        """Raises ``ValueError`` or ``TypeError`` for anything that ``to_json`` does not return."""
        if not isinstance(found, list):
            raise TypeError(f"cuts are described by {found!r:.100}")
        return Cuts(Cut(int(epoch), int(through)) for epoch, through in found)


def left_behind(
    stored: dict[str, tuple[int, int]], named: Collection[str], generation: int, complete: int
) -> list[str]:
    """What nothing can name any more when ``generation`` is deployed from checkpoint ``complete``.

    ``stored``: name -> (generation, checkpoint) in it. Only what that generation writes from now on is to be named.
    """
    return [name for name, age in stored.items() if name not in named and age <= (generation, complete)]


@dataclass(slots=True)
class UnusedFiles:
    """Finds the state files that no checkpoint can name any more, while the job runs.

    A file is uploaded before the checkpoint that names it first is complete, and when that is aborted, a later one may
    name it. So a file that no manifest names is unused only when both hold:

    - a checkpoint is complete that was triggered after the file had been seen: that one names it, or none;
    - the number in its name is not after the newest complete checkpoint: a new base has a number ahead of it, and is
      named by checkpoints up to there, or not at all.
    """

    _seen: dict[str, int] = field(default_factory=dict)  # the newest checkpoint that was triggered when it was seen

    def find(self, stored: dict[str, int], named: Collection[str], complete: int, triggered: int) -> list[str]:
        """The unused ones of ``stored`` (name -> number); ``complete``, ``triggered``: the newest such checkpoint."""
        unnamed = [name for name in stored if name not in named]
        self._seen = {name: self._seen.get(name, triggered) for name in unnamed}
        return [name for name in unnamed if self._seen[name] < complete and stored[name] <= complete]
