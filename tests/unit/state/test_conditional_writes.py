"""``create`` and ``swap``: of any number of writers one wins, whatever answers are lost."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from pyarrow import fs

from flinkplus.sinks.files import OutputFiles
from flinkplus.state.file_system import ArrowDirectory, Files, LocalDirectory, open_directory
from flinkplus.state.s3 import bucket as s3_bucket
from flinkplus.state.s3.bucket import S3Bucket
from tests.s3_server import Bucket, s3_server

WRITERS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with s3_server() as bucket:
        yield bucket


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """One for all, because it takes a while to read what S3's requests are."""
    one = botocore.session.get_session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "get_session", lambda: one)
        yield


@pytest.fixture
def s3(server: Bucket) -> Bucket:
    """An empty one."""
    server.objects.clear()
    server.knows_conditions = True
    server.before_put, server.after_put = lambda key: None, lambda key: None
    return server


@pytest.fixture(autouse=True)
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(s3_bucket, "_warned", set())
    caplog.set_level(logging.WARNING, "flinkplus")
    return caplog


@pytest.fixture(params=["local", "arrow", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path, s3: Bucket) -> Files:
    match request.param:
        case "local":
            return LocalDirectory(tmp_path)
        case "arrow":
            return ArrowDirectory(fs.LocalFileSystem(), str(tmp_path))
    return open_directory(s3.uri("folder"))


@pytest.fixture(params=["local", "s3"])
def output(request: pytest.FixtureRequest, tmp_path: Path, s3: Bucket) -> OutputFiles:
    return OutputFiles(str(tmp_path) if request.param == "local" else s3.uri("out"))


def test_a_file_is_created_once(files: Files) -> None:
    assert files.create("a/one", b"first")
    assert files.create("a/one", b"first"), "the answer to the first request may have been lost"
    assert not files.create("a/one", b"second")
    assert files.read("a/one") == b"first" and files.names("a") == ["a/one"]


def test_a_check_comes_before_the_name(files: Files) -> None:
    def replaced() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        files.create("one", b"first", replaced)
    assert files.names("") == []


@pytest.mark.parametrize("files", ["local", "s3"], indirect=True)
def test_of_many_writers_one_wins(files: Files) -> None:
    start = threading.Barrier(WRITERS)

    def write(number: int) -> bool:
        start.wait(60)
        return files.create("one", b"%d" % number)

    with ThreadPoolExecutor(WRITERS) as pool:
        won = [number for number, ok in enumerate(pool.map(write, range(WRITERS))) if ok]
    assert len(won) == 1 and files.read("one") == b"%d" % won[0]
    assert files.names("") == ["one"]


def test_what_was_being_created_when_it_was_removed_is_not_there(tmp_path: Path) -> None:
    files = LocalDirectory(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.create("a/one", b"first", lambda: files.delete_unfinished("a"))
    assert files.names("") == []

    def replaced() -> None:
        files.delete_unfinished("a")
        assert files.create("a/one", b"second")

    assert not files.create("a/one", b"first", replaced)


def test_without_hard_links_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    files = LocalDirectory(tmp_path)
    assert files.create("one", b"first") and not files.create("one", b"second")
    assert files.read("one") == b"first" and files.names("") == ["one"]
    (record,) = warnings.records
    assert "the file system has no conditional writes (it has no hard links)" in record.getMessage()


def test_where_arrow_has_no_condition_there_is_one_warning(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    for folder in "ab":
        assert ArrowDirectory(fs.LocalFileSystem(), str(tmp_path / folder)).create("one", b"first")
    (record,) = warnings.records
    assert "storage of type local has no conditional writes" in record.getMessage()


# --- S3 ---


@pytest.fixture
def store(s3: Bucket) -> S3Bucket:
    found = S3Bucket.of(s3.uri("folder"))
    assert found is not None
    return found


def test_an_answer_that_is_lost_is_found_out(s3: Bucket, store: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_bucket, "ATTEMPTS", 0)  # botocore's own second try would find it out, too
    s3.after_put = lambda key: 500
    assert store.create("bucket/a", b"1") and store.swap("bucket/a", b"1", b"2")
    assert s3.objects["a"] == b"2"
    s3.objects["b"] = b"of another"
    assert not store.create("bucket/b", b"1") and not store.swap("bucket/b", b"1", b"2")

    def is_lost(key: str) -> None:
        raise ConnectionResetError  # the server ends the connection

    s3.before_put = is_lost
    with pytest.raises(OSError, match=r"has not answered whether 'bucket/c' was written; it may appear later"):
        store.create("bucket/c", b"1")
    with pytest.raises(OSError, match="it may appear later"):
        store.swap("bucket/a", b"2", b"3")


def test_a_second_try_of_botocore_is_no_other_writer(s3: Bucket, store: S3Bucket) -> None:
    answers = [500]
    s3.after_put = lambda key: answers.pop() if answers else None
    assert store.create("bucket/a", b"1") and answers == []


def test_a_swap_needs_the_content_before(s3: Bucket, store: S3Bucket) -> None:
    assert not store.swap("bucket/a", b"1", b"2") and s3.objects == {}
    assert store.create("bucket/a", b"1")
    assert store.swap("bucket/a", b"1", b"2") and not store.swap("bucket/a", b"1", b"3")
    assert store.swap("bucket/a", b"1", b"2"), "the answer may have been lost"
    assert store.swap("bucket/a", b"2", b"2")

    def meanwhile(key: str) -> None:
        s3.before_put = lambda key: None
        s3.objects["a"] = b"of another"

    s3.before_put = meanwhile
    assert not store.swap("bucket/a", b"2", b"3") and s3.objects["a"] == b"of another"


@pytest.mark.parametrize("kind", ["create", "swap"])
def test_a_server_that_ignores_conditions_is_found_out(
    s3: Bucket, store: S3Bucket, warnings: pytest.LogCaptureFixture, kind: str
) -> None:
    s3.knows_conditions = False
    s3.objects["a"] = b"0"
    assert store.create("bucket/new", b"1") if kind == "create" else store.swap("bucket/a", b"0", b"1")
    assert not store.is_conditional
    (record,) = warnings.records
    assert (
        "s3://bucket has no conditional writes (the server ignores the condition): two drivers" in record.getMessage()
    )
    with pytest.raises(s3_bucket.NoConditionalWrites):
        store.create("bucket/b", b"1")
    assert "b" not in s3.objects


@pytest.mark.parametrize(
    ("status", "reason"), [(501, "does not implement them"), (403, "cannot be written"), (409, "without end")]
)
def test_a_refusal_says_why(
    s3: Bucket, store: S3Bucket, monkeypatch: pytest.MonkeyPatch, status: int, reason: str
) -> None:
    monkeypatch.setattr(s3_bucket, "CONFLICT_PAUSE_S", 0.0)
    s3.after_put = lambda key: s3.objects.clear() or status  # type: ignore[func-returns-value]
    with pytest.raises((OSError, s3_bucket.NoConditionalWrites), match=reason) as caught:
        store.create("bucket/a", b"1")
    assert "secret" not in str(caught.value)
    assert store.is_conditional is (status != 501)


def test_without_botocore_files_are_written_as_before(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    files, output = open_directory(s3.uri("folder")), OutputFiles(s3.uri("out"))
    assert files.create("one", b"1") and not files.create("one", b"2")
    assert output.create("one", b"1") and not output.create("one", b"2")
    assert output.swap("one", b"1", b"3") and output.read("one") == b"3"
    assert not output.is_conditional
    assert ["pip install 'flinkplus[s3]'" in record.getMessage() for record in warnings.records] == [True, True]


# --- output ---


def test_output_is_created_once_and_swapped(output: OutputFiles) -> None:
    output.make_dir()
    assert output.create("one", b"1") and output.create("one", b"1") and not output.create("one", b"2")
    assert output.swap("one", b"1", b"2") and output.read("one") == b"2"
    assert [entry.name for entry in output.entries()] == ["one"]


def test_nothing_is_written_without_looking(output: OutputFiles) -> None:
    output.make_dir()

    def replaced() -> None:
        raise LookupError

    output.check = replaced
    act: Callable[[], Any]
    for act in (lambda: output.create("one", b"1"), lambda: output.swap("one", b"", b"1")):
        with pytest.raises(LookupError):
            act()
    assert output.info("one") is None
