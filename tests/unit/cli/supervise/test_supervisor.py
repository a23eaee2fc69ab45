"""The supervisor with real processes, whose programs are short: restarts, giving up, stopping, what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

START_S = 30.0
COUNTED = """
import os, pathlib, signal, subprocess, sys, time
runs = pathlib.Path("runs")
with runs.open("a") as file:
    file.write(f"{os.getpid()}\\n")
run = len(runs.read_text().split())
"""


class Supervised:
    """``flinkplus supervise`` in a process of its own. ``pids``: of the drivers, in their order."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None

    def start(self, program: str, *options: str, prepare: str = "nothing") -> None:
        (self.directory / "p.py").write_text(COUNTED + program)
        arguments = ["supervise", *options, "--prepare", prepare, "p.py", "one", "--two"]
        self._start(arguments)

    def _start(self, arguments: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4])}
        environment.pop("FLINKPLUS_LOG", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flinkplus", *arguments],
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        assert self.process is not None
        out, err = self.process.communicate(timeout=START_S)
        return self.process.returncode, out, err

    def run(self, program: str, *options: str, prepare: str = "nothing") -> tuple[int, str, str]:
        self.start(program, *options, prepare=prepare)
        return self.end()

    def command(self, *arguments: str) -> tuple[int, str, str]:
        assert self.process is None
        self._start(["supervise", *arguments])
        return self.end()

    @property
    def pids(self) -> list[int]:
        path = self.directory / "runs"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            assert time.monotonic() < deadline and self.process is not None and self.process.poll() is None
            time.sleep(0.01)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    found = Supervised(tmp_path)
    yield found
    if found.process is not None:
        with found.process:  # which closes its pipes
            if found.process.poll() is None:
                found.process.kill()
    for pid in found.pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_killed_driver_is_started_again_and_a_finished_one_is_not(supervised: Supervised) -> None:
    code, out, err = supervised.run(
        "if run < 3: os.kill(os.getpid(), 9)\n"
        "print(sys.argv, __name__, __file__, sys.path[0] == os.getcwd(), sys.modules['__main__'].run, flush=True)"
    )
    assert (code, out) == (0, "['p.py', 'one', '--two'] __main__ p.py True 3\n"), err
    assert len(set(supervised.pids)) == 3
    assert err.count("killed by SIGKILL") == 2 and "in 0 s" in err and "in 1 s" in err
    assert "no restart: the driver ended well" in err and "Traceback" not in err


def test_it_gives_up_with_the_exit_code_of_the_program(supervised: Supervised) -> None:
    code, _, err = supervised.run("raise SystemExit(7)", "--max-restarts", "1")
    assert code == 7 and len(supervised.pids) == 2
    assert "error flinkplus.supervise: no restart: the driver ended with exit code 7; giving up after 1 restarts" in err


def test_an_error_shows_its_trace_and_a_signal_is_an_exit_code(supervised: Supervised) -> None:
    code, _, err = supervised.run("if run == 1: 1 / 0\nos.kill(os.getpid(), 11)", "--max-restarts", "1")
    assert code == 139 and "ZeroDivisionError" in err and "killed by SIGSEGV; giving up" in err


def test_a_usage_error_is_not_tried_again(supervised: Supervised) -> None:
    code, _, err = supervised.run("sys.exit(2)")
    assert code == 2 and len(supervised.pids) == 1 and "a usage error" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["no-such-program"], "cannot be started"), (["--max-restarts", "-1", "x.py"], "from 0 up")],
)
def test_what_cannot_be_supervised(supervised: Supervised, arguments: list[str], reason: str) -> None:
    code, _, err = supervised.command(*arguments)
    assert code == 2 and reason in err and "Traceback" not in err


def test_any_command(supervised: Supervised) -> None:
    code, out, err = supervised.command(
        "sh", "-c", "echo run >> count; test $(wc -l < count) = 2 && echo done || exit 9"
    )
    assert (code, out) == (0, "done\n"), err


LEFT = """
import json
if run == 1:
    shell = "trap '' TERM; sleep 1000 & wait"
    for own in (False, True):
        left = subprocess.Popen(["sh", "-c", shell], start_new_session=own, stdout=subprocess.DEVNULL)
        with open("left", "a") as file:
            file.write(f"{left.pid}\\n")
    os.kill(os.getpid(), 9)
living = [pid for pid in map(int, open("left").read().split()) if os.path.exists(f"/proc/{pid}")]
print("beside the new one:", living, flush=True)
"""


def test_nothing_of_a_dead_driver_runs_beside_the_new_one(supervised: Supervised) -> None:
    code, out, err = supervised.run(LEFT)
    assert (code, out) == (0, "beside the new one: []\n"), err
    assert "ended 4 processes that driver" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_it_ends_the_driver_first(supervised: Supervised, number: int) -> None:
    supervised.start("try:\n    time.sleep(1000)\nfinally:\n    time.sleep(0.3)\n    pathlib.Path('clean').touch()")
    supervised.wait_for(lambda: supervised.pids)
    assert supervised.process is not None
    supervised.process.send_signal(number)
    code, _, err = supervised.end()
    assert code == 130 and (supervised.directory / "clean").exists() and gone(supervised.pids[0]), err
    assert f"stopped by {signal.Signals(number).name}" in err and len(supervised.pids) == 1


def test_a_driver_that_does_not_end_is_killed(supervised: Supervised) -> None:
    supervised.start(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\npathlib.Path('deaf').touch()\ntime.sleep(1000)",
        "--stop-timeout",
        "0.3",
    )
    supervised.wait_for((supervised.directory / "deaf").exists)
    assert supervised.process is not None
    supervised.process.terminate()
    code, _, err = supervised.end()
    assert code == 130 and "did not end in time" in err and gone(supervised.pids[0])


def test_a_pause_can_be_stopped(supervised: Supervised) -> None:
    supervised.start("sys.exit(1)")
    supervised.wait_for(lambda: len(supervised.pids) == 3)  # a pause of 2 s follows
    time.sleep(0.3)
    assert supervised.process is not None
    supervised.process.terminate()
    assert supervised.end()[0] == 130


def test_a_driver_ends_with_its_supervisor(supervised: Supervised) -> None:
    supervised.start("time.sleep(1000)")
    supervised.wait_for(lambda: supervised.pids)
    assert supervised.process is not None
    supervised.process.kill()
    deadline = time.monotonic() + START_S
    while not gone(supervised.pids[0]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_prepared_process_is_the_next_driver(supervised: Supervised) -> None:
    program = "loaded = 'pyspark.sql' in sys.modules\nif run == 1:\n    time.sleep(1000)\nprint(loaded, flush=True)"
    supervised.start(program, "--prepare-after", "0.1", prepare="python")
    assert supervised.process is not None and supervised.process.stderr is not None
    pid = ""
    for line in supervised.process.stderr:
        if "is ready to be the next driver" in line:
            pid = line.split("process ")[1].split()[0]
            os.kill(supervised.pids[0], signal.SIGKILL)
            break
    code, out, err = supervised.end()
    assert (code, out) == (0, "True\n"), err
    assert [str(one) for one in supervised.pids[1:]] == [pid]
