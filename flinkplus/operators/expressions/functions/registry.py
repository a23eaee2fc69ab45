"""The table of functions: ``lookup(name)`` gives what makes an expression of its arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean
from flinkplus.operators.expressions.bound import Bound, attempted
from flinkplus.operators.expressions.types import shown

Maker = Callable[..., Bound]
M = TypeVar("M", bound=Maker)
FUNCTIONS: dict[str, Maker] = {}


def function(*names: str) -> Callable[[M], M]:
    """Decorator: ``make(*arguments)`` makes the expression ``name(arguments)``, for each of ``names``."""

    def register(make: M) -> M:
        for name in names:
            assert name not in FUNCTIONS, name
            FUNCTIONS[name] = make
        return make

    return register


def attempting(make: Maker) -> Maker:
    """``make`` for a function that gives null where the other one is an error."""

    @functools.wraps(make)
    def made(*arguments: Bound) -> Bound:
        return attempted(make(*arguments))

    return made


def called(name: str, arguments: tuple[Bound, ...]) -> Bound:
    """The function ``name`` of some arguments. Raises ``ConfigurationError``."""
    make = FUNCTIONS.get(name.lower())
    if make is None:
        if not name[:1].isalpha():
            raise ConfigurationError(f"there is no operator {name!r}")
        known = sorted(known for known in FUNCTIONS if known[0].isalpha())
        raise ConfigurationError(f"there is no function {name!r}{did_you_mean(name, known)}")
    try:
        inspect.signature(make).bind(*arguments)
    except TypeError as error:
        raise ConfigurationError(f"{len(arguments)} arguments: {error}") from error
    return make(*arguments)


def check(argument: Bound, fits: Callable[[object], bool], wanted: str) -> None:
    """Raises ``ConfigurationError`` unless the type of an argument ``fits``."""
    if not fits(argument.dtype):
        raise ConfigurationError(f"needs {wanted}, not {shown(argument.dtype)}")
