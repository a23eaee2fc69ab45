"""A command that a signal interrupts."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from flinkplus.cli import main
from flinkplus.errors import FlinkPlusError, InputError
from tests.typed import Command, typed_here


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


@pytest.mark.parametrize("broken", [InputError("Java ended"), None])
def test_what_a_signal_has_broken_is_an_interruption(
    run: Command, monkeypatch: pytest.MonkeyPatch, broken: FlinkPlusError | None
) -> None:
    """A signal to the whole process group ends Java as well, and the command may notice that first."""

    def command(_arguments: object) -> int:
        if broken is None:
            os.kill(os.getpid(), signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert broken is not None
        raise broken

    monkeypatch.setattr(main, "_corpus", command)
    assert run("corpus", "--output", "nowhere", "--words", 1, "--vocabulary", 1) == (
        main.EXIT_INTERRUPTED,
        "",
        "interrupted; the job was ended\n",
    )
    monkeypatch.setattr(main, "_corpus", lambda _arguments: 0)
    assert run("corpus", "--output", "nowhere", "--words", 1, "--vocabulary", 1)[0] == main.EXIT_OK, (
        "the next command is another one"
    )
