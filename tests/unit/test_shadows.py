"""A module of the user's that has the name of a package of FlinkPlus is named in one clear error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flinkplus.errors import ConfigurationError, ShadowedPackage
from flinkplus.runtime import daemon
from flinkplus.shadows import COMMANDS, LIBRARIES, check_packages, find_shadow

ROOT = Path(__file__).resolve().parents[2]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in ``directory``, with FlinkPlus found where PYTHONPATH says, after the program's own directory."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("kind", ["module", "package"])
def test_a_program_beside_a_module_of_that_name(tmp_path: Path, name: str, kind: str) -> None:
    hiding = tmp_path / (f"{name}.py" if kind == "module" else f"{name}/__init__.py")
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("raise AssertionError('it is not imported to find out')\n")
    (tmp_path / "program.py").write_text("from flinkplus import StreamEnvironment\n")
    done = run(tmp_path, "program.py")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"flinkplus.errors.ShadowedPackage: {hiding} hides the package {name!r} of FlinkPlus")
    assert "rename it" in last
    assert "During handling" not in done.stderr and "pyspark" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_in_a_directory_with_a_module_of_that_name(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("")
    done = run(tmp_path, "-m", "flinkplus", "--version")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"flinkplus: {tmp_path / name}.py hides the package {name!r} of FlinkPlus")


def test_a_name_that_only_commands_use_is_free_in_programs(tmp_path: Path) -> None:
    (tmp_path / "experiments.py").write_text("mine = 1\n")
    (tmp_path / "program.py").write_text("import experiments, flinkplus\nprint(flinkplus.Stream, experiments.mine)\n")
    done = run(tmp_path, "program.py")
    assert (done.returncode, done.stdout) == (0, "<class 'flinkplus.api.streams.stream.Stream'> 1\n"), done.stderr


def test_the_daemon_of_the_workers_loads_nothing_then(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = ModuleType("dedup")
    mine.__file__ = str(tmp_path / "dedup.py")
    monkeypatch.setitem(sys.modules, "dedup", mine)
    monkeypatch.setattr(daemon, "MODULES", ("no_such_module",))
    daemon.load()
    found = find_shadow(LIBRARIES)
    assert found is not None and (found.name, found.path) == ("dedup", mine.__file__)
    with pytest.raises(ShadowedPackage):
        check_packages(LIBRARIES)
    assert isinstance(found, ConfigurationError) and isinstance(found, ImportError)


def test_nothing_is_hidden_here() -> None:
    assert find_shadow(COMMANDS) is None
