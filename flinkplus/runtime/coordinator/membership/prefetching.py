"""State files that slots fetch for a rescale while the job runs, so that the switch need not wait for them.

Slots fetch the files of a complete checkpoint, as they would be divided. The job takes further checkpoints meanwhile,
so there is another round for what these have added, until that is little or ``MAX_ROUNDS`` are over. A subtask may have
written a new base meanwhile, which is as large as its state.

Rules: only the coordinator's thread calls this. Prefetching is a help and not a condition: a slot that ends, that is
silent, or that cannot have a file, delays the rescale at most, and what was not prefetched is fetched at the switch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flinkplus.errors import described
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Dispatch
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess

MAX_ROUNDS = 4
LITTLE_BYTES = 8 << 20
"""A slot fetches so much in the interruption; more is worth another round."""
Places = Mapping[SubtaskId, tuple[int, ...]]
"""The slots that are to run a subtask or to have a standby of it."""
Divided = Mapping[SubtaskId, tuple[StateFile, ...]]
"""The files that each new subtask takes."""
FilesOf = Callable[[CheckpointId, int], Divided]
log = logging.getLogger("flinkplus.coordinator")


@dataclass(slots=True)
class _Fetching:
    """What one process has been ordered to fetch. ``names``: of these files, in storage."""

    incarnation: int
    left_bytes: int
    names: frozenset[str]


@dataclass(eq=False, repr=False)
class Prefetching:
    """The files of one rescale at a time.

    ``files``: see ``Divider.files``; called by the storage worker.
    ``silence_s``: a round is stuck when no slot has reported for so long.
    ``changed``: called when a round may have ended.
    ``little_bytes``: so much is left to the switch.
    """

    _dispatch: Dispatch
    _files: FilesOf
    _silence_s: float
    _changed: Callable[[], None]
    _little_bytes: int = LITTLE_BYTES
    rounds: int = field(default=0, init=False)
    fetched: CheckpointId | None = field(default=None, init=False)
    _asked: bool = field(default=False, init=False)
    _number: int = field(default=0, init=False)
    _until_s: float = field(default=0.0, init=False)
    _fetching: dict[int, _Fetching] = field(default_factory=dict, init=False)
    _slots: set[int] = field(default_factory=set, init=False)

    def begin(self, checkpoint: CheckpointId, parallelism: int, places: Places) -> None:
        """A further round: slots fetch the files of ``checkpoint``, as far as they do not have them."""
        self.rounds += 1
        self.fetched, self._asked = checkpoint, True
        self._fetching = {}
        self._number = number = self._number + 1
        found: dict[int, dict[str, StateFile]] = {}

        self._heard()

        def find() -> None:
            found.update(_by_slot(self.divided(checkpoint, parallelism), places))

        def order(reason: str = "") -> None:
            if number == self._number:
                self._asked = False
                for slot, files in sorted(found.items()):
                    self._order(slot, tuple(files.values()))
                self._heard()
                self._changed()

        self._dispatch.work(self._dispatch.storage, find, order, order)

    def divided(self, checkpoint: CheckpointId, parallelism: int) -> Divided:
        """The files of ``checkpoint``; none if the division fails. Called by the storage worker."""
        try:
            return self._files(checkpoint, parallelism)
        except Exception as error:  # of an operator, too; the check before the switch reports what counts
            log.info("nothing is prefetched of checkpoint %d: %s", checkpoint, described(error))
            return {}

    def _heard(self) -> None:
        self._until_s = self._dispatch.clock.monotonic() + self._silence_s

    def _order(self, slot: int, files: tuple[StateFile, ...]) -> None:
        process = self._dispatch.processes.get(slot)
        if process is None or not files:
            return
        self._slots.add(slot)
        names = frozenset(file.stored for file in files)
        self._fetching[slot] = _Fetching(process.incarnation, sum(file.bytes for file in files), names)
        self._dispatch.send(slot, control.Prefetch(self._number, files))

    def take(self, process: SlotProcess, message: control.Prefetched) -> None:
        """A slot reports."""
        fetching = self._fetching.get(process.slot)
        if message.request != self._number or fetching is None or fetching.incarnation != process.incarnation:
            return
        if message.reason and not message.left_bytes:
            log.warning("slot %d could not prefetch all state: %s", process.slot, message.reason)
        self._heard()
        fetching.left_bytes = message.left_bytes
        if not message.left_bytes:
            self._changed()

    def is_worth_a_round(self, divided: Divided, places: Places) -> bool:
        """Whether a slot lacks much of ``divided``, and there may be another round: not after one that was not waited
        for to its end."""
        if self.rounds >= MAX_ROUNDS or self.is_under_way:
            return False
        return any(
            sum(file.bytes for name, file in files.items() if name not in self._names(slot)) > self._little_bytes
            for slot, files in _by_slot(divided, places).items()
        )

    def _names(self, slot: int) -> frozenset[str]:
        """The files that the process of ``slot`` was ordered to fetch in the last round."""
        fetching, process = self._fetching.get(slot), self._dispatch.processes.get(slot)
        if fetching is None or process is None or process.incarnation != fetching.incarnation:
            return frozenset()
        return fetching.names

    @property
    def left(self) -> dict[int, int]:
        """Bytes left to fetch, by slot."""
        found = {}
        for slot, fetching in self._fetching.items():
            process = self._dispatch.processes.get(slot)
            if process is not None and process.incarnation == fetching.incarnation and fetching.left_bytes:
                found[slot] = fetching.left_bytes
        return found

    @property
    def is_under_way(self) -> bool:
        """Whether slots still fetch files, or it is not known yet which."""
        return self._asked or bool(self.left)

    @property
    def is_stuck(self) -> bool:
        """Whether a round is under way, and nothing has been reported for too long."""
        return self.is_under_way and self._dispatch.clock.monotonic() >= self._until_s

    @property
    def deadline_s(self) -> float | None:
        """When the round is stuck unless something is reported (monotonic clock); ``None``: none is under way."""
        return self._until_s if self.is_under_way else None

    def end(self, used: bool) -> None:
        """The rescale has ended. ``used``: the slots use the files just now, and will drop them by themselves."""
        slots, self._slots = self._slots, set()
        self._number += 1
        self._fetching, self._asked, self.rounds, self.fetched = {}, False, 0, None
        if not used:
            for slot in sorted(slots):
                if self._dispatch.processes.get(slot) is not None:
                    self._dispatch.send(slot, control.Prefetch(self._number))


def _by_slot(divided: Divided, places: Places) -> dict[int, dict[str, StateFile]]:
    """The files that each slot needs, by name in storage."""
    found: dict[int, dict[str, StateFile]] = {}
    for subtask, files in divided.items():
        for slot in places.get(subtask, ()):
            found.setdefault(slot, {}).update({file.stored: file for file in files})
    return found
