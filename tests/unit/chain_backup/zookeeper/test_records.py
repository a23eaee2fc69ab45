"""What stands in ZooKeeper: there and back, and what is refused."""

from __future__ import annotations

import json
import string
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_backup.zookeeper.client import Client
from chain_backup.zookeeper.errors import BadRecord
from chain_backup.zookeeper.records import ChainRecord, Paths, SlotRecord, quote, unquote
from flinkplus.errors import ConfigurationError

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@given(NAMES, st.integers(0), st.lists(st.integers(0, 100), max_size=5), st.integers(0))
def test_a_chain_record_comes_back_as_it_was(subtask: str, generation: int, members: list[int], stable: int) -> None:
    record = ChainRecord(subtask, generation, tuple(members), stable)
    assert ChainRecord.decode(subtask, record.encode()) == record


def test_a_slot_record_comes_back_with_its_epoch() -> None:
    record = SlotRecord("10.0.0.7:4711", "worker-7", 17, 3)
    assert SlotRecord.decode(3, record.encode(epoch=9)) == (record, 9)


@given(NAMES)
def test_any_name_is_one_step_of_a_path(name: str) -> None:
    step = quote(name)
    assert urllib.parse.unquote(step) == name
    assert "/" not in step and step not in (".", "..") and step.isascii()


@given(st.text(string.ascii_letters + string.digits + "_-. +[]", min_size=1, max_size=40))
def test_the_name_of_a_subtask_comes_back_and_no_other(name: str) -> None:
    if name.startswith("."):
        with pytest.raises(BadRecord):
            unquote(quote(name))
    else:
        assert unquote(quote(name)) == name


def test_paths_of_a_job_can_be_read() -> None:
    paths = Paths("word count/1")
    assert paths.slot(3) == "/flinkplus/word%20count%2F1/slots/3"
    assert paths.subtask("count+out[1]") == "/flinkplus/word%20count%2F1/subtasks/count+out[1]"
    assert Paths("..").base == "/flinkplus/%2E%2E"


def test_an_application_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="needs a name"):
        Paths("")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"generation": 1, "members": [], "stable": 0}',
        json.dumps({"format": 2, "generation": 1, "members": [], "stable": 0}).encode(),
        json.dumps({"format": 1, "generation": 1, "members": 7, "stable": 0}).encode(),
        json.dumps({"format": 1, "generation": "x", "members": [], "stable": 0}).encode(),
        json.dumps({"format": 1, "members": [], "stable": 0}).encode(),
    ],
)
def test_what_is_no_chain_record_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(BadRecord, match=r"count\[0\]"):
        ChainRecord.decode("count[0]", data)


@pytest.mark.parametrize("data", [b"x", b'{"format": 1}', b'{"format": 1, "address": "a", "host": "h", "pid": "?"}'])
def test_what_is_no_slot_record_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(BadRecord, match="slot 4"):
        SlotRecord.decode(4, data)


@pytest.mark.parametrize("hosts", ["", "localhost:many", ","])
def test_hosts_that_name_no_server_are_refused(hosts: str) -> None:
    with pytest.raises(ConfigurationError, match="names no ZooKeeper servers"):
        Client(hosts, 4.0, lambda state: None)


def test_a_session_too_short_to_be_kept_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="too short"):
        Client("127.0.0.1:1", 0.2, lambda state: None)
