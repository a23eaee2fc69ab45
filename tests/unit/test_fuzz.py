"""A little of ``make fuzz`` in every run of the tests, and the fuzzer itself: it finds what it is there to find."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from chain_backup.replication import frames
from chain_backup.zookeeper.errors import BadRecord
from chain_backup.zookeeper.records import ChainRecord
from flinkplus import path_names
from flinkplus.documents import parse_document
from flinkplus.errors import CorruptCheckpoint, CorruptState, PeerProtocolError
from flinkplus.protocol.determinants.determinants import decode_spans
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_channel, parse_subtask
from flinkplus.runtime.control.spans import digests_from_json, spans_from_json
from flinkplus.runtime.slot.subtasks.log_codec import MessageCodec
from flinkplus.sinks import spark_log
from flinkplus.state.durable.manifests import MANIFEST_MAGIC
from flinkplus.state.durable.seals import signed
from flinkplus.state.durable.storage import CheckpointStorage
from tests.fuzz import __main__ as fuzzer
from tests.fuzz.mutate import HOSTILE, LONG, places
from tests.fuzz.targets import Target, _wire_seeds, targets
from tests.handles import handle_of

CASES = 400
ALL = {target.name: target for target in targets()}


@pytest.mark.parametrize("name", ALL)
def test_only_documented_errors_come_of_mutated_input(name: str) -> None:
    for number in range(CASES):
        fuzzer.run_case(ALL[name], 7, number)


@pytest.mark.parametrize("name", ALL)
def test_examples_are_valid_and_most_cases_are_not(name: str) -> None:
    target = ALL[name]
    if target.name in ("handshake", "pulse", "stream", "zookeeper"):
        return  # these tell by what they return
    for seed in target.seeds:
        data = signed(MANIFEST_MAGIC, seed, "", None, None) if name == "manifest" else seed
        if name == "codec" and seed == target.seeds[-1]:
            continue  # several messages, where one is expected
        target.decode(data)
    refused = 0
    for number in range(CASES):
        try:
            target.decode(target.case(random.Random(number)))
        except target.errors:
            refused += 1
    assert CASES // 10 < refused < CASES


def _hostile(target: Target) -> Iterator[bytes]:
    """Each example with text from hostile hands in every place."""
    for seed in target.seeds:
        try:
            ways = places(json.loads(seed))
        except ValueError:
            for at in range(0, min(len(seed), 400), 7):
                yield seed[:at] + LONG.encode() + seed[at:]
            continue
        for *way, last in filter(None, ways):
            for change in ({last: HOSTILE}, {last: LONG}, {last: [LONG]}, {last: {LONG: HOSTILE}}, {LONG: None}):
                document = inside = json.loads(seed)
                for step in way:
                    inside = inside[step]
                if isinstance(inside, dict) and change.keys() == {LONG}:
                    inside[LONG] = inside.pop(last)
                elif isinstance(inside, dict):
                    inside.update(change)
                elif last in change:
                    inside[last] = change[last]
                yield json.dumps(document).encode()


@pytest.mark.parametrize("name", ALL)
def test_errors_about_hostile_text_are_printable_and_short(name: str) -> None:
    for number, data in enumerate(_hostile(ALL[name])):
        sealed = ALL[name].reseal(random.Random(number), data)
        fuzzer.run_data(ALL[name], sealed, f"hostile case {number} of {name}")


NAMING = ("control", "access", "replication", "handle", "manifest", "step", "output list", "whereabouts")


@pytest.mark.parametrize("name", NAMING)
def test_a_decoder_that_lets_a_name_through_unchecked_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_names, "_pattern", lambda _parts, _longest: re.compile(r".*\Z", re.DOTALL))
    monkeypatch.setattr(spark_log, "checked_foreign", lambda name: name)
    with pytest.raises(fuzzer.Finding, match="AssertionError"):
        for number in range(20 * CASES):
            fuzzer.run_case(ALL[name], 7, number)


def _planted(data: bytes) -> object:
    if b"c" in data:
        raise IndexError("a fault")
    if b"d" in data:
        os._exit(3)
    if b"e" in data:
        time.sleep(60)
    if b"f" in data:
        return bytearray(8 << 30)
    return None


@pytest.mark.parametrize(
    ("seed", "told"), [(b"c", "IndexError"), (b"d", "ended its process"), (b"e", "takes longer"), (b"f", "MemoryError")]
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux only")
def test_faults_of_every_kind_are_found(seed: bytes, told: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    planted = Target("planted", (seed * 30,), _planted, (ValueError,))
    monkeypatch.setattr(fuzzer, "targets", lambda: [planted])
    monkeypatch.setattr(fuzzer, "HANG_S", 0.5)
    found = fuzzer.fuzz("planted", 1, 0.2)
    assert found and told in found[0]
    assert capsys.readouterr().out.startswith("planted")


def test_cases_are_the_same_everywhere() -> None:
    one, other = targets(), targets()
    for number in range(50):
        for mine, theirs in zip(one, other, strict=True):
            if mine.name != "handshake":  # its examples hold nonces
                assert mine.case(random.Random(number)) == theirs.case(random.Random(number))


DEEP = b"[" * 100_000


@pytest.mark.parametrize("data", [DEEP, b"NaN", b"[Infinity]", b"-Infinity", b"\xff", b"9" * 5000, b""])
def test_what_is_no_document(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_document(data)


def test_records_of_zookeeper_hold_whole_numbers() -> None:
    for generation in ("1e999", "1.5", '"3"', "true"):
        with pytest.raises(BadRecord):
            ChainRecord.decode("s", b'{"format":1,"generation":%s,"members":[],"stable":0}' % generation.encode())


def test_fields_of_control_messages_are_what_they_say() -> None:
    good: dict[str, Any] = {"slot": 1, "spark_attempt": 0, "pid": 2, "host": "h", "address": "a", "lifeline": ""}
    for change in ({"slot": "1"}, {"slot": True}, {"slot": None}, {"host": 3}, {"pid": 1.5}):
        body = {"v": 1, "type": "Register", "body": {**good, **change}}
        with pytest.raises(PeerProtocolError):
            control.decode(json.dumps(body).encode())
    for kind, changed in (
        ("Fenced", {"attempt": 1, "received": {"0:0->0": "x"}, "sent": {}, "determinants": {}}),
        ("Fenced", {"attempt": 1, "received": {}, "sent": {}, "determinants": {"a": [3]}}),
        ("Deploy", {"generation": 1, "checkpoint": "x", "assignment": {}, "addresses": {}}),
        ("Trigger", {"generation": 1, "checkpoint": 1, "subtasks": [1]}),
    ):
        with pytest.raises(PeerProtocolError):
            control.decode(json.dumps({"v": 1, "type": kind, "body": changed}).encode())
    with pytest.raises(PeerProtocolError):
        control.decode(DEEP)
    runs: list[Any] = [[["x", [1]]], [[1]], [[1, ["x"]]], [[1, None]]]
    for bad in runs:
        with pytest.raises(PeerProtocolError):
            spans_from_json(bad)
    digests: list[Any] = [[[1, "%%"]], [[1, "AAA="]], [["1", "AAAAAAAAAAA="]]]
    for bad in digests:
        with pytest.raises(PeerProtocolError):
            digests_from_json(bad)


@pytest.mark.parametrize("text", ["count[\u00b2]", "count[]", "count[1", "count[1]\n", f"count[{'9' * 5000}]", "[1]x"])
def test_what_is_no_subtask(text: str) -> None:
    with pytest.raises(PeerProtocolError):
        parse_subtask(text)


@pytest.mark.parametrize("text", ["", "1:2", "1:2->3\n", f"{'9' * 5000}:1->2", "\u0661:1->2"])
def test_what_is_no_channel(text: str) -> None:
    with pytest.raises(PeerProtocolError):
        parse_channel(text)


def test_determinants_are_counted_before_they_are_read() -> None:
    with pytest.raises(PeerProtocolError, match="malformed determinants"):
        decode_spans(bytes((15,)) + b"\0\0" + b"\xff\xff\xff\x7f")


def test_one_message_is_one_message() -> None:
    two = _wire_seeds()[0] * 2
    for data in (b"", two):
        with pytest.raises(PeerProtocolError):
            MessageCodec().decode(memoryview(data))


def test_frames_of_replication_name_their_fields() -> None:
    topic = frames.Topic("a", 1, 2, 3)
    whole = frames.encode(frames.FrameKind.STAGED, 1, 0, topic)
    assert frames.decode(whole).fields == {}
    for text in (b'["a",1,2,3,[]]', b'["a",1,1e999,3,{}]', DEEP):
        prefix = frames.PREFIX.pack(frames.MAGIC, frames.FORMAT_VERSION, frames.FrameKind.STAGED, 1, 0, len(text), 0)
        checksum = zlib.crc32(text, zlib.crc32(prefix))
        with pytest.raises(PeerProtocolError):
            frames.decode(prefix + frames.CHECKSUM.pack(checksum) + text)


def test_handles_and_manifests_name_files(tmp_path: Any) -> None:
    file = {"name": 1, "kind": "base", "entries": 1, "bytes": 1, "checksum": ""}
    wrong: list[Any] = [None, 3, {"a": 1}, [3], [{}], [file]]
    for files in wrong:
        with pytest.raises(CorruptState):
            SnapshotHandle.from_json({**handle_of().to_json(), "files": files})
    with pytest.raises(CorruptState):
        StateFile.from_json({"name": "a", "kind": "base", "entries": 1, "bytes": "1", "checksum": "", "replaces": []})
    storage = CheckpointStorage(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for body in (b"[]", b"3", b"{", DEEP, b'{"subtasks": []}'):
        (tmp_path / "checkpoints" / "00000001.json").write_bytes(signed(MANIFEST_MAGIC, body, "", None, None))
        with pytest.raises(CorruptCheckpoint):
            storage.manifests.read(1)
