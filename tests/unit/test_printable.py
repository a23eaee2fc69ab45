"""Text from outside is one printable line of limited length wherever an error, a log or a terminal shows it."""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
from chain_backup.zookeeper.records import SlotRecord
from flinkplus.cli import main as cli
from flinkplus.cli import status
from flinkplus.errors import (
    CheckpointDirectoryError,
    CommandRefused,
    ConfigurationError,
    FlinkPlusError,
    JobRunsElsewhere,
    NoRunningJob,
    UserFunctionError,
    described,
    first_line,
)
from flinkplus.operators.base.row import user_error
from flinkplus.printable import escaped, printable
from flinkplus.runtime.base import logs
from flinkplus.runtime.base.step_note import FIELDS, NUMBERS, parse
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.job.directory import LOCK_FILE, Claim
from flinkplus.runtime.operations import access_file as access
from flinkplus.runtime.operations.commands import decode_reply
from flinkplus.sinks.earlier import OutputForm
from flinkplus.sinks.file_committer import FileCommitter
from flinkplus.sinks.files import OutputFiles
from flinkplus.state.durable.storage import CheckpointStorage
from tests.fuzz.messages import assert_readable
from tests.fuzz.mutate import HOSTILE, LONG


def test_what_is_not_printable_is_escaped_as_json_does_it() -> None:
    assert escaped("a b ü 語 \\n \U0001f600") == "a b ü 語 \\n \U0001f600"
    assert escaped("\n\t\x1b[2J\x7f\x9b\u202e\u2028\ud800") == r"\n\t\u001b[2J\u007f\u009b\u202e\u2028\ud800"
    assert escaped("a\nb\rc", keep="\n") == "a\nb\\rc"
    assert json.loads(f'"{escaped(HOSTILE)}"') == HOSTILE
    assert json.loads(f'"{escaped(chr(0xE0001))}"') == chr(0xE0001)
    assert escaped(escaped(HOSTILE)) == escaped(HOSTILE)


def test_what_is_cut_says_so() -> None:
    assert printable("a" * 200) == "a" * 200
    assert printable("a" * 1234) == "a" * 200 + "... (1,234 characters)"
    assert printable("\n" * 150) == "\\n" * 100 + "... (150 characters)"
    assert printable({"a": 1}) == "{'a': 1}" and printable(None) == "None"


def test_no_error_of_ours_has_an_escape_sequence() -> None:
    error = pickle.loads(pickle.dumps(FlinkPlusError(f"two\n\tlines: {HOSTILE}")))
    assert str(error).startswith("two\n\tlines: ") and escaped(str(error), keep="\n\t") == str(error)
    assert_readable(Exception(described(ValueError(HOSTILE)), first_line(ValueError(LONG))))
    assert len(described(ValueError("a" * 1_000_000))) < 5_000


def test_the_error_of_a_function_is_one_line_that_ends_with_its_row() -> None:
    error = user_error("map", "map[0]", {"value": HOSTILE}, ValueError("a" * 1_000_000 + HOSTILE))
    assert isinstance(error, UserFunctionError)
    assert str(error).isprintable() and len(str(error)) < 4_000 and "input row: {'value'" in str(error)


class TestControlMessages:
    def test_texts_are_printable_and_limited(self) -> None:
        failure = control.Failed(1, "count[1]", "E", LONG * 100, "count", HOSTILE, cause=HOSTILE)
        found: Any = control.decode(control.encode(failure))
        for text in (found.reason, found.row, found.cause):
            assert text.isprintable() and len(text) <= control.MAX_TEXT_CHARACTERS + 50

    def test_a_trace_keeps_its_lines(self) -> None:
        found: Any = control.decode(control.encode(control.StartFailed(0, 1, 2, "h\n", "E", "no", "a\n\tb\x1b[2J")))
        assert (found.trace, found.host) == ("a\n\tb\\u001b[2J", "h\\n")


def test_a_slot_in_zookeeper_and_last_words_are_printable() -> None:
    record, _ = SlotRecord.decode(1, SlotRecord(HOSTILE, LONG, 1, 2).encode(3))
    words = parse("pulse", json.dumps({"numbers": bytes(8 * FIELDS).hex(), "text": LONG, "signal": HOSTILE}).encode())
    assert NUMBERS.size == 8 * FIELDS
    for text in (record.address, record.host, words.text, words.signal):
        assert text.isprintable() and len(text) < 350


