"""The load of the machine, and processes that make some."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from experiments.harness.load import LoadSampler, Spent, busy_processes, busy_share

HOLDER = (
    "import time\nfrom experiments.harness.load import busy_processes\n"
    "with busy_processes(1) as pids:\n    print(pids[0], flush=True)\n    time.sleep(60)\n"
)


def test_the_share_of_the_last_span() -> None:
    samples = [Spent(0.0, 0.0, 0.0), Spent(0.4, 0.0, 0.8), Spent(0.5, 0.1, 1.0), Spent(1.0, 0.6, 2.0)]
    assert busy_share(samples, 0.5) == 0.5
    assert busy_share(samples, 0.55) == pytest.approx(0.5)
    assert busy_share(samples, 1.0) == 0.3
    assert busy_share(samples, 2.0) is None and busy_share([], 1.0) is None
    assert busy_share([Spent(0.0, 1.0, 2.0), Spent(1.0, 1.0, 2.0)], 0.5) is None


def test_busy_processes_show_in_the_share_and_end_with_the_block() -> None:
    with busy_processes(os.cpu_count() or 1) as pids, LoadSampler() as load:
        processes = [psutil.Process(pid) for pid in pids]
        assert len(processes) == os.cpu_count()
        while (share := load.share()) is None or share < 0.8:
            assert all(process.is_running() for process in processes)
    assert not any(process.is_running() for process in processes)


def test_busy_processes_end_with_the_block_that_fails() -> None:
    with pytest.raises(KeyboardInterrupt), busy_processes(2) as pids:
        processes = [psutil.Process(pid) for pid in pids]
        raise KeyboardInterrupt
    assert not any(process.is_running() for process in processes)


def test_busy_processes_end_when_their_parent_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        process = psutil.Process(int(holder.stdout.readline()))
        assert process.is_running()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        process.wait(30)
    assert not process.is_running()


def test_ctrl_c_in_the_terminal_does_not_reach_them() -> None:
    with busy_processes(1) as (pid,):
        assert os.getpgid(pid) != os.getpgid(0)
