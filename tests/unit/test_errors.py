"""What errors show, and what they do not."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest
from pyarrow import fs

from flinkplus.errors import (
    CheckpointDirectoryError,
    FlinkPlusError,
    ProcessCrashed,
    ShadowedPackage,
    StateError,
    UserFunctionError,
    described,
    without_secrets,
)
from flinkplus.state.durable.storage import CheckpointStorage


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("in 's3://AKIA:abc%2Fd+e@bucket/a@b': no", "in 's3://***@bucket/a@b': no"),
        ("s3://AKIA:ab/c@bucket", "s3://***@bucket"),  # one that pyarrow does not understand
        ("hdfs://user:word@host:8020/a", "hdfs://***@host:8020/a"),
        (
            "s3://bucket/a?region=eu&secret_key=x&access_key=y#z",
            "s3://bucket/a?region=eu&secret_key=***&access_key=***",
        ),
    ],
)
def test_secrets_in_uris_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    error = pickle.loads(pickle.dumps(StateError(text)))
    assert str(error) == shown and repr(error) == f"StateError({shown!r})"
    assert described(OSError(text)) == f"OSError: {shown}"


@pytest.mark.parametrize(
    "text",
    [
        "hdfs://namenode:8020/path@v1",
        "hdfs://user@host/path",
        "spark://host:7077",
        "s3://bucket/path?region=eu",
        "user:word@host is no URI",
        "http://127.0.0.1:80 and a@b",
    ],
)
def test_other_texts_are_shown_as_they_are(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize("kind", [UserFunctionError, ProcessCrashed])
def test_errors_of_functions_show_no_secret(kind: type[FlinkPlusError]) -> None:
    texts = [f"{name} s3://AKIA:hidden@bucket" for name in "abcde"]
    error = pickle.loads(pickle.dumps(kind(*texts)))
    assert "hidden" not in f"{error} {error!r} {vars(error)}" and "s3://***@bucket" in str(error)
    assert type(error) is kind


def test_named_arguments_of_errors_are_kept() -> None:
    error = ShadowedPackage("text", name="dedup", path="/there")
    assert (str(error), error.name, error.path) == ("text", "dedup", "/there")


@pytest.mark.parametrize("uri", ["s3://AKIA:hid/den@bucket", "nosuch://AKIA:hidden@bucket"])
def test_a_checkpoint_directory_that_cannot_be_opened_shows_no_secret(uri: str) -> None:
    with pytest.raises(CheckpointDirectoryError) as caught:
        CheckpointStorage(uri)
    shown = "".join(traceback.format_exception(caught.value))
    assert "cannot be opened" in shown and "AKIA" not in shown and "hid" not in shown


def test_a_failure_of_storage_shows_no_secret(tmp_path: Path) -> None:
    storage = CheckpointStorage("s3://AKIA:hidden@bucket/a", fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    with pytest.raises(FlinkPlusError) as caught:
        storage.ownership.job()
    assert "s3://***@bucket/a" in str(caught.value) and "hidden" not in str(caught.value)