class TestFiles:
    def test_the_job_of_a_checkpoint_directory(self, tmp_path: Path) -> None:
        shape = {f"{HOSTILE}{n}": LONG for n in range(5)}
        CheckpointStorage(tmp_path).ownership.prepare({"name": "x", "fingerprint": LONG, "shape": shape}, False)
        for mine in ({"name": "x", "fingerprint": "y", "shape": {}}, {"name": "y", "fingerprint": LONG}):
            with pytest.raises(CheckpointDirectoryError, match="another job") as caught:
                CheckpointStorage(tmp_path).ownership.prepare(mine, True)
            assert str(caught.value).isprintable() and len(str(caught.value)) < 2_500

    def test_who_holds_the_lock(self, tmp_path: Path) -> None:
        held = os.open(tmp_path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.write(held, HOSTILE.encode())
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(JobRunsElsewhere) as caught:
                Claim(str(tmp_path))
            assert_readable(caught.value)
        finally:
            os.close(held)

    def test_where_the_access_file_is(self, tmp_path: Path) -> None:
        storage = CheckpointStorage(tmp_path)
        storage.ownership.prepare({"name": "x", "fingerprint": "y"}, False)
        said = {"format": 1, "job_id": "j", "host": LONG, "file": f"/nowhere{HOSTILE}/{access.ACCESS_FILE}"}
        storage.blobs.put(access.ACCESS_BLOB, json.dumps(said).encode())
        with pytest.raises(NoRunningJob, match="driver is on") as caught:
            access.access_of(str(tmp_path))
        assert_readable(caught.value)

    def test_what_an_access_file_says(self) -> None:
        said = {"format": 1, "job_id": "j", "name": LONG, "address": "h:1", "host": HOSTILE, "pid": 1}
        said |= {"created_s": 1.0, "key": "00", "tls": None}
        found = access.parse_access(json.dumps(said).encode(), "x")
        assert found.name.isprintable() and found.host.isprintable() and len(found.name) < 250
        with pytest.raises(ConfigurationError) as caught:
            access.parse_access(json.dumps({**said, "pid": HOSTILE}).encode(), "x")
        assert_readable(caught.value)

    def test_what_is_in_an_output_directory(self, tmp_path: Path) -> None:
        (tmp_path / "a\x1b[2J\n\u202eb").touch()
        committer = FileCommitter(OutputFiles(str(tmp_path)), "job", "out", OutputForm())
        with pytest.raises(FlinkPlusError, match="not empty") as caught:
            committer.prepare(False)
        assert_readable(caught.value)

    def test_the_log_of_a_zookeeper_server(self, tmp_path: Path) -> None:
        (tmp_path / "server.log").write_text(f"first\nGot {HOSTILE}\nlast" + "\x1b" * 1_000)
        server: Any = EmbeddedZooKeeper.__new__(EmbeddedZooKeeper)
        server._directory = tmp_path
        _, *lines = EmbeddedZooKeeper._last_words(server, "ended").split("\n")
        assert lines[0] == "  first" and all(line.isprintable() and len(line) < 550 for line in lines)


class TestTerminal:
    def test_a_refusal_of_the_job(self) -> None:
        with pytest.raises(CommandRefused) as caught:
            decode_reply(json.dumps({"v": 1, "error": LONG * 100}).encode())
        assert str(caught.value).isprintable() and len(str(caught.value)) < 2_100

    def test_status_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        status._print({"host": HOSTILE, "name": "ü"}, True)
        line = capsys.readouterr().out.removesuffix("\n")
        assert line.isprintable() and "ü" in line and json.loads(line)["host"] == HOSTILE

    def test_an_error_and_its_cause(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_arguments: argparse.Namespace) -> int:
            raise ConfigurationError("no") from OSError(HOSTILE)

        monkeypatch.setattr(cli, "_corpus", fail)
        code = cli.main(["corpus", "--words", "1", "--vocabulary", "1", "--output", "x"])
        told = capsys.readouterr().err
        assert code == cli.EXIT_USAGE and told.startswith("flinkplus: no (")
        assert escaped(told, keep="\n") == told


class TestLogs:
    @pytest.fixture(autouse=True)
    def ours(self) -> Any:
        yield
        logs.uninstall()

    @pytest.mark.parametrize("form", ["text", "json"])
    def test_a_record_is_one_printable_line(self, form: str, capsys: pytest.CaptureFixture[str]) -> None:
        logs.install(form)
        logging.getLogger("flinkplus.x").warning("%s", HOSTILE, extra=logs.about(subtask=HOSTILE))
        line = capsys.readouterr().err.removesuffix("\n")
        assert line.isprintable()
        assert form == "text" or json.loads(line)["message"] == json.loads(line)["subtask"] == HOSTILE

    def test_no_line_of_an_exception_passes_for_a_record(self, capsys: pytest.CaptureFixture[str]) -> None:
        logs.install("text")
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logging.getLogger("flinkplus.x").exception("failed")
        first, *others = capsys.readouterr().err.split("\n")[:-1]
        assert "flinkplus.x: failed" in first and all(line.startswith("  ") for line in others)
        assert all(line.isprintable() for line in others) and "ValueError" in "".join(others)
