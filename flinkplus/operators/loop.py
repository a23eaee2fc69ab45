"""The head of a loop: what comes from outside and what comes round, as one stream."""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.operators.union import Union


@dataclass(frozen=True)
class LoopHead(Union):
    """Gives every row it gets, of whichever input. Event time ends here: nobody knows what will come round."""
