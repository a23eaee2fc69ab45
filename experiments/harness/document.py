"""The document of an experiment (JSON).

It has ``experiment``, ``parameters``, ``command``, ``versions``, ``machine``, ``commit``, ``started``, ``uid``,
``nice``, ``may_raise_priority``, ``load``, ``interrupted``, ``runs`` (one object each) and what is computed from all.

Rules: rewritten after each run, whole or not at all, so that an experiment that is interrupted keeps what it has.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from experiments.harness.conditions import conditions
from flinkplus.cli.figures import write_json
from flinkplus.errors import ConfigurationError

PACKAGES = ("flinkplus", "pyspark", "pyarrow", "numpy", "grpcio", "rocksdict", "kazoo")
GIT_TIMEOUT_S = 10
FILES = ("--json", "--out")
"""Options that say where results go, not what they are."""


def environment() -> dict[str, Any]:
    """``command``, ``versions``, ``machine``, ``commit`` and ``started`` of this program, and its ``conditions``."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": command_line(sys.argv),
        "versions": versions,
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "commit": _commit(),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **conditions(),
    }


def write_figures(path: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures of a program that is no experiment, with its ``environment``; no file: nothing."""
    write_json(path, {**environment(), **figures})


def command_line(arguments: Sequence[str]) -> str:
    """The command that these arguments (``sys.argv``) are of, without the options that say where results go."""
    program, given = Path(arguments[0]), iter(arguments[1:])
    name = program.parent.name if program.stem == "__main__" else program.stem
    kept = []
    for argument in given:
        if argument in FILES:
            next(given, None)
        elif not argument.startswith(tuple(f"{file}=" for file in FILES)):
            kept.append(argument)
    return shlex.join([*(["flinkplus"] if name == "flinkplus" else ["python", "-m", f"experiments.{name}"]), *kept])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str | None:
    """The commit of this program, with ``-dirty`` when files differ from it; ``None`` outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    where = Path(__file__).parent
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


class Document:
    """The results of an experiment so far, in ``path``. ``derive``: recomputed from all runs."""

    def __init__(
        self, name: str, parameters: Any, path: Path, derive: Callable[[list[dict[str, Any]]], dict[str, Any]]
    ) -> None:
        self.path = path
        self._derive = derive
        self.content: dict[str, Any] = {
            "experiment": name,
            "parameters": dataclasses.asdict(parameters),
            **environment(),
            "interrupted": False,
            "runs": [],
            **derive([]),
        }

    def take_over(self) -> None:
        """Continue with the runs that ``path`` holds, if there is such a file.

        Raises ``ConfigurationError`` when they are of another experiment.
        """
        if not self.path.exists():
            return
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot continue {self.path}: {error}") from error
        if not isinstance(known, dict):
            raise ConfigurationError(f"cannot continue {self.path}: it holds no experiment")
        for name in ("experiment", "parameters", "commit"):
            # As JSON: what was written has lists where tuples were.
            if json.dumps(known.get(name)) != json.dumps(self.content[name]):
                raise ConfigurationError(f"cannot continue {self.path}: {name} differ; give another --json")
        self.content |= {"runs": known["runs"], "started": known["started"], **self._derive(known["runs"])}

    def add(self, figures: dict[str, Any]) -> None:
        """One more run."""
        self.content["runs"].append(figures)
        self.content |= self._derive(self.content["runs"])
        self.write()

    def write(self) -> None:
        write_json(self.path, self.content)
