"""Arguments of commands: their types, options of the job, and which running job is meant."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from flinkplus.config import TYPES, Options
from flinkplus.errors import ConfigurationError
from flinkplus.option_rules import help_of, texts
from flinkplus.runtime.operations.access_file import Access, access_of, read_access, the_running_job


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return value


def positive_number(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the job among the arguments."""
    return {name: value for name, value in vars(arguments).items() if name in TYPES}


def add_option(command: argparse.ArgumentParser, name: str, **different: Any) -> None:
    """``--name``, for an option of the job, with its default and its text. ``different``: as for ``add_argument``."""
    (field,) = (field for field in dataclasses.fields(Options) if field.name == name)
    (text,) = (texts(group)[name] for group in Options.__bases__ if name in texts(group))
    rule, default = field.metadata["rule"], different.get("default", field.default)
    given: dict[str, Any] = {"default": default, "help": help_of(text)}
    if default is not None:
        given["help"] += " (default: %(default)s)"
    if rule.choices:
        given["choices"] = rule.choices
    else:
        given["metavar"] = rule.metavar
    if float in (TYPES[name], *getattr(TYPES[name], "__args__", ())):
        given["type"] = positive_number
    elif TYPES[name] is int:
        given["type"] = positive if rule.allows(1) and not rule.allows(0) else int
    command.add_argument(f"--{name.replace('_', '-')}", **{**given, **different})


def add_job_arguments(command: argparse.ArgumentParser) -> None:
    """``--checkpoint-dir`` and ``--access``."""
    command.add_argument("--checkpoint-dir", metavar="DIR", help="the job that keeps its checkpoints here")
    command.add_argument("--access", metavar="FILE", help="the job with this access file (default: the only one here)")


def job_of(arguments: argparse.Namespace) -> Access:
    """The job that is meant. Raises ``NoRunningJob``, ``ConfigurationError``, ``CheckpointDirectoryError``."""
    if arguments.access is not None and arguments.checkpoint_dir is not None:
        raise ConfigurationError("give --checkpoint-dir or --access, not both")
    if arguments.access is not None:
        return read_access(arguments.access)
    if arguments.checkpoint_dir is not None:
        return access_of(arguments.checkpoint_dir)
    return the_running_job()
