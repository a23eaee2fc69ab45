"""How an option is declared: default, rule and docstring in one place. A rule says which values it takes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

MAX_SECONDS = 1e9


@dataclass(frozen=True)
class Rule:
    """``allows``: whether a value can work. ``must_be``: what an error says. ``range``: what docs/options.md says.
    ``choices`` and ``metavar``: for the command line."""

    allows: Callable[[Any], bool]
    must_be: str
    range: str = ""
    choices: tuple[str, ...] = ()
    metavar: str | None = None


def option(default: Any, rule: Rule) -> Any:
    """A field of ``Options``. Its docstring is Markdown; the first sentence is the help of the command line."""
    return dataclasses.field(default=default, metadata={"rule": rule})


@cache
def texts(group: type) -> dict[str, str]:
    """The docstrings of the fields of a class, by name."""
    (found,) = ast.parse(inspect.getsource(group)).body
    assert isinstance(found, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(found.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def help_of(text: str) -> str:
    """The first sentence of an option's docstring, without Markdown."""
    return text.partition(". ")[0].removesuffix(".").replace("`", "").replace("%", "%%")


def whole(low: int, high: int) -> Rule:
    must_be = f"a whole number from {low} to {high}"
    return Rule(lambda value: _is_int(value) and low <= value <= high, must_be, f"{low} to {high:,}", metavar="N")


def at_least(low: int) -> Rule:
    must_be = f"a whole number of at least {low}"
    return Rule(lambda value: _is_int(value) and value >= low, must_be, f"{low} or more", metavar="N")


def seconds(low: float) -> Rule:
    must_be = f"a number of seconds of at least {low}"
    shown = f"seconds, {low:g} or more"
    return Rule(lambda value: _is_number(value) and low <= value < MAX_SECONDS, must_be, shown, metavar="S")


def share() -> Rule:
    return Rule(lambda value: _is_number(value) and 0 < value < 1, "a number above 0 and below 1", "above 0, below 1")


def one_of(words: Sequence[str]) -> Rule:
    shown = ", ".join(f"`{word}`" for word in words)
    return Rule(lambda value: value in words, f"one of {', '.join(words)}", shown, tuple(words))


def string(what: str, metavar: str | None = None) -> Rule:
    """A text that is not blank; ``what``: how an error describes it."""
    return Rule(lambda value: isinstance(value, str) and bool(value.strip()), what, metavar=metavar)


def truth() -> Rule:
    return Rule(lambda value: isinstance(value, bool), "True or False", "true, false")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
