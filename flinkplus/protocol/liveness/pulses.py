"""Whom to give up since no pulse of theirs comes (``runtime.pulse``): a host that hangs, or that the network has lost.

A slot is *late* when its last pulse is older than ``timeout_ms``, when its pulses say that it does not hear the driver,
or when they have said for so long that its process is stopped. Silence has two ends: it may be the driver that hears
nothing. So:

- When at least as many others are heard well, who is late is given up. Well: the last pulse is younger than half of
  ``timeout_ms``, and there was no long pause for as long as ``timeout_ms``. Whoever has just come back does not count:
  when the driver hears again after a cut, others are about to come back as well.
- When most are late, heartbeats have to tell, but for those of whom something else shows that it is not the driver:
  their own pulses say that they are stopped; or there is a *witness*, and nothing comes over their control streams
  either. A witness is a slot on a host of its own, neither the driver's nor that of one who is late, of which every
  pulse has come, and each in time, for twice as long as the late ones are silent at most: the network carries, and this
  process listens. These are given up when the job can do without all who are late: when each chain has a member that
  is heard well. Else nothing is gained: it would have to wait for slots all the same.
- Time in which nobody could be heard counts for nobody: the driver itself was stopped, or a crowd of other datagrams
  came (``missed``). It ends every witness's good record as well.
- After such a time, if it was long, and after one in which most were late, slots have as long again before it counts
  that they do not hear the driver: the longer nothing came through, the longer TCP waits until it sends again.
- A slot of which no pulse ever came is judged by its heartbeats alone.

So a driver that is stopped, cut off from all, or on a machine that is too busy for everybody gives nobody up. One that
has lost most and is well connected to one on another host does: nothing tells that from hosts that hang.

Rules: pure. Whole milliseconds of a clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_NAMES = 10_000
MOST_GRACE_TIMEOUTS = 25
"""Times ``timeout_ms``, at most, after which it counts again that slots do not hear the driver."""
LONG_PAUSE_SHARE = 0.75
"""Of ``timeout_ms``: two pulses in a row may be lost."""
WITNESS_TIMEOUTS = 2
"""For so many times ``timeout_ms`` a witness has missed nothing."""


@dataclass(frozen=True, slots=True)
class PulsedSlot:
    """A slot at a look, by the name of its pulse. ``heard_ms``: when its control stream last brought something."""

    name: str
    host: str = ""
    heard_ms: int | None = None


@dataclass(slots=True)
class _Pulse:
    """The last of a name. ``alive_ms``: when one last said that the process runs. ``back_ms``: since when there was no
    long pause. ``steady_ms``: since when none is missing and none was late.
    """

    number: int
    at_ms: int
    alive_ms: int
    back_ms: int
    steady_ms: int
    deaf: bool
    stopped: bool


class PulseRule:
    """The rule of one driver. ``driver_host``: where it is."""

    def __init__(self, timeout_ms: int, driver_host: str = "") -> None:
        self._timeout_ms = timeout_ms
        self._driver_host = driver_host
        self._last: dict[str, _Pulse] = {}
        self._dark_ms = 0  # since when most were late, the last time
        self._grace_until_ms: int | None = None

    @property
    def names(self) -> int:
        """How many are known."""
        return len(self._last)

    def number(self, name: str) -> int:
        """Of the last pulse; 0 for none."""
        return self._last[name].number if name in self._last else 0

    def heard(self, now_ms: int, name: str, number: int, *, deaf: bool = False, stopped: bool = False) -> bool:
        """A pulse came. False, and nothing changes, when it is not newer than the last. ``deaf``: the slot does not
        hear the driver. ``stopped``: its process stands still.
        """
        last = self._last.get(name)
        if last is None:
            if len(self._last) >= MAX_NAMES:
                del self._last[next(iter(self._last))]
            self._last[name] = _Pulse(number, now_ms, now_ms, now_ms, now_ms, deaf, stopped)
            return True
        if number <= last.number:
            return False
        if number != last.number + 1 or now_ms - last.at_ms > self._timeout_ms / 2:
            last.steady_ms = now_ms
        if now_ms - last.at_ms > self._timeout_ms * LONG_PAUSE_SHARE:
            last.back_ms = now_ms
        if not stopped:
            last.alive_ms = now_ms
        last.number, last.at_ms, last.deaf, last.stopped = number, now_ms, deaf, stopped
        return True

    def missed(self, now_ms: int, for_ms: int = 0) -> None:
        """Nobody could be heard for a while (``for_ms``): everybody's time begins again."""
        if for_ms > self._timeout_ms:  # shorter ones are those of a process; a host that stood still answered nobody
            self._give_grace(now_ms, for_ms)
        for last in self._last.values():
            last.at_ms = last.alive_ms = last.back_ms = last.steady_ms = now_ms

    def forget(self, name: str) -> None:
        """Nobody asks for this one any more."""
        self._last.pop(name, None)

    def is_doubtful(self, now_ms: int, name: str) -> bool:
        """Whether this one may be about to be late."""
        last = self._last.get(name)
        return last is not None and (last.deaf or now_ms - last.alive_ms > self._timeout_ms / 2)

    def any_late(self, now_ms: int, names: Iterable[str]) -> bool:
        """Whether there is something to judge."""
        return any(name in self._last and self._is_late(now_ms, name) for name in names)

    def given_up(
        self, now_ms: int, slots: Sequence[PulsedSlot], chains: Iterable[Sequence[str]] | None = None
    ) -> list[str]:
        """Those of ``slots`` to be given up, in their order. ``chains``: the names of each chain's members; ``None``
        when the job cannot do without any slot.
        """
        known = [slot for slot in slots if slot.name in self._last]
        late = [slot for slot in known if self._is_late(now_ms, slot.name)]
        well = [slot for slot in known if self._is_well(now_ms, slot.name)]
        if len(well) >= len(late):
            return [slot.name for slot in late]
        found = self._proved(now_ms, late, well, chains)
        if not found and 2 * len(late) > len(known):
            self._in_the_dark(now_ms)
        return found

    def _proved(
        self,
        now_ms: int,
        late: Sequence[PulsedSlot],
        well: Sequence[PulsedSlot],
        chains: Iterable[Sequence[str]] | None,
    ) -> list[str]:
        """Those of ``late``, who are most, of whom something shows that it is not the driver."""
        names = {slot.name for slot in well}  # never iterated
        if chains is None or not all(any(name in names for name in chain) for chain in chains):
            return []
        away = {self._driver_host, *(slot.host for slot in late)}  # never iterated
        witnessed = any(slot.host not in away and self._is_witness(now_ms, slot.name) for slot in well)
        return [slot.name for slot in late if self._is_proved(now_ms, slot, witnessed)]

    def _in_the_dark(self, now_ms: int) -> None:
        if self._grace_until_ms is None or now_ms > self._grace_until_ms + self._timeout_ms:
            self._dark_ms = now_ms - self._timeout_ms
        self._give_grace(now_ms, now_ms - self._dark_ms)

    def _give_grace(self, now_ms: int, for_ms: int) -> None:
        grace_ms = min(for_ms + self._timeout_ms, MOST_GRACE_TIMEOUTS * self._timeout_ms)
        self._grace_until_ms = max(self._grace_until_ms or 0, now_ms + grace_ms)

    def _is_proved(self, now_ms: int, slot: PulsedSlot, witnessed: bool) -> bool:
        last = self._last[slot.name]
        if last.stopped and now_ms - last.at_ms <= self._timeout_ms:
            return True
        is_quiet = slot.heard_ms is None or now_ms - slot.heard_ms > self._timeout_ms
        return witnessed and is_quiet and not last.deaf and slot.host != self._driver_host

    def _is_well(self, now_ms: int, name: str) -> bool:
        return not self.is_doubtful(now_ms, name) and now_ms - self._last[name].back_ms >= self._timeout_ms

    def _is_witness(self, now_ms: int, name: str) -> bool:
        return now_ms - self._last[name].steady_ms >= WITNESS_TIMEOUTS * self._timeout_ms

    def _is_late(self, now_ms: int, name: str) -> bool:
        last = self._last[name]
        counts = self._grace_until_ms is None or now_ms >= self._grace_until_ms
        return (last.deaf and counts) or now_ms - last.alive_ms > self._timeout_ms
