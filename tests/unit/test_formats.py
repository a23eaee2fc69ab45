"""``docs/formats.md`` says what the code does: versions, layouts, fields, kinds of messages.

Every constant, field and kind in the page is in the code as it is there; every version constant, document and message
in the code is in the page.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import struct
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flinkplus.runtime.control import messages as control

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flinkplus", "chain_backup", "upstream_cache", "dedup")
PAGE = ROOT / "docs" / "formats.md"
CONSTANT = re.compile(r"`([\w.]+)\.(\w+)` = `([^`]+)`")
VERSION = re.compile(r"_?([A-Z]+_)*(FORMAT|MAGIC|VERSION|PROTOCOL)\Z")
ROW = re.compile(r"^\| `(\w[\w.]*)` \| (.*) \|$", re.MULTILINE)
FIELD = re.compile(r"`(\w+): ([^`]+)`")


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def value_of(constant: Any) -> Any:
    return constant.format if isinstance(constant, struct.Struct) else constant


def wrong_constants(page: str) -> list[str]:
    """Constants that have another value than the page says."""
    return [
        f"{module}.{name}"
        for module, name, value in CONSTANT.findall(page)
        if value_of(named(f"{module}.{name}")) != ast.literal_eval(value)
    ]


@cache
def modules() -> dict[str, ast.Module]:
    """Those of the product, by name."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text()) for path in paths}


@cache
def version_constants() -> frozenset[str]:
    """The constants of the product that are the number, the first bytes or the purpose of a format."""
    found: set[str] = set()
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                found.update(f"{module}.{name}" for name in names if VERSION.match(name))
    return frozenset(found)


def missing_constants(page: str) -> set[str]:
    return set(version_constants()) - {f"{module}.{name}" for module, name, _ in CONSTANT.findall(page)}


def fields_of(cls: Any) -> list[tuple[str, str]]:
    """Names and types, as they are written in the code."""
    if dataclasses.is_dataclass(cls):
        return [(field.name, str(field.type)) for field in dataclasses.fields(cls)]
    hints = cls.__annotations__
    return [(name, getattr(hints[name], "__forward_arg__", hints[name])) for name in cls._fields]


def sections(page: str, what: str) -> Iterator[tuple[str, str]]:
    """A dotted name, and the table behind it."""
    for found in re.finditer(rf"^{what} of `([\w.]+)`:\n\n((?:\|.*\n)+)", page, re.MULTILINE):
        yield found[1], found[2]


def wrong_fields(page: str) -> list[str]:
    wrong = []
    for name, table in sections(page, "Fields"):
        found = [(row[1], row[2].split(" | ")[0].strip("`").replace("\\|", "|")) for row in ROW.finditer(table)]
        if found != fields_of(named(name)):
            wrong.append(name)
    return wrong


def missing_documents(page: str) -> set[str]:
    known = {
        f"{module}.{node.name}"
        for module, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Document" for base in node.bases)
    }
    assert len(known) > 10
    return known - {name for name, _ in sections(page, "Fields")}


@cache
def requests() -> frozenset[str]:
    """What the command server takes."""
    found: set[str] = set()
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and adds_command(node.func):
                request = named(f"{module}.{ast.unparse(node.args[0])}")
                found.add(f"{request.__module__}.{request.__name__}")
    return frozenset(found)


def adds_command(function: ast.expr) -> bool:
    """Whether it is ``commands.add``, of any owner."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "add"
        and ast.unparse(function.value).rpartition(".")[2] == "commands"
    )


def wrong_kinds(page: str) -> list[str]:
    wrong = []
    for name, table in sections(page, "Kinds"):
        kinds: type[IntEnum] = named(name)
        if [(int(at), kind) for at, kind in re.findall(r"^\| (\d+) \| `(\w+)`", table, re.MULTILINE)] != [
            (kind.value, kind.name) for kind in kinds
        ]:
            wrong.append(name)
    return wrong


def wrong_messages(page: str) -> set[str]:
    """Control messages and requests whose fields are others than the page says, or that are only on one side."""
    section = page[page.index("\n## Control messages") : page.index("\n## Pulses")]
    rows = {row[1]: row[2] for row in ROW.finditer(section) if row[2] == "none" or FIELD.match(row[2])}
    written = {
        name: [(field, hint.replace("\\|", "|")) for field, hint in FIELD.findall(row)] for name, row in rows.items()
    }
    known = {cls.__name__: fields_of(cls) for cls in control.ControlMessage.__args__}
    known |= {name: fields_of(named(name)) for name in requests()}
    return {name for name in written.keys() | known.keys() if written.get(name) != known.get(name)}


def test_constants_have_the_value_that_the_page_says() -> None:
    page = PAGE.read_text("utf-8")
    assert len(CONSTANT.findall(page)) > 30
    assert wrong_constants(page) == []


def test_the_page_has_every_version() -> None:
    assert len(version_constants()) > 30
    assert missing_constants(PAGE.read_text("utf-8")) == set()


def test_documents_have_the_fields_that_the_page_says() -> None:
    page = PAGE.read_text("utf-8")
    assert wrong_fields(page) == [] and missing_documents(page) == set()


def test_kinds_and_messages_are_those_of_the_page() -> None:
    page = PAGE.read_text("utf-8")
    assert len(list(sections(page, "Kinds"))) == 3
    assert wrong_kinds(page) == [] and wrong_messages(page) == set()


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("HANDLE_FORMAT` = `2`", "HANDLE_FORMAT` = `3`", wrong_constants),
        ("HEADER` = `'<BBH", "HEADER` = `'<BBI", wrong_constants),
        ("`flinkplus.sources.generator.POSITION_FORMAT` = `2`", "2", missing_constants),
        ("| `bytes_new` | `int` |", "| `bytes_new` | `float` |", wrong_fields),
        ("| `aborted` |", "| `given_up` |", wrong_fields),
        ("Fields of `flinkplus.protocol.snapshot.handle.KeyedPart`:", "Fields of it:", missing_documents),
        ("| 3 | `CHUNK` |", "| 4 | `CHUNK` |", wrong_kinds),
        ("| `Halt` | `generation: int` |", "| `Halt` | `generation: float` |", wrong_messages),
        ("| `Stop` | none |", "", wrong_messages),
        ("moves.DrainHostCommand` | `host: str`", "moves.DrainHostCommand` | `hosts: str`", wrong_messages),
    ],
)
def test_a_difference_is_found(old: str, new: str, check: Any) -> None:
    page = PAGE.read_text("utf-8")
    assert old in page
    assert not check(page) and check(page.replace(old, new))
