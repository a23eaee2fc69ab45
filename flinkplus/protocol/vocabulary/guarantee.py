"""What a job promises about each input row, and what of the protocol it needs for that.

- *Exactly once*: its effect is in the committed output once. A failed subtask goes on from a version and repeats what
  it has done since, step by step; barriers are aligned.
- *At least once*: once or more. A failed subtask gets the input since its version again, and does what it will with
  it: there are no determinants, no filter, and no channel is ever blocked by a barrier.
- *At most once*: once or not at all. Nothing is kept to be sent again: what a failed subtask had received since its
  version is lost. A source passes over the rows that somebody has seen an effect of (``progress``).

With the weaker two, numbers on a channel are not the same again after a failover: a promoted producer goes on behind
what its consumer has received, a promoted consumer where its producer is
(``flinkplus.runtime.coordinator.promotion.promotions``).
"""

from __future__ import annotations

from enum import Enum


class Guarantee(Enum):
    """By the names that users know."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"

    @property
    def repeats(self) -> bool:
        """Whether steps are repeated, so that messages are the same again."""
        return self is Guarantee.EXACTLY_ONCE

    @property
    def replays(self) -> bool:
        """Whether producers keep what they have sent, to send it again."""
        return self is not Guarantee.AT_MOST_ONCE

    @property
    def aligns(self) -> bool:
        """Whether a barrier blocks its channel until all have come."""
        return self is not Guarantee.AT_LEAST_ONCE
