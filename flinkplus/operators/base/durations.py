"""Durations as users write them: ``"10 seconds"``, ``"500 ms"``, ``"2 minutes"``, or a number of seconds."""

from __future__ import annotations

import re
from decimal import Decimal

from flinkplus.errors import ConfigurationError

MAX_TIME_MS = 1 << 52
"""Maximum distance of times from 0, and maximum duration (140,000 years): in microseconds they fit 64 bits as well."""
_UNITS_MS = {"ms": 1, "millisecond": 1, "s": 1000, "second": 1000, "min": 60_000, "minute": 60_000}
_UNITS_MS |= {"h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000}
_DURATION = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-z]+?)(s?)\s*$", re.IGNORECASE)

Duration = str | int | float
"""Text with a unit, or a number of seconds."""


def duration_ms(duration: Duration, what: str, *, least: int | None = 0) -> int:
    """``duration`` in whole milliseconds.

    ``what``: the name of the setting, for errors.
    ``least``: minimum in ms; ``None``: no minimum.

    Raises ``ConfigurationError`` for anything else.
    """
    value: Decimal | None = None
    if isinstance(duration, str):
        match = _DURATION.match(duration)
        unit = None if match is None else _UNITS_MS.get((match[2] + match[3]).lower(), _UNITS_MS.get(match[2].lower()))
        if match is not None and unit is not None:
            value = Decimal(match[1]) * unit
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        value = Decimal(str(duration)) * 1000
    if value is None or not value.is_finite() or not abs(value) < MAX_TIME_MS or value != int(value):
        raise ConfigurationError(
            f"{what} must be whole milliseconds, written like '10 seconds', '500 ms' or '2 minutes' or as a number of "
            f"seconds, not {duration!r}"
        )
    if least is not None and value < least:
        raise ConfigurationError(f"{what} must be at least {least} ms, not {duration!r}")
    return int(value)
