"""The page of diagrams: docs/state-diagrams.md, what stands between its markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.diagrams.barriers import ALGORITHMS, PAUSED, STATES
from tests.diagrams.explore import Diagram, Transition
from tests.diagrams.machines import DIAGRAMS

PAGE = Path(__file__).parents[2] / "docs" / "state-diagrams.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def written(page: str) -> str:
    """``page`` with what the code says now between its markers. Raises ``ValueError`` when they are missing."""
    above, begin, rest = page.partition(BEGIN)
    _, end, below = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no line {BEGIN!r} with {END!r} behind it")
    return "\n".join([above + begin, "", *_all(), "", end + below])


def _all() -> Iterable[str]:
    yield "## One checkpoint at one subtask"
    yield ""
    yield (
        "The same events in the same small world for each algorithm: two checkpoints, of which the older or the newer "
        "is watched; a subtask with two inputs, or a source. The states are what can be seen from outside, from what "
        "has been ordered."
    )
    found = {algorithm.name: algorithm.diagram().transitions() for algorithm in ALGORITHMS}
    yield from _side_by_side(found)
    for algorithm in ALGORITHMS:
        yield from ("", f"### {algorithm.name}", "", f"{algorithm.text} (`{algorithm.source}`)", "")
        yield from mermaid(algorithm.diagram(), found[algorithm.name], orders=True)
    yield from ("", *_meanings(STATES, [transition for some in found.values() for transition in some]))
    for diagram in DIAGRAMS:
        transitions = diagram.transitions()
        yield from ("", f"## {diagram.title}", "", f"{diagram.text} (`{diagram.source}`; {diagram.small}.)", "")
        yield from mermaid(diagram, transitions, orders=False)
        yield from ("", *_meanings(diagram.states, transitions), "", *_table(transitions))


def _side_by_side(found: dict[str, list[Transition]]) -> Iterable[str]:
    """A row for each state and event, a column for each algorithm: what it orders, and the state behind it."""
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, transitions in found.items():
        for before, happened, ordered, after in transitions:
            row = cells.setdefault((before.removesuffix(PAUSED), happened), {})
            continues = ", continues" if PAUSED in before and PAUSED not in after else ""
            to = "" if after == before else f"**{after}**{continues}"
            text = "; ".join(part for part in (", ".join(ordered), to) if part)
            if text not in row.setdefault(name, []):
                row[name].append(text)
    order = list(STATES)
    rows = sorted(cells.items(), key=lambda item: order.index(item[0][0]))
    yield from ("", f"| state | what happens | {' | '.join(found)} |", "| --- " * (2 + len(found)) + "|")
    last = ""
    for (before, happened), row in rows:
        columns = " | ".join(" or ".join(row.get(name, [""])) for name in found)
        yield f"| {before if before != last else ''} | {happened} | {columns} |"
        last = before


def _meanings(states: Mapping[str, str], transitions: Sequence[Transition]) -> Iterable[str]:
    occurring = {state for transition in transitions for state in (transition.before, transition.after)}
    yield from ("| state | |", "| --- | --- |")
    yield from (f"| {state} | {meaning} |" for state, meaning in states.items() if state in occurring)


def _table(transitions: Sequence[Transition]) -> Iterable[str]:
    """What happens in one state, and has the same effects, is one row."""
    rows: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for before, happened, ordered, after in transitions:
        rows.setdefault((before, ordered, after), []).append(happened)
    yield from ("| state | what happens | what is ordered | then |", "| --- | --- | --- | --- |")
    last = ""
    for (before, ordered, after), names in rows.items():
        shown = before if before != last else ""
        yield f"| {shown} | {'; '.join(names)} | {', '.join(ordered)} | {after if after != before else ''} |"
        last = before


def mermaid(diagram: Diagram, transitions: Sequence[Transition], orders: bool) -> Iterable[str]:
    """A state diagram as GitHub draws it. ``orders``: arrows say what is ordered, and not only what happens."""
    occurring = {state for transition in transitions for state in (transition.before, transition.after)}
    yield from ("```mermaid", "stateDiagram-v2")
    for state in diagram.states:
        if state in occurring and _id(state) != state:
            yield f'    state "{state}" as {_id(state)}'
    for state in diagram.beginnings():
        yield f"    [*] --> {_id(state)}"
    arrows: dict[tuple[str, str], dict[tuple[str, ...], list[str]]] = {}
    for before, happened, ordered, after in transitions:
        if before != after:
            labels = arrows.setdefault((before, after), {}).setdefault(ordered if orders else (), [])
            if happened not in labels:
                labels.append(happened)
    for (before, after), groups in arrows.items():
        yield f"    {_id(before)} --> {_id(after)} : {'<br/>'.join(_label(*group) for group in groups.items())}"
    for state in diagram.states:
        if state in occurring and state not in {transition.before for transition in transitions}:
            yield f"    {_id(state)} --> [*]"
    yield "```"


def _label(ordered: tuple[str, ...], happened: list[str]) -> str:
    """A line for each event, and for each effect."""
    return "<br/>".join([*happened, *(f"/ {effect}" for effect in ordered)])


def _id(state: str) -> str:
    return re.sub("[^a-z]+", "_", state)
