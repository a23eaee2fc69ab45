"""Logs say whose they are, in lines that programs or people read."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flinkplus.config import Options, options_from
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.base.logs import FIELDS, LOGGERS, about, checked, install, speak_as, uninstall, wanted

log = logging.getLogger("flinkplus.coordinator")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    uninstall()
    speak_as()
    speak_as(whole_process=True)


def lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.readouterr().err.splitlines()]


def test_json_has_every_field_in_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    install("json")
    speak_as(whole_process=True, job="abc", slot=2)
    log.info("subtask %s failed", "count[1]", extra=about(subtask="count[1]", generation=3, phase="detect"))
    logging.getLogger("chain_backup.zookeeper.client").warning("it's ü\nand more")
    log.debug("not asked for")
    first, second = lines(capsys)
    assert list(first) == ["time", "level", "logger", *FIELDS, "message"] == list(second)
    time = first.pop("time")
    assert len(time) == len("2026-01-01T00:00:00.000Z") and time.endswith("Z")
    assert first == {
        "level": "info",
        "logger": "flinkplus.coordinator",
        "job": "abc",
        "slot": 2,
        "subtask": "count[1]",
        "generation": 3,
        "phase": "detect",
        "message": "subtask count[1] failed",
    }
    assert (second["message"], second["subtask"], second["job"]) == ("it's ü\nand more", None, "abc")


def test_people_read_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    install("text:debug")
    speak_as(whole_process=True, job="abc", slot=0)
    log.debug("begins", extra=about(phase="replay"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line[12:] == " debug flinkplus.coordinator: begins job=abc slot=0 phase=replay"


@pytest.mark.parametrize("form", ["json", "text"])
def test_what_was_raised_is_told(capsys: pytest.CaptureFixture[str], form: str) -> None:
    install(form)
    try:
        raise KeyError("oh")
    except KeyError:
        log.exception("failed")
    told = capsys.readouterr().err
    assert "KeyError: 'oh'" in (json.loads(told)["exception"] if form == "json" else told)


def test_two_jobs_of_one_process_are_told_apart_by_their_threads(capsys: pytest.CaptureFixture[str]) -> None:
    install("json")
    speak_as(whole_process=True, job="the process's")

    def run(job: str) -> None:
        speak_as(job=job)
        log.info("here")

    for job in ("a", "b"):
        thread = threading.Thread(target=run, args=(job,))
        thread.start()
        thread.join()
    log.info("here")
    log.info("here", extra=about(job="c"))
    assert [line["job"] for line in lines(capsys)] == ["a", "b", "the process's", "c"]


def test_without_it_logging_is_the_programs_own(caplog: pytest.LogCaptureFixture) -> None:
    install(None)
    log.warning("to whom it may concern")
    assert caplog.records[-1].message == "to whom it may concern"
    assert all(not logging.getLogger(name).handlers for name in LOGGERS)
    install("json")
    install("text")
    assert all(len(logging.getLogger(name).handlers) == 1 for name in LOGGERS)
    uninstall()
    assert all(not logging.getLogger(name).handlers and logging.getLogger(name).propagate for name in LOGGERS)


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked("json") == ("json", logging.INFO) and checked("text:error") == ("text", logging.ERROR)
    monkeypatch.delenv("FLINKPLUS_LOG", raising=False)
    assert wanted(None) is None and wanted("json") == "json"
    monkeypatch.setenv("FLINKPLUS_LOG", "text:debug")
    assert wanted(None) == "text:debug" and wanted("json") == "json"
    monkeypatch.setenv("FLINKPLUS_LOG", "xml")
    for wrong in (None, "json:loud", "json:", ":info"):
        if wrong != "json:":
            with pytest.raises(ConfigurationError, match="FLINKPLUS_LOG"):
                wanted(wrong)
    assert options_from({"spark.flinkplus.log": "json", "spark.flinkplus.allowInject": "false"}, {}) == Options(
        log="json", allow_inject=False
    )
    with pytest.raises(ConfigurationError, match="allow_inject must be True or False"):
        options_from({"spark.flinkplus.allowInject": "perhaps"}, {})
