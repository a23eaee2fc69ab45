"""What a user meets first: typed options, misspelt names, how objects show themselves, imports from ``flinkplus``."""

from __future__ import annotations

import dataclasses
import inspect
import os
import types
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import flinkplus
from flinkplus import JobHandle, JobOptions, StreamEnvironment, config, errors
from flinkplus.config import Options, options_from
from flinkplus.errors import ConfigurationError, FlinkPlusError
from flinkplus.job_options import RunOptions
from tests.typed import typed_here
from tests.unit.api.drawing import environment, numbers

OPTIONS = {field.name for field in dataclasses.fields(Options)}
INTERNAL = {
    "ControlMessageTooLarge",
    "ForeignMessage",
    "InvariantViolation",
    "PeerProtocolError",
    "PeerRefused",
    "UnsafeName",
}
"""Errors between the processes of a job, which end in a recovery and not in the user's program."""


# --- typed options


def test_every_option_is_a_typed_argument() -> None:
    assert set(JobOptions.__annotations__) == OPTIONS
    assert set(RunOptions.__annotations__) == OPTIONS - {"checkpoint_dir"}
    assert not JobOptions.__required_keys__
    for function, typed in ((StreamEnvironment.__init__, JobOptions), (StreamEnvironment.resume, RunOptions)):
        (keywords,) = (p for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_KEYWORD)
        assert keywords.annotation == f"Unpack[{typed.__name__}]"


def parts(hint: Any) -> set[Any]:
    """The alternatives of a type; the values of a ``Literal`` each for itself."""
    if typing.get_origin(hint) is Literal:
        return set(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set().union(*map(parts, typing.get_args(hint)))
    return {hint}


def test_the_types_are_those_of_the_options() -> None:
    typed, plain = typing.get_type_hints(JobOptions), typing.get_type_hints(Options)
    words = {
        "checkpoint_mode": config.CHECKPOINT_MODES,
        "guarantee": config.GUARANTEES,
        "recovery": config.RECOVERY_MODES,
        "failback": config.FAILBACK_MODES,
        "transport": config.TRANSPORTS,
        "encoding_errors": ("replace", "strict"),
    }
    for name in OPTIONS:
        given = parts(typed[name]) - {os.PathLike[str]}
        assert given == (set(words[name]) if name in words else parts(plain[name])), name


# --- a wrong value


@pytest.mark.parametrize("given", ["books/", None, [1, 2]])
def test_what_is_no_dataframe_is_named(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"from_spark takes a DataFrame, such as .*, not "):
        environment().from_spark(given)


# --- a misspelt name


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("paralelism", "parallelism"),
        ("checkpoint_intervall", "checkpoint_interval"),
        ("checkpointInterval", "checkpoint_interval"),
        ("replica", "replicas"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_one_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        environment(**{given: 2})
    assert str(caught.value).startswith(f"unknown option {given!r}; did you mean {meant!r}? (")
    with pytest.raises(ConfigurationError) as caught:
        options_from({f"spark.flinkplus.{given}x": "2"}, {})
    key = config.conf_key(meant)
    assert str(caught.value) == f"unknown configuration key 'spark.flinkplus.{given}x'; did you mean {key!r}?"


def test_a_name_like_no_option_is_answered_with_where_they_are() -> None:
    with pytest.raises(ConfigurationError) as caught:
        environment(colour="red")
    assert str(caught.value).startswith("unknown option 'colour'; docs/options.md lists all options (")


# --- what objects show


def test_what_is_drawn_shows_itself() -> None:
    env = environment(parallelism=3)
    assert repr(env) == "<StreamEnvironment: nothing drawn; parallelism 3; not executed>"
    rows = numbers(env, "rows")
    assert repr(rows) == "<Stream 'rows': k string, v int64>"
    assert repr(rows.key_by("k")) == "<KeyedStream 'rows' by k: k string, v int64>"
    assert repr(rows.gather()) == "<KeyedStream 'rows' by all rows together: k string, v int64>"
    marked = rows.with_watermark("v", "1 second")
    windows = marked.key_by("k").tumbling_window("v", "1 minute")
    assert repr(windows) == f"<WindowedStream of 60000 ms of 'v' over {marked.key_by('k')!r}>"
    assert repr(rows.union(numbers(env, "more"))) == "<Stream 'union': k string, v int64>"
    assert repr(env).startswith("<StreamEnvironment: rows, with_watermark, more")


def test_a_job_shows_its_name_and_state() -> None:
    coordinator = SimpleNamespace(view=SimpleNamespace(state="running"))
    running: Any = SimpleNamespace(name="clicks", job_id="job-1", coordinator=coordinator)
    assert repr(JobHandle(running)) == "<JobHandle 'clicks' (job-1): running>"


# --- one place to import from


def test_every_error_that_a_user_can_meet_comes_from_flinkplus() -> None:
    known = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, FlinkPlusError) and kind.__module__ == errors.__name__
    }
    assert {name for name in known if getattr(flinkplus, name, None) is getattr(errors, name)} == known - INTERNAL
    assert known - INTERNAL <= set(flinkplus.__all__)


def test_the_whole_api_comes_from_flinkplus() -> None:
    assert dir(flinkplus) == sorted(flinkplus.__all__)
    for name in flinkplus.__all__:
        assert getattr(flinkplus, name) is not None
    with pytest.raises(AttributeError, match="module 'flinkplus' has no attribute 'StreamEnvironmnet'"):
        _ = flinkplus.StreamEnvironmnet


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with typed_here(capsys) as command:
        assert command("--version") == (0, f"flinkplus {flinkplus.__version__}\n", "")
    assert f'\nversion = "{flinkplus.__version__}"\n' in (Path(__file__).parents[3] / "pyproject.toml").read_text()
