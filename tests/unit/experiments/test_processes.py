"""CPU and memory of this process and its children, by name."""

from __future__ import annotations

import subprocess
import sys
import time

from experiments.cluster.processes import Reading
from experiments.harness.processes import ProcessSampler, UsageSampler

BUSY = "import time\nprint('up', flush=True)\nwhile True: pass"
IDLE = "import time\nprint('up', flush=True)\nwhile True: time.sleep(9)"


def test_usage_by_process() -> None:
    programs = {code: subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for code in (BUSY, IDLE)}
    try:
        for one in programs.values():
            assert one.stdout is not None and one.stdout.readline() == b"up\n"
        begun_s = time.process_time()
        with ProcessSampler(lambda: {3: programs[BUSY].pid}, period_s=0.05) as sampler:
            while time.process_time() - begun_s < 0.3:  # this process is the busy driver
                pass
    finally:
        for one in programs.values():
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()
    figures = sampler.figures()
    assert set(figures["processes"]) - {"spark"} == {
        "driver",
        "slot 3",
        "other",
    }  # a session of another test may be there
    assert figures["processes"]["driver"]["cpu_s"] >= 0.2
    assert figures["processes"]["slot 3"]["cpu_s"] > 0 and figures["processes"]["other"]["cpu_s"] < 0.1
    assert all(row["rss_mb_max"] >= row["rss_mb"] > 1 for row in figures["processes"].values())
    assert figures["total"]["cpu_s"] <= sum(row["cpu_s"] for row in figures["processes"].values()) + 1e-3
    assert abs(figures["total"]["cores"] - figures["total"]["cpu_s"] / figures["span_s"]) < 0.02


def test_a_process_that_dies_and_one_that_is_not_there() -> None:
    with subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None and one.stdout.readline() == b"up\n"
        with ProcessSampler(lambda: {0: one.pid, 1: 2**22 + 1}, period_s=0.01) as sampler:
            one.kill()
            one.wait()
    assert sampler.figures()["processes"]["slot 0"]["rss_mb"] > 1


def test_samples_say_what_was_spent_since_the_last() -> None:
    """Process ``a`` had run before; ``b`` is born later and dies; ``c``, of the same name as ``b``, is born then."""
    taken = iter(
        [
            [Reading("a", "driver", 7.0, 100.0)],
            [Reading("a", "driver", 7.5, 110.0), Reading("b", "slot 0", 0.2, 50.0)],
            [Reading("a", "driver", 7.5, 120.0), Reading("c", "slot 0", 0.3, 40.0)],
        ]
    )
    sampler = UsageSampler(lambda: next(taken), period_s=0.01)
    with sampler:
        while sampler.failed is None:  # there are no further readings
            time.sleep(0.01)
    assert "StopIteration" in sampler.failed
    assert [sample.cpu_s for sample in sampler.samples] == [
        {"driver": 0.0},
        {"driver": 0.5, "slot 0": 0.2},
        {"driver": 0.0, "slot 0": 0.3},
    ]
    assert sampler.samples[1].rss_mb == {"driver": 110.0, "slot 0": 50.0}
    processes = sampler.figures()["processes"]
    assert (processes["driver"]["cpu_s"], processes["slot 0"]["cpu_s"]) == (0.5, 0.5)
    assert (processes["slot 0"]["rss_mb"], processes["slot 0"]["rss_mb_max"]) == (45.0, 50.0)
