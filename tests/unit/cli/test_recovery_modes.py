"""Every way to recover can be asked for by name, everywhere where there is a choice."""

from __future__ import annotations

import pytest

from experiments.recovery.experiment import RECOVERIES
from flinkplus.cli.main import parser
from flinkplus.config import RECOVERY_MODES


@pytest.mark.parametrize("mode", RECOVERY_MODES)
def test_wordcount(mode: str) -> None:
    assert parser().parse_args(["wordcount", "--recovery", mode]).recovery == mode


def test_the_experiment_on_recoveries_compares_any_of_them() -> None:
    assert sorted(RECOVERIES) == sorted(RECOVERY_MODES)
    parse = parser().parse_args
    assert parse(["experiment", "recovery", "--recovery", ",".join(RECOVERIES)]).recovery == RECOVERIES
    assert parse(["experiment", "recovery"]).recovery == ("standby", "rollback")


def test_the_experiment_on_exactness_is_about_local_ones() -> None:
    parse = parser().parse_args
    assert parse(["experiment", "exactness", "--recovery", "partial"]).recovery == "partial"
    with pytest.raises(SystemExit):
        parse(["experiment", "exactness", "--recovery", "rollback"])
