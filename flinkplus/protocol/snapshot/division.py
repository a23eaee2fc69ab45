"""Keyed state divided among another number of subtasks, as a list of files: no file is read or written.

Each new subtask names every file that has groups of its own, with a clip where not all of it counts. What two
subtasks name is one file in storage.

Rules:
- the files of one subtask before stay in their order; a file that several of them shared comes once;
- files of older generations come first. Generations rise at each division, so a file that several subtasks share is
  older than whatever one of them has written since, and than the base that stands for the file in one of them;
- a version has clips in all its files, or in none: those that are written later are behind them, without one.

Invariant: a group for which a file does not count is either not owned, or counts in later files only. So a store that
takes the files in may remove what a group holds before the first file that counts for it (``state.store``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from flinkplus.errors import CorruptState
from flinkplus.protocol.snapshot.clips import Clip
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import KeyedPart


@dataclass(frozen=True, slots=True)
class Estate:
    """The keyed state of one subtask before: its ``files``, its states of keys, and the ``groups`` that it owned."""

    files: tuple[StateFile, ...]
    states: Mapping[str, KeyedPart]
    groups: range

    def overlaps(self, mine: range) -> bool:
        """Whether it owned any of ``mine``."""
        return max(mine.start, self.groups.start) < min(mine.stop, self.groups.stop)

    def within(self, mine: range) -> bool:
        """Whether all that it owned is among ``mine``."""
        return mine.start <= self.groups.start and self.groups.stop <= mine.stop


def divided_files(
    estates: Sequence[Estate], mine: range, states: Collection[str], has_pages: bool, name: Callable[[int], str]
) -> tuple[StateFile, ...]:
    """The files of a new subtask that owns groups ``mine``, in the order in which they are taken in.

    ``states``: names of all states of keys. ``has_pages``: files may hold pages. ``name``: of the n-th file, for this
    subtask. Raises ``CorruptState`` for a file whose name has no generation.
    """
    near = [estate for estate in estates if estate.overlaps(mine)]
    whole = not has_pages and all(
        estate.within(mine) and all(file.clip is None for file in estate.files) for estate in near
    )
    found: dict[str, StateFile] = {}
    for estate in near:
        for file in estate.files:
            clip = None if whole else _clipped(file, estate, mine, states)
            if clip is not None and clip.empty:
                continue
            known = found.get(file.stored)
            if known is not None and known.clip is not None and clip is not None:
                clip = known.clip.joined(clip)
            found[file.stored] = replace(file, clip=clip)
    ordered = sorted(found.values(), key=lambda file: generation_of(file.stored))
    return tuple(
        replace(file, name=name(at), stored_as=file.stored, kind="delta" if at else "base", replaces=())
        for at, file in enumerate(ordered)
    )


def _clipped(file: StateFile, estate: Estate, mine: range, states: Collection[str]) -> Clip:
    clip = file.clip or Clip.of(estate.groups, states)
    return clip.within(estate.groups, states).within(mine, states)


def generation_of(name: str) -> int:
    """The generation in which a state file was written, from its name. Raises ``CorruptState``."""
    number = name.rpartition("/")[2].partition("-")[0]
    if not (number.isascii() and number.isdigit()):
        raise CorruptState(f"the name of state file {name!r:.100} has no generation")
    return int(number)


def divided_states(estates: Sequence[Estate], mine: range, kinds: Mapping[str, KeyedPart]) -> dict[str, KeyedPart]:
    """The states of keys of a new subtask that owns groups ``mine``, with the number of their keys.

    ``kinds``: all of them. The number is estimated by groups, and not ``counted``, where a state was divided. The
    estimates of all new subtasks add up to the number before.
    """
    found = {}
    for name, kind in kinds.items():
        keys, counted = 0, True
        for estate in estates:
            part = estate.states.get(name)
            if part is None or not estate.overlaps(mine):
                continue
            keys += _share(part.keys, estate.groups, mine)
            counted &= part.counted and (estate.within(mine) or not part.keys)
        found[name] = replace(kind, keys=keys, counted=counted)
    return found


def _share(keys: int, groups: range, mine: range) -> int:
    """Of ``keys`` spread over ``groups``, about how many are in ``mine``."""
    first, end = max(groups.start, mine.start), min(groups.stop, mine.stop)
    return keys * (end - groups.start) // len(groups) - keys * (first - groups.start) // len(groups)
