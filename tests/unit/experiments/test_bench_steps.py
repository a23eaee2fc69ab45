"""What a step and a message cost: the fit against costs that are known, and every operator of the benchmark once."""

from __future__ import annotations

import pytest

from experiments import bench_steps


def test_the_fit_finds_known_costs() -> None:
    cases = [(parallelism, rows) for parallelism in (2, 4, 8) for rows in (1, 32, 512)]
    found = [300 + 40 * parallelism + 0.5 * parallelism * rows for parallelism, rows in cases]
    assert bench_steps._fit(cases, found) == pytest.approx((300, 40, 0.5))


@pytest.mark.parametrize("operator", bench_steps.OPERATORS)
def test_a_wave_passes_the_whole_job(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each subtask takes one bundle with a message of each producer, and leaves none."""
    waves: list[bench_steps.Waves] = []

    class Watched(bench_steps.Waves):
        def close(self) -> None:
            waves.append(self)
            for subtask in self.subtasks.values():
                assert not any(end.queue for end in subtask.inputs.channels.values())
            super().close()

    monkeypatch.setattr(bench_steps, "Waves", Watched)
    assert bench_steps.wave_us(operator, 2, 3, waves=2) > 0
    (job,) = waves
    out = [subtask.operators.rows_out for subtask in job.subtasks.values()]
    assert out[-2:] == pytest.approx([22 * 6] * 2, abs=30) and sum(out[-2:]) == 22 * 12
