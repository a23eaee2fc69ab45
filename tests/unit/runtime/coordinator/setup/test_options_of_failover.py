"""Options of local failover: what is accepted, what is refused by name, what they become."""

from __future__ import annotations

from typing import Any

import pytest

from flinkplus.config import Options, options_from
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.coordinator.setup.configs import find_strategy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recovery", "hope"),
        ("replicas", 0),
        ("replicas", 2.0),
        ("replicas", True),
        ("placement", "everywhere"),
        ("placement", "module:"),
        ("placement", 3),
        ("failback", "sometimes"),
        ("transport", "pigeons"),
        ("zookeeper", ""),
        ("zookeeper", 2181),
        ("session_timeout", 0.1),
        ("session_timeout", "soon"),
        ("hang_timeout", 0.05),
        ("hang_timeout", "never"),
        ("cache_memory_mb", 0),
        ("sharing_depth", 0),
        ("sharing_depth", True),
        ("sharing_depth", "half"),
    ],
)
def test_what_cannot_work_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        options_from({}, {name: value})


def test_they_can_be_set_in_the_configuration_of_the_session() -> None:
    keys = {
        "recovery": "standby",
        "replicas": "2",
        "zookeeper": "a:1,b:2",
        "sessionTimeout": "1.5",
        "cacheMemoryMb": "8",
    }
    options = options_from({f"spark.flinkplus.{key}": value for key, value in keys.items()}, {})
    assert options == Options(
        recovery="standby", replicas=2, zookeeper="a:1,b:2", session_timeout=1.5, cache_memory_mb=8
    )
    assert options.standbys
    assert options_from({"spark.flinkplus.zookeeper": "none"}, {}).zookeeper is None


def test_the_sharing_depth_is_full_unless_it_is_a_number() -> None:
    for text, depth in (("full", None), ("none", None), ("1", 1), ("7", 7)):
        assert options_from({"spark.flinkplus.sharingDepth": text}, {}).sharing_depth == depth
    assert Options().sharing_depth is None
    with pytest.raises(ConfigurationError, match="sharingDepth must be a number"):
        options_from({"spark.flinkplus.sharingDepth": "deep"}, {})


def test_there_are_no_more_replicas_than_slots() -> None:
    assert [Options(parallelism=p).members for p in (1, 2, 3, 8)] == [1, 2, 3, 3]


def test_who_recovers_beside_the_stream() -> None:
    assert Options(recovery="partial").partial and Options(recovery="partial").local
    assert not Options(recovery="partial").standbys
    assert Options(recovery="partial", parallelism=1).local, "an exception needs no other slot"
    assert not Options(recovery="partial", checkpoint_interval=None).local
    assert Options().local and not Options().partial
    assert not Options(recovery="rollback").local


def test_a_placement_of_the_users_own_is_found_by_its_name() -> None:
    assert find_strategy("spread")(0, (0, 1), {}, 2) == (0, 1)
    assert find_strategy("near") is not find_strategy("spread")
    assert find_strategy("operator:add").__name__ == "add"
    for wrong in ("no_such_module:function", "operator:no_such_function", "math:pi"):
        with pytest.raises(ConfigurationError, match="placement"):
            find_strategy(wrong)
