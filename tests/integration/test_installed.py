"""FlinkPlus as a user installs it: a wheel, in an environment that knows nothing of a checkout.

The wheel is built and installed without a network. The environment is empty but for the wheel; what that depends on is
found where this test's own environment has it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

import flinkplus
from flinkplus.shadows import COMMANDS
from tests.integration.conftest import assert_exact, expected_counts
from tests.integration.programs import ROOT
from tests.integration.test_cli import own_errors

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

PACKAGES = ("flinkplus", *COMMANDS)
DEPENDENCIES = Path(pyspark.__file__).parents[1]
LIMIT_S = 200.0
PROGRAM = Path(__file__).with_name("installed_program.py")


@dataclass(frozen=True)
class Installed:
    """A wheel, and the virtual environment that it is installed in."""

    wheel: Path
    environment: Path

    @property
    def site(self) -> Path:
        (found,) = self.environment.glob("lib/python*/site-packages")
        return found

    def run(self, directory: Path, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in ``directory``; fails with its output when it fails."""
        names = ("PATH", "JAVA_HOME", "HOME", "SPARK_SUBMIT_OPTS", "FLINKPLUS_KEY_FILE")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        variables = {
            **kept,
            "PATH": f"{self.environment / 'bin'}:{kept['PATH']}",
            "PYSPARK_PYTHON": str(self.environment / "bin/python"),
            "SPARK_HOME": str(DEPENDENCIES / "pyspark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(directory),
        }
        done = subprocess.run(
            [*map(str, command)],
            cwd=directory,
            env=variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.args}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done


def install(directory: Path) -> Installed:
    source, wheels, environment = directory / "source", directory / "wheels", directory / "environment"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    alone = ("--no-deps", "--no-index")
    subprocess.run([*pip, "wheel", *alone, "--no-build-isolation", "--wheel-dir", wheels, source], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "--python", environment / "bin/python", "install", *alone, wheel], check=True)
    made = Installed(wheel, environment)
    (made.site / "dependencies.pth").write_text(
        f"{DEPENDENCIES}\n"
    )  # its own .pth files, as of a checkout, are not read
    return made


def check_that_the_wheel_has_every_file_of_the_packages(installed: Installed) -> None:
    there = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        packed = {name for name in wheel.namelist() if not name.startswith(f"flinkplus-{flinkplus.__version__}.")}
    assert packed == there
    assert "flinkplus/cli/log4j2.properties" in packed


def check_that_the_command_prints_no_stray_line(installed: Installed, corpus: Path, tmp_path: Path) -> None:
    assert installed.run(tmp_path, "flinkplus", "--version").stdout == f"flinkplus {flinkplus.__version__}\n"
    done = installed.run(tmp_path, "flinkplus", "wordcount", corpus, "--output", "out")
    assert own_errors(done.stderr) == []
    assert done.stdout.lstrip().startswith("WordCount")
    assert_exact(tmp_path / "out", expected_counts(corpus))


def check_a_program_with_a_kill_by_spark_submit(installed: Installed, tmp_path: Path) -> None:
    """Beside the kill: a module in the workers' directory that hides a package is named by the slots."""
    program, working = tmp_path / "program", tmp_path / "working"
    program.mkdir()
    working.mkdir()
    shutil.copy(PROGRAM, program / "program.py")
    (working / "dedup.py").write_text("")
    submit = DEPENDENCIES / "pyspark/bin/spark-submit"
    options = ("--master", "local[4]", "--conf", "spark.ui.enabled=false")
    installed.run(working, submit, *options, program / "program.py")
    found: dict[str, Any] = json.loads((working / "found.json").read_text())
    assert f"{working / 'dedup.py'} hides the package 'dedup' of FlinkPlus" in found["shadowed"]
    assert found["driver"] == [str(installed.site)] and found["slots"] == [str(installed.site)]
    assert found["recoveries"] and found["killed"] == 1
    counts = Counter({word: len(ns) for word, ns in found["counts"].items()})
    assert len(counts) == found["words"]
    for word, ns in found["counts"].items():
        assert sorted(ns) == list(range(1, counts[word] + 1)), word


@pytest.mark.long  # the longest of all: an environment of its own
def test_a_wheel_in_an_empty_environment(corpus: Path, tmp_path: Path) -> None:
    """One test, since setting the environment up takes longer than most of it."""
    for name in ("installed", "command", "program"):
        (tmp_path / name).mkdir()
    installed = install(tmp_path / "installed")
    check_that_the_wheel_has_every_file_of_the_packages(installed)
    check_that_the_command_prints_no_stray_line(installed, corpus, tmp_path / "command")
    check_a_program_with_a_kill_by_spark_submit(installed, tmp_path / "program")
