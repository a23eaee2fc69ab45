"""A new program for an old checkpoint, compared operator by operator, by name.

Rules:
- operators without state pass, whatever becomes of them; a new operator with state begins empty;
- state, or a source's position, whose operator is gone is refused unless ``drop_state`` names it;
- an operator takes the state of another name by ``state_from``; it must have kept the same kind of state;
- state passes where every row of it can be read as a row of the new program (``rows``); otherwise it is refused, or
  begins empty where ``drop_state`` names it;
- sinks are known by their location: one with another name and the same location continues the output, one with
  another location begins a new output, and what was written before stays;
- both requests may be repeated after they were carried out: ``drop_state`` affects only what would be refused, and
  ``state_from`` nothing once the old name is gone and the new one is there. So a supervisor may run the same program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from flinkplus.protocol.program.description import (
    LOCATION,
    OperatorDescription,
    Program,
    StateDescription,
    columns_text,
)
from flinkplus.protocol.program.rows import why_unreadable

Verdict = Literal["unchanged", "changed", "converted", "renamed", "new", "gone", "dropped", "refused"]
JOB = "(job)"
ABSENT = "-"


@dataclass(frozen=True)
class Change:
    """What becomes of one operator. ``was``, ``now``: descriptions for users. ``why``: of the verdict."""

    operator: str
    was: str
    now: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Requests:
    """What the user asks for: ``state_from``: new name -> old name; ``drop_state``: names whose state may go;
    ``renamed_from``: the name of the job before."""

    state_from: Mapping[str, str] = field(default_factory=dict)
    drop_state: Collection[str] = ()
    renamed_from: str | None = None

    def names(self, job: str) -> list[str]:
        """The names that the job may have in its checkpoint directory."""
        return [job] if self.renamed_from is None else [job, self.renamed_from]


@dataclass(frozen=True)
class Comparison:
    """``changes``: a row for each operator. ``origins``: operator -> the old one that it continues.

    ``converted``: the operators whose state is read as other rows.
    """

    old: Program
    new: Program
    changes: tuple[Change, ...]
    origins: Mapping[str, str]
    converted: frozenset[str]

    @property
    def refused(self) -> list[Change]:
        """What does not pass."""
        return [change for change in self.changes if change.verdict == "refused"]

    @property
    def is_direct(self) -> bool:
        """Whether the checkpoint is one of the new program as it stands."""
        return not self.refused and self.old.restores_as(self.new)


def compare(old: Program, new: Program, requests: Requests = Requests(), held: Collection[str] = ()) -> Comparison:
    """``held``: operators that have state in the checkpoint, also if their description says nothing of it."""
    comparing = _Comparing(old, new, requests, held)
    comparing.run()
    return Comparison(old, new, tuple(comparing.changes), comparing.origins, frozenset(comparing.converted))


class _Comparing:
    def __init__(self, old: Program, new: Program, requests: Requests, held: Collection[str]) -> None:
        self._old, self._new, self._requests, self._held = old, new, requests, held
        self.changes: list[Change] = []
        self.origins: dict[str, str] = {}
        self.converted: set[str] = set()
        self._seen: set[str] = set()  # old operators of which it is known what becomes

    def run(self) -> None:
        old, new = self._old, self._new
        groups = _difference("max_parallelism", old.max_parallelism, new.max_parallelism)
        if groups:
            self._note(JOB, f"{old.max_parallelism} key groups", f"{new.max_parallelism} key groups", "refused", groups)
        for name in self._requests.state_from:
            if name not in new.operators:
                self._note(name, ABSENT, ABSENT, "refused", "state_from names it, and the program has no such operator")
        for name, now in new.operators.items():
            if now.kind == "sink":
                self._sink(name, now)
            else:
                self._operator(name, now)
        for name, was in old.operators.items():
            if name not in self._seen:
                self._gone(name, was)

    def _note(self, name: str, was: str, now: str, verdict: Verdict, why: str = "") -> None:
        self.changes.append(Change(name, was, now, verdict, why))

    # --- operators and sources ----------------------------------------------------------------------------------------

    def _operator(self, name: str, now: OperatorDescription) -> None:
        former, why = self._former(name)
        was = None if why else self._old.operators.get(former)
        if why:
            self._note(name, ABSENT, described(now), "refused", why)
        elif was is None or was.kind == "sink":
            begins = {"source": "it is read from its beginning", "operator": "its state begins empty"}[now.kind]
            self._note(name, ABSENT, described(now), "new", begins if now.kind == "source" or now.state else "")
        else:
            self._continued(name, now, former, was)

    def _former(self, name: str) -> tuple[str, str]:
        """The old name of an operator, and why it cannot be used."""
        former = self._requests.state_from.get(name)
        old = self._old.operators
        if former is None or former == name:
            return name, ""
        if name in old and former in old:
            return former, f"state_from gives it the state of {former!r}, and it has state of its own: drop one first"
        if name not in old and former not in old:
            return former, f"state_from names {former!r}, which the checkpoint does not have"
        return (name, "") if name in old else (former, "")

    def _continued(self, name: str, now: OperatorDescription, former: str, was: OperatorDescription) -> None:
        texts = described(was, now), described(now, was)
        why = self._why_not(former, was, now)
        self._seen.add(former)
        if why and former in self._requests.drop_state:
            self._note(name, *texts, "dropped", f"drop_state names it ({why}): it begins anew")
            return
        if why:
            self._note(name, *texts, "refused", why)
            return
        self.origins[name] = former
        if was.state is not None and now.state is not None and was.state.rows != now.state.rows:
            self.converted.add(name)
            self._note(name, *texts, "converted", _rows_text(was.state, now.state))
        elif name != former:
            self._note(name, *texts, "renamed", f"it continues {former!r}")
        else:
            self._note(name, *texts, "unchanged" if _alike(was, now) else "changed")

    def _why_not(self, former: str, was: OperatorDescription, now: OperatorDescription) -> str:
        """Why an operator cannot continue another; ``""`` if it can."""
        if was.kind != now.kind:
            return _difference("kind", was.kind, now.kind) if self._has_state(former, was) else ""
        if was.kind == "source":
            return _difference("class", was.body, now.body) or _settings_differ(was.settings, now.settings)
        if was.state is None and former not in self._held:
            return ""
        if now.state is None and was.state is not None and not was.state.progress:
            return "it had state and has none now"
        if was.body != now.body:
            return _difference("class", was.body, now.body)
        if was.state is None or now.state is None:
            return ""
        return _why_state_differs(was.state, now.state)

    def _has_state(self, name: str, was: OperatorDescription) -> bool:
        return was.kind == "source" or name in self._held or (was.state is not None and not was.state.progress)

    def _gone(self, name: str, was: OperatorDescription) -> None:
        if was.kind == "sink":
            self._note(name, described(was), ABSENT, "gone", "its output up to the checkpoint stays")
        elif was.state is not None and was.state.progress:
            self._note(name, described(was), ABSENT, "gone", "event time does not go back")
        elif not self._has_state(name, was):
            self._note(name, described(was), ABSENT, "gone")
        elif name in self._requests.drop_state:
            self._note(name, described(was), ABSENT, "dropped", "drop_state names it")
        else:
            what = "position" if was.kind == "source" else "state"
            why = f"its {what} would be lost: name it in drop_state, or in state_from if it was renamed"
            self._note(name, described(was), ABSENT, "refused", why)

    # --- sinks --------------------------------------------------------------------------------------------------------

    def _sink(self, name: str, now: OperatorDescription) -> None:
        former = self._same_output(name, now)
        if former is None:
            self._note(name, ABSENT, described(now), "new", "its output begins empty")
            return
        was = self._old.operators[former]
        texts = described(was, now), described(now, was)
        why = _difference("class", was.body, now.body) or _settings_differ(was.settings, now.settings)
        if not why and now.settings:
            unreadable = why_unreadable(was.columns, now.columns)
            why = unreadable and f"{unreadable} (was: {columns_text(was.columns)}; is: {columns_text(now.columns)})"
        self._seen.add(former)
        if why and LOCATION in now.settings:
            self._note(name, *texts, "refused", f"{why}: give the changed output another directory")
            return
        self.origins[name] = former
        if name != former:
            self._note(name, *texts, "renamed", f"it continues the output of {former!r}")
        else:
            self._note(name, *texts, "unchanged" if _alike(was, now) else "changed")

    def _same_output(self, name: str, now: OperatorDescription) -> str | None:
        """The old sink whose output this one continues."""
        where = now.settings.get(LOCATION)
        for former, was in self._old.operators.items():
            same = former == name if where is None else was.settings.get(LOCATION) == where
            if was.kind == "sink" and same:
                return former if where is not None or LOCATION not in was.settings else None
        return None


def _alike(was: OperatorDescription, now: OperatorDescription) -> bool:
    return replace(was, split="") == replace(now, split="")


def _why_state_differs(was: StateDescription, now: StateDescription) -> str:
    if was.keys != now.keys:
        return f"its key was {', '.join(was.keys) or 'none'} and is {', '.join(now.keys) or 'none'}"
    differ = _settings_differ(was.settings, now.settings)
    if differ:
        return differ
    for name, columns in was.rows.items():
        if name not in now.rows:
            return f"it had state {name!r} and has none now"
        why = why_unreadable(columns, now.rows[name])
        if why:
            return f"{why} ({_rows_text(was, now)})"
    return ""


def _rows_text(was: StateDescription, now: StateDescription) -> str:
    """The rows of two states side by side, as far as they differ."""
    texts = []
    for name in {**was.rows, **now.rows}:
        before, after = was.rows.get(name), now.rows.get(name)
        if before != after:
            old, new = ("none" if rows is None else columns_text(rows) for rows in (before, after))
            texts.append(f"{name or 'rows'}: was {old}; is {new}")
    return " | ".join(texts)


def _settings_differ(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for name in {**was, **now}:
        if was.get(name) != now.get(name):
            return _difference(name, was.get(name), now.get(name))
    return ""


def _difference(what: str, was: Any, now: Any) -> str:
    return "" if was == now else f"its {what} was {was!r} and is {now!r}"


def described(one: OperatorDescription, other: OperatorDescription | None = None) -> str:
    """An operator for users; its columns as well where those of the ``other`` differ."""
    text = one.body
    if one.state is not None and one.state.keys:
        text += f" by {', '.join(one.state.keys)}"
    settings = {**one.settings, **({} if one.state is None else one.state.settings)}
    if settings:
        text += " (" + ", ".join(f"{name}={value}" for name, value in settings.items()) + ")"
    if one.inputs:
        text += f" after {', '.join(one.inputs)}"
    if other is not None and other.columns != one.columns:
        text += f": {columns_text(one.columns)}"
    return text
