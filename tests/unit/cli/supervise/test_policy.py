"""Which driver is started again, and when."""

from __future__ import annotations

import pytest

from flinkplus.cli.supervise.policy import STABLE_S, RestartPolicy, exit_code, how_it_ended


def pauses(policy: RestartPolicy, count: int, code: int = 1, ran_s: float = 1.0) -> list[float | None]:
    return [policy.judge(code, ran_s).pause_s for _ in range(count)]


def test_pauses_grow_until_it_gives_up() -> None:
    assert pauses(RestartPolicy(10), 11) == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, None]
    policy = RestartPolicy(1)
    assert pauses(policy, 1, code=-9) == [0.0]
    assert policy.judge(3, 1.0).text == "the driver ended with exit code 3; giving up after 1 restarts in a row"
    assert pauses(RestartPolicy(0), 1) == [None]


def test_a_driver_that_ran_for_long_begins_a_new_count() -> None:
    policy = RestartPolicy(2)
    assert pauses(policy, 2) == [0.0, 1.0]
    assert pauses(policy, 2, ran_s=STABLE_S) == [0.0, 0.0]
    assert pauses(policy, 2) == [1.0, None]


@pytest.mark.parametrize(("code", "text"), [(0, "ended well"), (2, "usage error")])
def test_what_is_not_started_again(code: int, text: str) -> None:
    verdict = RestartPolicy(10).judge(code, 1.0)
    assert verdict.pause_s is None and text in verdict.text


def test_words_and_exit_codes() -> None:
    assert [how_it_ended(code) for code in (1, -9, -99)] == [
        "the driver ended with exit code 1",
        "the driver was killed by SIGKILL",
        "the driver was killed by signal 99",
    ]
    assert [exit_code(code) for code in (0, 3, -9)] == [0, 3, 137]
