"""The command line in this process, as it is typed and read."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flinkplus.cli import main

Command = Callable[..., tuple[int, str, str]]
"""Runs a command; returns exit code, stdout and stderr."""


@contextmanager
def typed_here(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """A ``Command``. What commands do to the handlers of signals ends with the block."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main.main([str(argument) for argument in arguments])
        except SystemExit as left:
            assert isinstance(left.code, int)
            code = left.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)
