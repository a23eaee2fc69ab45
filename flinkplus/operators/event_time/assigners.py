"""Window assigners: which windows a time is in.

Windows of a fixed length are cut in *slices*: stretches of time that each window has whole or not at all. What is kept
is kept for each slice once, however many windows overlap there. Slices are numbered; slice 0 begins at 1970-01-01,
plus the offset. A window is named by its first slice.

Sessions have no fixed bounds. Their slices say only when a session is looked at (``sessions``).

Times are milliseconds since 1970.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import MAX_TIME_MS

Times = npt.NDArray[np.int64]

DAY_MS = 86_400_000
MAX_SLICES = 10_000
"""Maximum number of slices of one window."""
SLICES_OF_A_GAP = 8
_LAST_MS = 4 * MAX_TIME_MS
"""After the end of every window."""
_EPOCH = datetime.datetime(1970, 1, 1)
_FIRST_DAY = (datetime.datetime.min - _EPOCH).days + 2
_LAST_DAY = (datetime.datetime.max - _EPOCH).days - 2
_KNOWN_DAYS = 4096


class Assigner(ABC):
    """How times are put into slices."""

    @property
    @abstractmethod
    def behind_ms(self) -> int:
        """Maximum distance of a window's times behind the watermark that completes it."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, object]:
        """What must be equal for kept slices to keep their meaning; JSON."""

    @abstractmethod
    def check(self, operator: str) -> None:
        """Raises ``ConfigurationError`` for windows that cannot be."""

    @abstractmethod
    def starts(self, times: Times) -> Times:
        """The start of the slice of each time."""


