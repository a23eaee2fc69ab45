"""What a job guarantees for each input row, and which parts of the protocol it needs for that.

- *Exactly once*: its effect is in the committed output once. A failed subtask resumes from a version and repeats its
  later steps exactly; barriers are aligned.
- *At least once*: once or more. A failed subtask receives the input since its version again, and processes it in any
  order: without determinants or a filter, and no barrier ever blocks a channel.
- *At most once*: once or not at all. Producers keep nothing to send again: what a failed subtask had received since its
  version is lost. A source skips the rows of which any subtask has seen an effect (``progress``).

With the weaker two, messages on a channel get other numbers after a failover. A promoted producer continues after what
its consumer has received; a promoted consumer continues at its producer's present number
(``flinkplus.runtime.coordinator.promotion.promotions``).
"""

from __future__ import annotations

from enum import Enum


class Guarantee(Enum):
    """The guarantees, by the names in the options."""

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
        """Whether a barrier blocks its channel until all have arrived."""
        return self is not Guarantee.AT_LEAST_ONCE
