"""Durations as users write them."""

from __future__ import annotations

import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import Duration, duration_ms


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("10 minutes", 600_000),
        ("1h", 3_600_000),
        ("500 ms", 500),
        ("0.25 s", 250),
        (1.5, 1500),
        (2, 2000),
        ("1 Day", 86_400_000),
    ],
)
def test_what_is_understood(written: Duration, ms: int) -> None:
    assert duration_ms(written, "ttl") == ms


@pytest.mark.parametrize("written", ["10", "ten minutes", "0.1 ms", True, float("nan"), float("inf"), "", "5 weeks"])
def test_what_is_not(written: Duration) -> None:
    with pytest.raises(ConfigurationError, match="ttl must be whole milliseconds"):
        duration_ms(written, "ttl")


def test_what_is_too_short() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 ms, not '0 s'"):
        duration_ms("0 s", "ttl", least=1)
