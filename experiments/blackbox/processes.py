"""The processes of a round: drivers, one after the other, and the checker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil

from experiments.blackbox.driver import DRAIN, ORDER
from experiments.harness.running import RunError

ROOT = Path(__file__).resolve().parents[2]
MARK = "FLINKPLUS_BLACK_BOX"
TEMPORARY = "tmp"
"""The folder for temporary files of drivers and slots."""
END_S = 60.0
UNFINISHED = "unfinished"
LOG_TAIL = 1_500


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class Driver:
    """The driver of a job: the present one. ``started``: how many there were."""

    def __init__(self, document: dict[str, Any], directory: Path) -> None:
        self._directory = directory
        self._settings = directory / "settings.json"
        self._status = directory / "status.json"
        self._temporary = directory / TEMPORARY
        self._temporary.mkdir()
        self._settings.touch(mode=0o600)
        self._settings.write_text(json.dumps({**document, "status": str(self._status)}))
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0

    def start(self) -> None:
        """Start one; there must be none."""
        self._status.unlink(missing_ok=True)
        self.started += 1
        with (self._directory / f"driver-{self.started}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "experiments.blackbox.driver", str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self._temporary), MARK: self._mark},
                cwd=self._directory,
                start_new_session=True,  # Ctrl-C is for the experiment, which ends it
            )

    def rescale(self, parallelism: int) -> None:
        """Order another parallelism. A driver that dies before leaves the order to the next one."""
        beside = self._directory / f"{ORDER}.new"
        beside.write_text(str(parallelism))
        os.replace(beside, self._directory / ORDER)

    def drain(self) -> None:
        """Order the end of the input. As with ``rescale``, no driver's death takes the order back."""
        (self._directory / DRAIN).touch()

    @property
    def ended(self) -> int | None:
        """Its exit code; ``None`` while it runs."""
        return None if self._process is None else self._process.poll()

    def status(self) -> dict[str, Any]:
        """What it last said; empty before."""
        return _document(self._status)

    def kill(self) -> None:
        """SIGKILL for the driver alone. What it has started notices."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """The end of its log."""
        path = self._directory / f"driver-{self.started}.log"
        return path.read_text(errors="replace")[-LOG_TAIL:] if path.exists() else ""

    def close(self) -> None:
        """End all processes of all drivers."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get(MARK) == self._mark:
                    process.send_signal(signal.SIGKILL)


class Checker:
    """The checker, which is started without anything of the project on its path."""

    def __init__(self, given: dict[str, Any], directory: Path) -> None:
        self._status = directory / "checker.json"
        self._log = (directory / "checker.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "checker"],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            start_new_session=True,
        )
        self._say(json.dumps({**given, "status": str(self._status)}))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def status(self) -> dict[str, Any]:
        """What it last said. Raises ``RunError`` when it has ended."""
        if self._process.poll() is not None:
            raise RunError(f"the checker ended with {self._process.returncode}; see checker.log")
        return _document(self._status)

    @property
    def rows(self) -> int:
        """How many rows it has seen."""
        return int(self.status().get("rows", 0))

    def end(self, finished: bool) -> dict[str, Any]:
        """Have it look a last time; returns what it found. ``finished``: all rows must be there.

        Raises ``RunError``.
        """
        with contextlib.suppress(OSError):
            if not finished:
                self._say(UNFINISHED)
            assert self._process.stdin is not None
            self._process.stdin.close()
        code = self._process.wait(END_S)
        found = _document(self._status)
        if code or not found.get("done"):
            raise RunError(f"the checker ended with {code}; see checker.log")
        return found

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._log.close()
