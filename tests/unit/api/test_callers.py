"""Errors in a drawing name the user's line; those of a user's function, theirs."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from flinkplus import StreamEnvironment
from flinkplus import functions as F
from flinkplus.api.callers import PACKAGE, names_callers_line
from flinkplus.api.streams.stream import Stream
from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.row import make_row, row_type, user_error
from tests.unit.api.drawing import environment, numbers

WRONG: list[Callable[[StreamEnvironment, Stream], Any]] = [
    lambda env, stream: stream.key_by("kk").count(),
    lambda env, stream: stream.key_by("k").sum("vv"),
    lambda env, stream: stream.deduplicate("kk"),
    lambda env, stream: stream.tokenize("kk"),
    lambda env, stream: stream.with_watermark("vv", "10 seconds"),
    lambda env, stream: stream.with_watermark("v", "10 seconds").key_by("k").tumbling_window("vv", "1 s").count(),
    lambda env, stream: stream.key_by("k").top(3, by="vv", item="v"),
    lambda env, stream: stream.total("vv"),
    lambda env, stream: stream.select("kk || '!' AS k"),
    lambda env, stream: stream.with_columns({"sum": F.col("vv") + 1}),
    lambda env, stream: stream.where("vv > 1"),
    lambda env, stream: stream.drop("kk"),
    lambda env, stream: stream.rename({"kk": "key"}),
]


@pytest.mark.parametrize("draw", WRONG)
def test_a_wrong_column_names_the_users_line(draw: Callable[[StreamEnvironment, Stream], Any]) -> None:
    env = environment()
    stream = numbers(env, "numbers")
    with pytest.raises(ConfigurationError) as caught:
        draw(env, stream)
    line = draw.__code__.co_firstlineno
    message = str(caught.value)
    assert f"({__file__}:{line}: lambda env, stream: stream." in message and "\n" not in message
    assert "did you mean 'k'?" in message or "did you mean 'v'?" in message
    *_, user, wrapper = traceback.extract_tb(caught.value.__traceback__)
    assert (user.filename, user.lineno) == (__file__, line)
    assert wrapper.name == "call", "one frame of FlinkPlus, and no more"
    assert message.count(__file__) == 1


def test_the_environments_own_errors_name_the_line_too() -> None:
    with pytest.raises(ConfigurationError, match=r"parallelism.*drawing\.py:\d+: return StreamEnvironment"):
        environment(parallelism=0)
    env = environment()
    with pytest.raises(InputError, match=rf"\({__file__}:\d+: env.read_text"):
        env.read_text("/nowhere/at/all")
    numbers(env, "numbers")
    with pytest.raises(ConfigurationError, match=rf"no sink.*\({__file__}:\d+: env.execute"):
        env.execute("no sink")


def test_the_users_line_shows_no_secret() -> None:
    stream = numbers(environment(), "numbers")
    with pytest.raises(ConfigurationError) as caught:
        stream.key_by("s3://AKIA:hidden@bucket").count()
    assert "hidden" not in str(caught.value) and f"{__file__}:" in str(caught.value)


def test_static_and_class_methods_name_the_users_line() -> None:
    @names_callers_line
    class Drawn:
        @staticmethod
        def static() -> None:
            raise InputError("nothing here")

        @classmethod
        def of_class(cls) -> None:
            raise InputError(f"nothing in {cls.__name__}")

    for method, text in ((Drawn.static, "nothing here"), (Drawn.of_class, "nothing in Drawn")):
        with pytest.raises(InputError, match=rf"{text} \({__file__}:\d+: method\(\)\)"):
            method()


def test_a_module_beside_the_package_is_the_users() -> None:
    stream = numbers(environment(), "numbers")
    file = f"{PACKAGE.removesuffix(os.sep)}_jobs/wordcount.py"
    count = eval(compile("lambda stream: stream.key_by('kk').count()", file, "eval"))
    with pytest.raises(ConfigurationError, match=rf"\({file}:1"):
        count(stream)


def test_what_is_decorated_looks_as_before() -> None:
    assert list(inspect.signature(Stream.tokenize).parameters) == ["self", "column", "output", "name"]
    assert Stream.tokenize.__doc__ is not None and "words of a text column" in Stream.tokenize.__doc__


def wrong_attribute(row: Any) -> Any:
    return row.vv + 1  # the line


def wrong_item(row: Any) -> Any:
    return sorted([row["vv"]], key=len)  # the line


def wrong_in_a_library(row: Any) -> Any:
    return inspect.signature(row.v)  # the line


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (wrong_attribute, "AttributeError: no column 'vv' among ['k', 'v']; did you mean 'v'?"),
        (wrong_item, "KeyError: no column 'vv' among ['k', 'v']; did you mean 'v'?"),
        (wrong_in_a_library, "TypeError: 1 is not a callable object"),
    ],
)
def test_an_error_of_a_users_function_names_their_line(function: Callable[[Any], Any], cause: str) -> None:
    row = make_row(row_type(("k", "v")), ("a", 1))
    with pytest.raises((AttributeError, KeyError, TypeError)) as caught:
        function(row)
    error = user_error("map", "map[0]", row, caught.value)
    line = function.__code__.co_firstlineno + 1
    assert error.cause == f"{cause} ({__file__}:{line} in {function.__name__})"


def _process(stream: Stream, side_outputs: Any) -> Stream:
    return stream.key_by("k").process(lambda key, row, ctx: [], schema="n long", side_outputs=side_outputs)


@pytest.mark.parametrize(
    "draw",
    [
        lambda stream: stream.rename(["k"]),
        lambda stream: stream.rename({"k": ""}),
        lambda stream: stream.drop(1),
        lambda stream: stream.with_columns([("n", "v + 1")]),
        lambda stream: stream.with_column(1, "v + 1"),
        lambda stream: _process(stream, ["late"]),
        lambda stream: _process(stream, {"": "n long"}),
    ],
)
def test_arguments_of_another_kind_are_errors_of_the_drawing(draw: Callable[[Stream], Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"takes a dict|is a dict|the name of a column|by its name|be called ''"
    ):
        draw(numbers(environment(), "numbers"))
