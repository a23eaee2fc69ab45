"""The daemon leaves PySpark's archives out of the path, if it can."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from flinkplus.runtime.daemon import MODULES, without_archives


def packages(directory: Path, version: str) -> str:
    for name in ("pyspark", "py4j"):
        folder = directory / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "version.py").write_text(f"__version__ = {version!r}\n")
    return str(directory)


def archives(directory: Path, version: str) -> list[str]:
    directory.mkdir()
    made = []
    for name, file in (("pyspark", "pyspark.zip"), ("py4j", "py4j-0.10-src.zip")):
        with zipfile.ZipFile(directory / file, "w") as archive:
            archive.writestr(f"{name}/__init__.py", "")
            archive.writestr(f"{name}/version.py", f"__version__ = {version!r}\n")
        made.append(str(directory / file))
    return made


def test_archives_go_when_the_same_is_unpacked(tmp_path: Path) -> None:
    unpacked, packed = packages(tmp_path / "site", "4.3.0"), archives(tmp_path / "lib", "4.3.0")
    others = str(tmp_path / "users.zip")
    assert without_archives([*packed, others, unpacked]) == [others, unpacked]


@pytest.mark.parametrize("version", ["4.2.0", None])
def test_archives_stay_when_it_is_another_version_or_none(tmp_path: Path, version: str | None) -> None:
    packed = archives(tmp_path / "lib", "4.3.0")
    path = [*packed, *([packages(tmp_path / "site", version)] if version else [])]
    assert without_archives(path) == path


def test_a_damaged_archive_stays(tmp_path: Path) -> None:
    unpacked, packed = packages(tmp_path / "site", "4.3.0"), archives(tmp_path / "lib", "4.3.0")
    Path(packed[0]).write_bytes(b"no archive")
    assert without_archives([*packed, unpacked]) == [*packed, unpacked]


def test_without_archives_nothing_changes() -> None:
    assert without_archives(sys.path) == sys.path


def test_what_must_not_be_loaded_before_a_fork_is_not() -> None:
    assert not any(module.startswith("grpc") or "grpc" in module for module in MODULES)
