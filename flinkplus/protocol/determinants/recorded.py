"""What is recorded of a subtask beside rows that are visible at once, and what a writer makes of it.

A writer knows which step is recorded. After a lost answer it reads what is there, and this says whether its transaction
was carried out. The far end is any that gives one transaction to rows, progress and recipe.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Recorded(NamedTuple):
    """What is recorded of a subtask. ``generation``: the one that may write. ``step``: the first one whose rows are not
    stored. ``digest``: of all rows so far."""

    generation: int
    step: int
    digest: bytes


Outcome = Literal["stored", "not stored", "fenced", "changed"]


def outcome(recorded: Recorded | None, generation: int, before: int, step: int) -> Outcome:
    """What became of a transaction of ``generation`` from step ``before`` to ``step``.

    ``fenced``: a later generation may write. ``changed``: what is recorded was not written by this generation. That of
    an earlier one is the state of an earlier time: a writer begins only when its generation is recorded.
    """
    if recorded is None or recorded.generation < generation:
        return "changed"
    if recorded.generation > generation:
        return "fenced"
    if recorded.step not in (before, step):
        return "changed"
    return "stored" if recorded.step == step else "not stored"
