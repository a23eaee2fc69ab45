"""``requirements.lock`` can be installed on every supported Python; ``make lock-check`` asks the registry as well."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def project() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return settings["project"]


def entries() -> list[tuple[Requirement, list[str]]]:
    """Each pin of the lock, with its hashes."""
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    parts = [part.split() for part in "\n".join(lines).replace("\\\n", " ").splitlines() if part.strip()]
    found = []
    for words in parts:
        hashes = [word for word in words if word.startswith("--hash=")]
        found.append((Requirement(" ".join(word for word in words if word not in hashes)), hashes))
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(version: str) -> dict[str, str]:
    """Name -> version of what is installed on a Python on Linux."""
    environment = {"python_version": version, "python_full_version": f"{version}.0", "sys_platform": "linux"}
    found: dict[str, str] = {}
    for requirement, _ in entries():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonical(requirement.name)
            assert name not in found, f"{name} is pinned twice for Python {version}"
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            found[name] = pin.version
    return found


def test_every_pin_has_hashes_and_no_address() -> None:
    assert len(entries()) > 40
    for requirement, hashes in entries():
        assert hashes and all(SHA256.fullmatch(known) for known in hashes), requirement.name
        assert requirement.url is None
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text and "--index-url" not in text and "--find-links" not in text


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lock_has_what_the_project_asks_for(version: str) -> None:
    locked = pins(version)
    wanted = [
        *project()["dependencies"],
        *(name for extra in project()["optional-dependencies"].values() for name in extra),
    ]
    for requirement in map(Requirement, wanted):
        name = canonical(requirement.name)
        assert requirement.specifier.contains(locked.get(name, "0")), (
            f"{requirement} is not {locked.get(name)}; make lock"
        )


def test_the_scripts_know_the_same_versions() -> None:
    assert project()["requires-python"] == f">={VERSIONS[0]}"
    assert f"SUPPORTED=({' '.join(VERSIONS)})" in (ROOT / "scripts/versions_check.sh").read_text()
    assert f"Python {VERSIONS[0]} to {VERSIONS[-1]}" in (ROOT / "scripts/setup.sh").read_text()
