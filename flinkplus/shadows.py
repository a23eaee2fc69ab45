"""Modules of the user's that hide a package which FlinkPlus imports: ``dedup.py`` beside a program, and the like.

Python searches a program's own directory before the installed packages. Without this check, which imports nothing, the
import of such a module fails deep inside FlinkPlus. A package is FlinkPlus's own when it is beside ``flinkplus``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from flinkplus.errors import ShadowedPackage

LIBRARIES = ("chain_backup", "dedup", "upstream_cache")
"""What programs and slots import."""
COMMANDS = (*LIBRARIES, "experiments")
"""What the command line imports."""


def root() -> str:
    """The directory that holds ``flinkplus`` and the packages beside it."""
    return str(Path(__file__).resolve().parents[1])


def find_shadow(names: Iterable[str]) -> ShadowedPackage | None:
    """The error for the first of the packages that another module hides; ``None`` when Python finds them all."""
    for name in names:
        found = _place_of(name)
        if found is not None and os.path.realpath(found) != os.path.join(root(), name, "__init__.py"):
            return ShadowedPackage(
                f"{found} hides the package {name!r} of FlinkPlus, because Python finds it first: rename it, or start "
                "the program where Python does not find it (it looks into the program's directory, PYTHONPATH, and, "
                "for Spark's workers, the working directory)",
                name=name,
                path=found,
            )
    return None


def check_packages(names: Iterable[str]) -> None:
    """Raises ``ShadowedPackage`` when another module hides one of the packages."""
    error = find_shadow(names)
    if error is not None:
        raise error


def use_own_packages(names: Iterable[str]) -> None:
    """Have this process import the packages that belong to FlinkPlus from now on, also if others shadow them."""
    for module in list(sys.modules):
        if module.partition(".")[0] in names:
            del sys.modules[module]
    sys.path.insert(0, root())


def _place_of(name: str) -> str | None:
    """The file that ``import name`` would run, or has run; the directory, if it has no such file."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    return spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
