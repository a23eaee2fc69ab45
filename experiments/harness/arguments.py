"""Settings as options of the command line: an option is a field of a dataclass. And the types of their values."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, TypeVar

S = TypeVar("S")
V = TypeVar("V")


def option(default: Any, type: Callable[[str], Any] | None = None, flag: str | None = None, **more: Any) -> Any:
    """A field that is the option ``flag`` (default: ``--`` and the field's name). ``more``: for ``add_argument``."""
    argument = {"default": default, **({} if type is None else {"type": type}), **more}
    return dataclasses.field(default=default, metadata={"flag": flag, "argument": argument})


def add_options(command: argparse.ArgumentParser, settings: type[Any]) -> None:
    """An option for each field of ``settings`` that was made by ``option``."""
    for field in dataclasses.fields(settings):
        if "argument" in field.metadata:
            flag = field.metadata["flag"] or f"--{field.name.replace('_', '-')}"
            command.add_argument(flag, dest=field.name, **field.metadata["argument"])


def settings_from(arguments: argparse.Namespace, settings: type[S]) -> S:
    """The settings that these arguments say; a field without an option keeps its default."""
    names = [field.name for field in dataclasses.fields(settings)]  # type: ignore[arg-type]
    return settings(**{name: value for name, value in vars(arguments).items() if name in names})


def script(description: str | None, **options: Any) -> argparse.Namespace:
    """The arguments of a program that is run with ``python -m``; ``json``: the file for its figures, or ``None``."""
    program = f"python -m experiments.{Path(sys.argv[0]).stem}"
    parser = argparse.ArgumentParser(prog=program, description=description)
    fields = [(name, Any, field) for name, field in options.items()]
    add_options(parser, dataclasses.make_dataclass("Options", fields))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


def choices(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """A parser of ``a,b`` that takes each of ``allowed`` at most once."""
    return _list_of(str.strip, allowed, ", ".join(allowed))


def whole_numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of ``1,2,4``."""
    return _list_of(int, range(least, 1 << 62), f"whole numbers from {least} up, such as 2,4")


def positive_numbers(text: str) -> tuple[float, ...]:
    """A parser of ``0.25,1,10``."""
    return _list_of(float, _Positive(), "positive numbers, such as 0.25,1,10")(text)


class _Positive:
    def __contains__(self, number: object) -> bool:
        return isinstance(number, float) and 0 < number < 1e9


def _list_of(kind: Callable[[str], V], allowed: Container[V], what: str) -> Callable[[str], tuple[V, ...]]:
    def parse(text: str) -> tuple[V, ...]:
        try:
            values = tuple(kind(part) for part in text.split(","))
        except ValueError:
            values = ()
        if not values or len(set(values)) < len(values) or not all(value in allowed for value in values):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of {what}")
        return values

    return parse
