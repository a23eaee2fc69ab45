"""Pickles are read without running code of their authors, and shown as JSON."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json
import os
import pickle
import uuid
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row

from flinkplus.errors import CorruptState
from flinkplus.state.objects import PICKLE_PROTOCOL
from flinkplus.state.reading.plain_objects import StandIn, to_json, unpickled

HERE = __name__


@dataclasses.dataclass
class Session:
    user: str
    clicks: list[int]


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    b: bytes


class Color(enum.Enum):
    RED = 1


class Basket(list):
    pass


class Prices(dict):
    pass


Point = collections.namedtuple("Point", "x y")
MOMENT = datetime.datetime(2026, 1, 31, 12, 0, tzinfo=ZoneInfo("Europe/Berlin"))
PLAIN = [
    (None, None),
    (True, True),
    (12, 12),
    (2.5, 2.5),
    (float("nan"), "nan"),
    ("a\n", "a\n"),
    (b"\x00\x01", "AAE="),
    (bytearray(b"a"), "YQ=="),
    ([1, (2, {3})], [1, [2, [3]]]),
    ({"a": {1: "b", (1, 2): None}}, {"a": {"1": "b", "[1, 2]": None}}),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset("ba"), ["a", "b"]),
    (collections.deque([1]), [1]),
    (collections.Counter("aab"), {"a": 2, "b": 1}),
    (collections.OrderedDict(a=1), {"a": 1}),
    (collections.defaultdict(list, a=[1]), {"a": [1]}),
    (Decimal("1.50"), "1.50"),
    (Fraction(1, 3), "1/3"),
    (1 + 2j, "(1+2j)"),
    (MOMENT, "2026-01-31T11:00:00+00:00"),
    (MOMENT.replace(tzinfo=None), "2026-01-31T12:00:00"),
    (datetime.date(2026, 1, 31), "2026-01-31"),
    (datetime.time(1, 2), "01:02:00"),
    (datetime.timedelta(hours=1), "1:00:00"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (np.int64(5), 5),
    (np.float32(0.5), 0.5),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.arange(3.0), [0.0, 1.0, 2.0]),
    (range(3), [0, 1, 2]),
    (Row(a=1, b="x"), {"a": 1, "b": "x"}),
]


def stored(value: Any) -> Any:
    return json.loads(to_json(unpickled(pickle.dumps(value, PICKLE_PROTOCOL))))


@pytest.mark.parametrize(
    ("value", "shown"), PLAIN, ids=[f"{at} {type(value).__name__}" for at, (value, _) in enumerate(PLAIN)]
)
def test_plain_data_is_as_it_was(value: Any, shown: Any) -> None:
    found = unpickled(pickle.dumps(value, PICKLE_PROTOCOL))
    assert type(found) is type(value) and (repr(found) == repr(value) or found == value)
    assert stored(value) == shown


OWN = [
    (Session("ann", [1, 2]), {"class": f"{HERE}.Session", "state": {"user": "ann", "clicks": [1, 2]}}),
    (Color.RED, {"class": f"{HERE}.Color", "args": [1]}),
    (Point(1, "y"), {"class": f"{HERE}.Point", "args": [1, "y"]}),
    (Basket([1, 2]), {"class": f"{HERE}.Basket", "items": [1, 2]}),
    (Prices(a=1), {"class": f"{HERE}.Prices", "items": [["a", 1]]}),
    (Session, {"class": f"{HERE}.Session"}),
    ({"s": [Session("bob", [])]}, {"s": [{"class": f"{HERE}.Session", "state": {"user": "bob", "clicks": []}}]}),
    ({Color.RED: 1}, {f'{{"class": "{HERE}.Color", "args": [1]}}': 1}),
    (Path("/a"), {"class": "pathlib.PosixPath", "args": ["/", "a"]}),
]


@pytest.mark.parametrize(("value", "shown"), OWN, ids=[type(value).__name__ for value, _ in OWN])
def test_what_a_class_holds_is_shown_without_the_class(value: Any, shown: Any) -> None:
    assert stored(value) == shown
    assert json.loads(to_json(unpickled(cloudpickle.dumps(value)))) == shown


class Zone(datetime.tzinfo):
    def utcoffset(self, moment: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(0)

    dst = utcoffset

    def tzname(self, moment: datetime.datetime | None) -> str:
        return "here"


def test_a_time_in_a_zone_of_another_class() -> None:
    assert f"{HERE}.Zone" in to_json(unpickled(pickle.dumps(MOMENT.replace(tzinfo=Zone()), PICKLE_PROTOCOL)))


def test_slots() -> None:
    assert "YQ==" in to_json(unpickled(pickle.dumps(Slotted(1, b"a"), PICKLE_PROTOCOL)))


def test_classes_and_functions_by_value_are_not_made() -> None:
    class Local:
        def __init__(self) -> None:
            self.a = 1

        def __setstate__(self, state: Any) -> None:
            raise AssertionError("ran")

    found = unpickled(cloudpickle.dumps([Local(), lambda: 1]))
    assert all(isinstance(each, StandIn) or issubclass(each, StandIn) for each in found)


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_no_code_runs(tmp_path: Path) -> None:
    victim = tmp_path / "made"
    assert to_json(unpickled(pickle.dumps(Evil(str(victim))))) == json.dumps(
        {"class": f"{os.mkdir.__module__}.mkdir", "args": [str(victim)]}
    )
    assert not victim.exists()
    eval_it = b"c__builtin__\neval\n(S'1/0'\ntR."
    assert to_json(unpickled(eval_it)) == '{"class": "__builtin__.eval", "args": ["1/0"]}'


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps([1, 2])[:-3], b"\x80\x05K\x01\x8c"])
def test_damage(data: bytes) -> None:
    with pytest.raises(CorruptState, match="cannot be read"):
        unpickled(data)


def test_what_contains_itself_is_cut() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert '"..."' in to_json(unpickled(pickle.dumps(loop)))
    assert to_json(object()).startswith('"<object object')
