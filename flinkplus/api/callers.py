"""An error in drawing a job names the line of the user's program.

Rules: only ``ConfigurationError`` and ``InputError`` get that line. The traceback ends one call below the user's line;
the full traceback is logged at debug level.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flinkplus.errors import ConfigurationError, InputError, without_secrets

PACKAGE = f"{Path(__file__).resolve().parents[1]}{os.sep}"
LONGEST_LINE = 200
C = TypeVar("C", bound=type)

log = logging.getLogger("flinkplus.api")


def names_callers_line(cls: C) -> C:
    """Class decorator: errors that its public methods raise about the drawing name the line that called them."""
    for name, method in list(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if inspect.isfunction(method):
            setattr(cls, name, _naming(method))
        elif isinstance(method, (staticmethod, classmethod)):
            setattr(cls, name, type(method)(_naming(method.__func__)))
    return cls


def _naming(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except (ConfigurationError, InputError) as error:
            caller = sys._getframe(1)
            file, number = caller.f_code.co_filename, caller.f_lineno
            if len(error.args) != 1 or file.startswith(PACKAGE):
                raise
            log.debug("traceback", exc_info=True)
            line = linecache.getline(file, number, caller.f_globals).strip()[:LONGEST_LINE]
            place = f"{file}:{number}: {line}" if line else f"{file}:{number}"
            error.args = (without_secrets(f"{error.args[0]} ({place})"),)
            raise error.with_traceback(None) from error.__cause__

    return call