@dataclass(frozen=True)
class FixedWindows(Assigner):
    """Windows of ``size_ms``, one of which begins every ``hop_ms``; those of equal values do not overlap.

    ``offset_ms``: by how much later than multiples of ``hop_ms`` since 1970 (UTC) windows begin.
    """

    size_ms: int
    hop_ms: int
    offset_ms: int = 0

    @override
    def __str__(self) -> str:
        hop = "" if self.hop_ms == self.size_ms else f" every {self.hop_ms} ms"
        return f"{self.size_ms} ms{hop}" + (f" with the offset {self.offset_ms} ms" if self.offset_ms else "")

    @property
    def slice_ms(self) -> int:
        return gcd(self.size_ms, self.hop_ms)

    @property
    def slices(self) -> int:
        """Slices of a window."""
        return self.size_ms // self.slice_ms

    @property
    def hops(self) -> int:
        """Slices from the start of a window to that of the next one."""
        return self.hop_ms // self.slice_ms

    @property
    @override
    def behind_ms(self) -> int:
        return self.size_ms

    @property
    @override
    def settings(self) -> dict[str, object]:
        settings: dict[str, object] = {"size_ms": self.size_ms}
        if self.hop_ms != self.size_ms:
            settings["hop_ms"] = self.hop_ms
        if self.offset_ms % self.hop_ms:
            settings["offset_ms"] = self.offset_ms % self.hop_ms
        return settings

    @override
    def check(self, operator: str) -> None:
        if self.hop_ms > self.size_ms:
            raise ConfigurationError(
                f"operator {operator!r}: hop ({self.hop_ms} ms) is above the size of a window ({self.size_ms} ms)"
            )
        if self.slices > MAX_SLICES:
            raise ConfigurationError(
                f"operator {operator!r}: size ({self.size_ms} ms) and hop ({self.hop_ms} ms) cut a window into "
                f"{self.slices} parts; at most {MAX_SLICES} can be: choose a hop that divides the size"
            )

    @override
    def starts(self, times: Times) -> Times:
        return times - (times - self.offset_ms) % self.slice_ms

    def number(self, time_ms: int) -> int:
        """The number of the slice that a time is in."""
        return (time_ms - self.offset_ms) // self.slice_ms

    def boundary(self, number: int) -> int:
        """The start of a slice."""
        return number * self.slice_ms + self.offset_ms

    def last_ends(self, starts: Times) -> Times:
        """For the start of each slice, the end of the last window that has it."""
        if self.slices == 1:
            return starts + self.size_ms
        return self._last_ends(starts)

    def _last_ends(self, starts: Times) -> Times:
        return self.boundaries((self.numbers(starts) // self.hops) * self.hops + self.slices)

    def numbers(self, starts: Times) -> Times:
        """``number`` of each."""
        return (starts - self.offset_ms) // self.slice_ms

    def boundaries(self, numbers: Times) -> Times:
        """``boundary`` of each."""
        return numbers * self.slice_ms + self.offset_ms

    def windows_of(self, number: int) -> range:
        """The windows that have a slice, ascending."""
        return range(-((self.slices - 1 - number) // self.hops) * self.hops, number + 1, self.hops)

    def end(self, window: int) -> int:
        """The end of a window."""
        return self.boundary(window + self.slices)

    def last_ended(self, watermark_ms: int) -> int:
        """The last window that ends at a time or before it. All windows up to it do, and none after it."""
        return (self.number(min(watermark_ms, _LAST_MS)) - self.slices) // self.hops * self.hops


@dataclass(frozen=True)
class CalendarWindows(FixedWindows):
    """Windows of whole days of the local time of ``zone``: a day has 23, 24 or 25 hours where clocks change.

    ``offset_ms``: the local time of day at which days begin, and, with whole days, on which of them windows begin.
    """

    zone: str = "UTC"

    @override
    def __str__(self) -> str:
        return f"{super().__str__()} in {self.zone}"

    @property
    @override
    def behind_ms(self) -> int:
        return self.size_ms + DAY_MS  # a change of the clock is at most a day

    @property
    @override
    def settings(self) -> dict[str, object]:
        return {**super().settings, "time_zone": self.zone}

    @override
    def check(self, operator: str) -> None:
        super().check(operator)
        if self.size_ms % DAY_MS or self.hop_ms % DAY_MS:
            raise ConfigurationError(
                f"operator {operator!r}: windows with a time zone are whole days; for shorter ones use offset, such as "
                "'30 minutes' for hours that begin at half past"
            )
        try:
            ZoneInfo(self.zone)
        except (ValueError, OSError, LookupError, TypeError) as error:
            raise ConfigurationError(
                f"operator {operator!r}: {self.zone!r} is not a time zone; names are like 'Europe/Berlin'"
            ) from error

    @override
    def last_ends(self, starts: Times) -> Times:
        return self._last_ends(starts)

    @override
    def boundary(self, number: int) -> int:
        return _local(self.zone, number * self.slice_ms + self.offset_ms)

    @override
    def boundaries(self, numbers: Times) -> Times:
        different, at = np.unique(numbers, return_inverse=True)
        return np.array([self.boundary(number) for number in different.tolist()], np.int64)[at]

    @override
    def starts(self, times: Times) -> Times:
        return self.boundaries(self.numbers(times))

    @override
    def number(self, time_ms: int) -> int:
        return int(self.numbers(np.array([time_ms], np.int64))[0])

    @override
    def numbers(self, starts: Times) -> Times:
        """Local time is within a day of UTC: so the slice is that of UTC, the one before or the one after."""
        near = (starts - self.offset_ms) // self.slice_ms
        return near - 1 + (starts >= self.boundaries(near)) + (starts >= self.boundaries(near + 1))


@lru_cache(maxsize=_KNOWN_DAYS)
def _local(zone: str, local_ms: int) -> int:
    """The first instant at which clocks in ``zone`` show a local time (ms since 1970-01-01 there) or a later one.

    Before the year 1 and after 9999 the distance from UTC is that of the nearest year.
    """
    days, rest_ms = divmod(local_ms, DAY_MS)
    day = min(max(days, _FIRST_DAY), _LAST_DAY)
    clock = _EPOCH + datetime.timedelta(days=day, milliseconds=rest_ms)
    info = ZoneInfo(zone)
    before, after = (clock.replace(tzinfo=info, fold=fold).utcoffset() for fold in (0, 1))
    assert before is not None and after is not None
    # Where clocks go forward, a time that they skip has the old offset by fold 0: that is the instant at which they
    # show as much more. The first instant with a later time is the change itself, which lies between the two.
    if before >= after:
        return local_ms - before // datetime.timedelta(milliseconds=1)
    return _change(info, local_ms, before, after)


def _change(info: ZoneInfo, local_ms: int, before: datetime.timedelta, after: datetime.timedelta) -> int:
    """The instant at which clocks skip ``local_ms``, by bisection; they go from ``before`` to ``after``."""
    millisecond = datetime.timedelta(milliseconds=1)
    low, high = local_ms - after // millisecond, local_ms - before // millisecond
    utc = _EPOCH.replace(tzinfo=datetime.timezone.utc)
    while low < high:
        middle = (low + high) // 2
        moment = (utc + middle * millisecond).astimezone(info)
        if moment.utcoffset() == before:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Sessions(Assigner):
    """Rows of a key, each at most ``gap_ms`` after the one before."""

    gap_ms: int

    @override
    def __str__(self) -> str:
        return f"rows at most {self.gap_ms} ms apart"

    @property
    def slice_ms(self) -> int:
        """Sessions whose last rows are in one slice are looked at together: when none of them can go on."""
        return -(-self.gap_ms // SLICES_OF_A_GAP)

    @property
    def reach_ms(self) -> int:
        """How long after the start of a slice no row can continue a session of it."""
        return self.slice_ms + self.gap_ms

    @property
    @override
    def behind_ms(self) -> int:
        return self.reach_ms

    @property
    @override
    def settings(self) -> dict[str, object]:
        return {"gap_ms": self.gap_ms}

    @override
    def check(self, operator: str) -> None:
        return None

    @override
    def starts(self, times: Times) -> Times:
        return times - times % self.slice_ms
