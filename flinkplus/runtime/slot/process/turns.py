"""Which subtask of a slot runs next: each one in turn, consumers before producers, one step at a time.

Rules: one thread, the slot's loop. A replaying subtask yields some turns to the others; a barrier that overtakes waits
for no turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flinkplus.runtime.slot.subtasks.subtask import Subtask

FLUSH_AFTER_S = 0.001
"""Messages of short steps are written together, in one write for each destination slot."""
MOST_PASSED_OVER = 4
"""Maximum number of turns in a row that a replaying subtask yields to others."""


@dataclass(eq=False, repr=False)
class Turns:
    """The turns of one slot's subtasks.

    ``active``: in the order in which they take turns.
    ``before_step``: called before each step (fault injection).
    ``run``: runs a step; an exception is the subtask's failure.
    ``flush``: writes out what a step has sent.
    ``unaligned``: whether barriers may overtake.
    """

    _active: Iterable[Subtask]
    _before_step: Callable[[Subtask], None]
    _run: Callable[[Subtask], None]
    _flush: Callable[[], None]
    _unaligned: bool
    _passed_over: int = field(default=0, init=False)

    def take(self, now: float) -> bool:
        """Let every runnable subtask do one step; returns whether any did. ``now``: seconds of the monotonic clock."""
        progress = False
        flushed = time.monotonic()
        for subtask in self._active:
            steps = subtask.steps
            replays = steps.replay.active
            if progress and replays and self._passed_over < MOST_PASSED_OVER:
                self._passed_over += 1  # most of what it does was received before: what is new goes first
                continue
            if steps.runnable(now):
                progress = True
                if replays:
                    self._passed_over = 0
                self._before_step(subtask)
                self._run(subtask)
                if self._unaligned:
                    self._let_overtake()
                if time.monotonic() - flushed > FLUSH_AFTER_S:
                    self._flush()
                    flushed = time.monotonic()
        if progress:
            self._flush()
        return progress

    def _let_overtake(self) -> None:
        for subtask in self._active:
            if subtask.steps.overdue and subtask.steps.runnable(time.monotonic()):
                self._run(subtask)
                self._flush()

    def next_deadline(self, now: float, latest: float) -> float:
        """When the next subtask that waits for its pace or its tick may do a step, ``latest`` at the latest."""
        deadlines = [subtask.steps.deadline(now) for subtask in self._active]
        return min([latest, *(deadline for deadline in deadlines if deadline > now)])
