"""How many examples a property's test tries: few in ``make test``, all of them and more in ``make long-check``."""

from __future__ import annotations

import os

SHARE = float(os.environ.get("TEST_EXAMPLES", "0.3"))
"""Of what a test asks for; ``make long-check`` sets another one."""
FEWEST = 15


def examples(wanted: int) -> int:
    """For Hypothesis' ``max_examples``."""
    return max(FEWEST, round(SHARE * wanted))
