"""Limits on the size and names of the product's modules. What is over a limit today is listed with a ceiling.

A ceiling may only go down, and an entry that is within the limit again has to go. So the lists shrink.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import get_args

from chain_backup.failover.effects import FailoverEffect
from chain_backup.failover.events import FailoverEvent
from flinkplus.protocol.liveness.reachability import ReachabilityEffect, ReachabilityEvent
from flinkplus.protocol.vocabulary.effects import BarrierEffect, CheckpointingEffect, JobEffect
from flinkplus.protocol.vocabulary.events import BarrierEvent, CheckpointingEvent, JobEvent, OvertakingEvent

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("flinkplus", "pyspark_flinkplus", "chain_backup", "upstream_cache", "dedup")
ROOMS = ("flinkplus/runtime", "flinkplus/protocol", "chain_backup")

FUNCTION_LINES = 60
LONG_FUNCTIONS: dict[str, int] = {}
FILE_LINES = 500
LONG_FILES = {
    "flinkplus/protocol/checkpoints/checkpointing.py": 531,
    "flinkplus/protocol/job/job.py": 560,
    "flinkplus/runtime/control/messages.py": 540,
}
FOLDER_MODULES = 15
LARGE_FOLDERS: dict[str, int] = {}
CLASS_METHODS = 40
LARGE_CLASSES: dict[str, int] = {}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the product, by its path."""
    paths = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    assert len(paths) > 200
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(paths)}


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield path, node


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def check(found: Mapping[str, int], limit: int, ceilings: Mapping[str, int]) -> None:
    """``found``: a size for each name."""
    over = {name: size for name, size in found.items() if size > limit}
    grown = {name: size for name, size in over.items() if size > ceilings.get(name, limit)}
    assert not grown, f"over {limit}, or over the ceiling listed here: {grown}"
    within = ceilings.keys() - over.keys()
    assert not within, f"within {limit} again: take them out of the list: {within}"


def test_functions_are_short() -> None:
    sizes: dict[str, int] = {}
    for path, tree in modules().items():
        for node in functions(tree):
            assert node.end_lineno is not None
            name = f"{path}: {node.name}"
            sizes[name] = max(sizes.get(name, 0), node.end_lineno - node.lineno + 1)
    check(sizes, FUNCTION_LINES, LONG_FUNCTIONS)


def test_files_are_short() -> None:
    check({path: len((ROOT / path).read_text().splitlines()) for path in modules()}, FILE_LINES, LONG_FILES)


def test_folders_are_small() -> None:
    count: dict[str, int] = defaultdict(int)
    for path in modules():
        if not path.endswith("/__init__.py"):
            count[path.rpartition("/")[0]] += 1
    check(count, FOLDER_MODULES, LARGE_FOLDERS)


def test_classes_are_small() -> None:
    """Inherited methods count: whoever reads the class reads them too."""
    known = {node.name: node for _, node in classes()}

    def methods(name: str, below: tuple[str, ...] = ()) -> set[str]:
        if name not in known or name in below:
            return set()
        found = {node.name for node in known[name].body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        return found.union(*(methods(base, (*below, name)) for base in bases(known[name])))

    check({name: len(methods(name)) for name in known}, CLASS_METHODS, LARGE_CLASSES)


def bases(node: ast.ClassDef) -> Iterable[str]:
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(plain, ast.Name):
            yield plain.id


def test_a_name_is_that_of_one_class() -> None:
    count: dict[str, int] = defaultdict(int)
    for _, node in classes():
        if not node.name.startswith("_"):
            count[node.name] += 1
    assert [name for name, modules_with_it in count.items() if modules_with_it > 1] == []


PAST = re.compile(r"(ed|Lost|Left|Overtook|TakenOn|FellBack|FencedPart|Seen|Taken|Written)$")


def test_events_are_in_the_past_and_effects_are_not() -> None:
    """The rule: docs/glossary.md."""
    events = {*get_args(BarrierEvent), *get_args(CheckpointingEvent), *get_args(JobEvent), *get_args(OvertakingEvent)}
    events |= {*get_args(FailoverEvent), *get_args(ReachabilityEvent)}
    effects = {*get_args(BarrierEffect), *get_args(CheckpointingEffect), *get_args(JobEffect)}
    effects |= {*get_args(FailoverEffect), *get_args(ReachabilityEffect)}
    assert len(events) > 60 and len(effects) > 40
    assert [event.__name__ for event in events if not PAST.search(event.__name__)] == []
    assert [effect.__name__ for effect in effects - events if PAST.search(effect.__name__)] == []


def test_every_room_says_its_ring() -> None:
    """The first thing to know of a folder: whether it decides (0), obeys (1) or touches the world (2)."""
    silent = []
    for path, tree in modules().items():
        if path.startswith(ROOMS) and path.endswith("/__init__.py") and path.count("/") > 1:
            text = ast.get_docstring(tree) or ""
            if "Ring 0: pure" not in text and not ("Ring " in text and "Process: " in text):
                silent.append(path)
    assert silent == []
