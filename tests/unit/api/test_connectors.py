"""Sources and sinks of a user's own: how they are drawn, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from flinkplus import ConfigurationError, connectors
from flinkplus.sinks.discard import DiscardSink
from tests.live_source import COLUMNS, Shelves
from tests.unit.api.drawing import environment


class Unnamed(Shelves):
    """A source whose schema is text."""

    schema = cast(Any, "place long, number long, word string")

    def __init__(self) -> None:
        object.__setattr__(self, "shelves", [[]])


class Computed(Unnamed):
    """A source whose schema is computed, as text or as Arrow has it."""

    as_text: bool

    def __init__(self, as_text: bool) -> None:
        super().__init__()
        object.__setattr__(self, "as_text", as_text)

    @property
    def schema(self) -> Any:
        return Unnamed.schema if self.as_text else COLUMNS


def test_a_schema_may_be_a_property() -> None:
    assert environment().from_source(Computed(as_text=False)).schema == COLUMNS
    with pytest.raises(ConfigurationError, match=r"its schema is a property, so it must be place: int64"):
        environment().from_source(Computed(as_text=True))


def test_a_source_has_its_own_name_or_the_one_that_is_given() -> None:
    env = environment()
    source = Shelves("shelves", [[]])
    assert env.from_source(source).name == "shelves"
    assert env.from_source(source, name="others").name == "others"
    assert source.name == "shelves", "it is not changed"
    with pytest.raises(ConfigurationError, match="two operators are called 'shelves'"):
        env.from_source(source)
    made = env.from_source(Unnamed())
    assert made.name == "source" and made.schema == COLUMNS
    assert env.from_source(Unnamed()).name == "source-2"
    with pytest.raises(ConfigurationError, match="from_source takes a Source, not a list"):
        env.from_source(cast(Any, []))


def test_a_sink_has_its_own_name_or_the_one_that_is_given() -> None:
    env = environment()
    stream = env.from_source(Shelves("shelves", [[]]))
    assert stream.to_sink(DiscardSink("out")) == "out"
    assert stream.to_sink(DiscardSink("out"), name="again") == "again"
    sinks = env.graph.sinks()
    assert sorted(sinks) == ["again", "out"] and all(sink.bound_schema == COLUMNS for sink in sinks.values())
    with pytest.raises(ConfigurationError, match="to_sink takes a Sink, not a str"):
        stream.to_sink(cast(Any, "out"))


def test_all_that_connectors_offers_is_there() -> None:
    assert [name for name in connectors.__all__ if not hasattr(connectors, name)] == []
    assert isinstance(COLUMNS, pa.Schema)
