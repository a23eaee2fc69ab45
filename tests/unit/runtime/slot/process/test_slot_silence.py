"""What a slot says of peers and of a driver that do not answer, and when it gives the driver up."""

from __future__ import annotations

from typing import Any

import pytest

from flinkplus.config import Options
from flinkplus.runtime.slot.process.silence import GIVEN_UP_SHARE, SilenceWatch

OPTIONS = Options(heartbeat_timeout=1.0)


class Silent:
    """The connections and the pulse of a slot."""

    def __init__(self) -> None:
        self.peers: dict[int, int] = {}
        self.deaf = False
        self.said: list[dict[int, int]] = []
        self.told: list[bool] = []
        self.lost: list[str] = []
        slot: Any = self
        self._watch = SilenceWatch(OPTIONS, slot, slot, slot, self.lost.append)

    def silent(self, _now_s: float, _limit_s: float) -> dict[int, int]:
        return dict(self.peers)

    def is_silent(self, _now_s: float, _limit_s: float) -> bool:
        return self.deaf

    def tell(self, deaf: bool) -> None:
        self.told.append(deaf)

    def look(self, now_s: float) -> None:
        self.said.append(self._watch.look(now_s))


@pytest.fixture
def slot() -> Silent:
    return Silent()


def test_who_is_silent_is_noted_with_each_look(slot: Silent) -> None:
    slot.look(1.0)
    slot.peers = {2: 1, 0: 3}
    slot.look(1.1)
    assert slot.said == [{}, {2: 1, 0: 3}]


def test_that_the_driver_does_not_answer_is_said_by_the_pulse(slot: Silent) -> None:
    slot.deaf = True
    slot.look(1.0)
    slot.look(1.1)
    slot.deaf = False
    slot.look(1.2)
    assert slot.told == [True, False] and not slot.lost


def test_a_driver_that_does_not_answer_for_long_is_given_up(slot: Silent) -> None:
    slot.deaf = True
    slot.look(1.0)
    slot.look(1.0 + GIVEN_UP_SHARE)
    assert not slot.lost
    slot.look(1.1 + GIVEN_UP_SHARE)
    (lost,) = slot.lost
    assert "no answer" in lost
