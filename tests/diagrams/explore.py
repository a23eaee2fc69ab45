"""All histories of a machine in a small world, and the transitions between its named states that occur in them.

Rules: of histories that end in equal machines one is continued. Nothing depends on the order of sets: equal code gives
equal text. A world that is not small is refused, and not cut off.
"""

from __future__ import annotations

import pickle
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

MOST_MACHINES = 40_000
"""Different machines that one small world may lead to."""

NO_MATTER = ("_config", "reason", "error")
"""Attributes that are always the same, or are only passed on."""


class Move(NamedTuple):
    """Something that may happen: its name in the diagram, and what the machine is told."""

    name: str
    event: Any


class Transition(NamedTuple):
    """``ordered``: the effects, by name."""

    before: str
    happened: str
    ordered: tuple[str, ...]
    after: str


class Subject(ABC):
    """One machine and what it lives in."""

    @property
    @abstractmethod
    def state(self) -> str:
        """The name of the state that it is in."""

    @abstractmethod
    def moves(self) -> Iterable[Move]:
        """What may happen next."""

    @abstractmethod
    def do(self, event: Any) -> list[str]:
        """Let it happen; returns the names of the effects that concern the diagram."""

    def copy(self) -> Subject:
        """Another one in the same state."""
        copied: Subject = pickle.loads(pickle.dumps(self))
        return copied

    @abstractmethod
    def key(self) -> Hashable:
        """Equal for two that will never differ."""


class WorldTooLargeError(Exception):
    """There is no end to the histories, or too many of them."""


def explore(make: Callable[[], Subject]) -> list[Transition]:
    """All transitions, in the order of their shortest histories. Raises ``WorldTooLargeError``."""
    first = make()
    found: dict[Transition, None] = {}
    seen = {first.key()}
    open_ends = deque([first])
    while open_ends:
        subject = open_ends.popleft()
        before = subject.state
        for move in list(subject.moves()):
            one = subject.copy()
            ordered = tuple(one.do(move.event))
            if one.state != before or ordered:
                found[Transition(before, move.name, ordered, one.state)] = None
            key = one.key()
            if key not in seen:
                seen.add(key)
                if len(seen) > MOST_MACHINES:
                    raise WorldTooLargeError(f"more than {MOST_MACHINES} different machines, at {move} in {before}")
                open_ends.append(one)
    return list(found)


def names_of(effects: Iterable[object]) -> list[str]:
    """``TakeSnapshot`` is ``take snapshot``; each name once."""
    names = [" ".join(part.lower() for part in re.findall("[A-Z][a-z]*", type(effect).__name__)) for effect in effects]
    return list(dict.fromkeys(names))


def content(value: Any, now_ms: int = 0) -> Hashable:
    """A value that is equal for two objects with equal content, times (``..._ms``) seen from ``now_ms``, but for
    what is in ``NO_MATTER``."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, Enum)):
        return value
    if isinstance(value, Mapping):
        return tuple((content(key), content(item, now_ms)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return tuple(sorted((content(item, now_ms) for item in value), key=repr))
    if isinstance(value, (tuple, list, deque)):
        return tuple(content(item, now_ms) for item in value)
    if callable(value):
        return repr(value)
    names = [field.name for field in fields(value)] if is_dataclass(value) else sorted(vars(value))
    return (type(value).__name__, *(_content_of(name, getattr(value, name), now_ms) for name in names))


def _content_of(name: str, value: Any, now_ms: int) -> Hashable:
    if name in NO_MATTER:
        return None
    if name.endswith("_ms") and isinstance(value, int):
        return max(value - now_ms, -1)
    return content(value, now_ms)


@dataclass(frozen=True)
class Diagram:
    """``states``: what each of them means, in the order of the page. ``worlds``: their transitions are put together;
    ``small``: what they consist of."""

    title: str
    source: str
    text: str
    small: str
    states: Mapping[str, str]
    worlds: tuple[Callable[[], Subject], ...]

    def transitions(self) -> list[Transition]:
        """All that occur, by state. Raises ``ValueError`` for a state that has no meaning."""
        found = dict.fromkeys(transition for make in self.worlds for transition in explore(make))
        unknown = {transition.after for transition in found} - set(self.states)
        if unknown:
            raise ValueError(f"{self.title}: nothing says what {sorted(unknown)} means")
        order = {state: place for place, state in enumerate(self.states)}
        return sorted(found, key=lambda transition: order[transition.before])

    def beginnings(self) -> list[str]:
        """The states that a machine begins in."""
        return list(dict.fromkeys(make().state for make in self.worlds))
