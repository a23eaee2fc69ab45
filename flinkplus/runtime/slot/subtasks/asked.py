"""The answers of a subtask that asks something outside of the job: the port that its steps use.

Rules: called by the slot's loop thread only. The operator has its own threads, which wake the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flinkplus.operators.base.asking import AskingInstance
from flinkplus.runtime.slot.subtasks.operator_tree import FusedOperators


class OperatorAnswers:
    """``AnswersPort`` with the root of the fused operators. Errors of its threads end the subtask through the loop."""

    def __init__(self, operators: FusedOperators, asking: AskingInstance) -> None:
        self._operators = operators
        self._asking = asking

    @property
    def waiting(self) -> int:
        return self._asking.waiting

    @property
    def full(self) -> bool:
        return self._asking.full

    def ask(self) -> None:
        self._asking.ask()

    def choose(self) -> int | None:
        return self._asking.choose()

    def repeats(self, choices: Sequence[int]) -> None:
        self._asking.repeats(choices)

    def can_take(self, choice: int) -> bool:
        return self._asking.can_take(choice)

    def take(self, choice: int) -> Iterator[None]:
        return self._operators.take_answers(self._asking, choice)
