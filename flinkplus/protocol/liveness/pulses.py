"""Evicts slots without pulses (``runtime.liveness.pulse``): their host hangs, or has lost the network.

A slot is *late* when its last pulse is older than ``timeout_ms``, or when its pulses report that it does not receive
from the driver, or have reported for that long that its process is stopped. The driver itself may be the one that does
not receive. So:

- When at least as many slots are received well as are late, the late ones are evicted. Well: the last pulse is younger
  than half of ``timeout_ms``, and the last long pause is at least ``timeout_ms`` ago. A slot that has just come back
  does not count: when the driver receives again after a cut, others are about to come back, too.
- When more are late, only heartbeats decide, except for late slots with proof that the cause is not the driver. Either
  their own pulses report that they are stopped, or their control streams are silent too and a *witness* exists: a slot
  on another host than the driver and all late slots, whose pulses have all arrived in time for ``WITNESS_TIMEOUTS``
  timeouts. These slots are evicted if each chain has a member that is received well. Otherwise, the job would have to
  wait for slots anyway.
- Time in which no pulse could be received does not count: the driver itself was stopped, or was flooded with other
  datagrams (``missed``). It also resets all witnesses.
- After such a time, if it was long, and after a time in which most were late, slots get a grace period of the same
  length, in which failing to receive from the driver does not count: TCP retransmits the later, the longer it was cut.
- A slot that never sent a pulse is judged only by its heartbeats.

So a driver that is stopped, cut off from all slots, or on an overloaded host evicts no slot. A driver that has lost
most slots, but has a good connection to one on another host, evicts: that cannot be distinguished from hosts that hang.

Rules: pure. Whole milliseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_NAMES = 10_000
MOST_GRACE_TIMEOUTS = 25
"""Maximum grace period, in units of ``timeout_ms``."""
LONG_PAUSE_SHARE = 0.75
"""A long pause, in units of ``timeout_ms``: two pulses in a row may be lost."""
WITNESS_TIMEOUTS = 2
"""Time without a late or lost pulse of a witness, in units of ``timeout_ms``."""


@dataclass(frozen=True, slots=True)
class PulsedSlot:
    """A slot to judge. ``name``: of its pulse. ``heard_ms``: when its control stream last received anything."""

    name: str
    host: str = ""
    heard_ms: int | None = None


@dataclass(slots=True)
class _Pulse:
    """The last pulse of a name.

    ``alive_ms``: when one last reported that the process runs.
    ``back_ms``: end of the last long pause.
    ``steady_ms``: since when no pulse was missing or late.
    """

    number: int
    at_ms: int
    alive_ms: int
    back_ms: int
    steady_ms: int
    deaf: bool
    stopped: bool


class PulseRule:
    """The rule of one driver, which runs on ``driver_host``."""

    def __init__(self, timeout_ms: int, driver_host: str = "") -> None:
        self._timeout_ms = timeout_ms
        self._driver_host = driver_host
        self._last: dict[str, _Pulse] = {}
        self._dark_ms = 0  # since when most slots were late
        self._grace_until_ms: int | None = None

    def heard(self, now_ms: int, name: str, number: int, *, deaf: bool = False, stopped: bool = False) -> bool:
        """A pulse arrived. False, changing nothing, when it is not newer than the last.

        ``deaf``: the slot does not receive from the driver.
        ``stopped``: its process is stopped.
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
        """No pulse could be received for ``for_ms``: the time of all slots starts again."""
        if for_ms > self._timeout_ms:  # a shorter pause stops only the process; a stopped host does not answer TCP
            self._give_grace(now_ms, for_ms)
        for last in self._last.values():
            last.at_ms = last.alive_ms = last.back_ms = last.steady_ms = now_ms

    def forget(self, name: str) -> None:
        self._last.pop(name, None)

    def is_doubtful(self, now_ms: int, name: str) -> bool:
        """Whether this slot may soon be late."""
        last = self._last.get(name)
        return last is not None and (last.deaf or now_ms - last.alive_ms > self._timeout_ms / 2)

    def any_late(self, now_ms: int, names: Iterable[str]) -> bool:
        """Whether any of ``names`` is late."""
        return any(name in self._last and self._is_late(now_ms, name) for name in names)

    def to_evict(
        self, now_ms: int, slots: Sequence[PulsedSlot], chains: Iterable[Sequence[str]] | None = None
    ) -> list[str]:
        """Those of ``slots`` to evict, in their order.

        ``chains``: the names of each chain's members; ``None`` when the job needs all slots.
        """
        known = [slot for slot in slots if slot.name in self._last]
        late = [slot for slot in known if self._is_late(now_ms, slot.name)]
        well = [slot for slot in known if self._is_well(now_ms, slot.name)]
        if len(well) >= len(late):
            return [slot.name for slot in late]
        found = self._proved(now_ms, late, well, chains)
        if not found and 2 * len(late) > len(known):
            if self._grace_until_ms is None or now_ms > self._grace_until_ms + self._timeout_ms:
                self._dark_ms = now_ms - self._timeout_ms
            self._give_grace(now_ms, now_ms - self._dark_ms)
        return found

    def _proved(
        self,
        now_ms: int,
        late: Sequence[PulsedSlot],
        well: Sequence[PulsedSlot],
        chains: Iterable[Sequence[str]] | None,
    ) -> list[str]:
        """Those of ``late``, the majority, with proof that the cause is not the driver."""
        names = {slot.name for slot in well}  # never iterated
        if chains is None or not all(any(name in names for name in chain) for chain in chains):
            return []
        away = {self._driver_host, *(slot.host for slot in late)}  # never iterated
        since_ms = now_ms - WITNESS_TIMEOUTS * self._timeout_ms
        witnessed = any(slot.host not in away and self._last[slot.name].steady_ms <= since_ms for slot in well)
        return [slot.name for slot in late if self._is_proved(now_ms, slot, witnessed)]

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

    def _is_late(self, now_ms: int, name: str) -> bool:
        last = self._last[name]
        counts = self._grace_until_ms is None or now_ms >= self._grace_until_ms
        return (last.deaf and counts) or now_ms - last.alive_ms > self._timeout_ms
