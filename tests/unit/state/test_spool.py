"""A file by way of memory: the same bytes, few of them in memory at a time; and without it where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Options, SstFileWriter

from flinkplus.errors import StateError
from flinkplus.state import sst_format
from flinkplus.state.spool import Spool
from flinkplus.state.sst_format import Chunk, write_sst

VALUES = 64


def chunks(count: int = 40) -> Iterator[Chunk]:
    for number in range(count):
        keys = [b"%06d" % (VALUES * number + at) for at in range(VALUES)]
        yield keys, [os.urandom(4096) for _ in keys]


def without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")


def test_what_is_written_arrives_in_order(tmp_path: Path) -> None:
    with Spool(tmp_path / "x") as spool, open(spool.name, "wb", buffering=0) as writer:
        for number in range(10):
            writer.write(b"%d" % number * 10_000)
            if number % 3:
                spool.move_on()
                spool.move_on()
        spool.move_on()
        assert os.stat(spool.name).st_blocks == 0, "nothing is left in memory"
    assert (tmp_path / "x").read_bytes() == b"".join(b"%d" % number * 10_000 for number in range(10))


def test_rocksdb_writes_to_memory_and_syncs_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    blocks: list[int] = []
    finished: list[int] = []

    class Writer:
        def __init__(self, options: Options) -> None:
            self._writer = SstFileWriter(options)

        def __setitem__(self, key: bytes, value: bytes) -> None:
            self._writer[key] = value

        def open(self, path: str) -> None:
            opened.append(path)
            self._writer.open(path)

        def finish(self) -> None:
            finished.append(os.stat(opened[0]).st_dev)
            self._writer.finish()

    def told() -> Iterator[Chunk]:
        for chunk in chunks():
            yield chunk
            blocks.append(os.stat(opened[0]).st_blocks * 512)

    monkeypatch.setattr(sst_format, "SstFileWriter", Writer)
    write_sst(told(), tmp_path / "x.sst")
    assert finished != [tmp_path.stat().st_dev]
    assert (tmp_path / "x.sst").stat().st_size > 10_000_000
    assert max(blocks) < 3_000_000


def test_the_file_is_the_same_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = list(chunks(4))
    write_sst(content, tmp_path / "a.sst")
    without_memory(monkeypatch)
    write_sst(content, tmp_path / "b.sst")
    one, other = ((tmp_path / name).read_bytes() for name in ("a.sst", "b.sst"))
    assert len(one) == len(other)
    # The tail says when and in which session it was made.
    assert one[: len(one) // 2] == other[: len(one) // 2]


@pytest.mark.parametrize("memory", [True, False])
def test_nothing_is_left_open(tmp_path: Path, memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not memory:
        without_memory(monkeypatch)
    before = len(os.listdir("/proc/self/fd"))
    write_sst(chunks(1), tmp_path / "x.sst")
    with pytest.raises(StateError, match=r"nowhere/x\.sst"):
        write_sst(chunks(1), tmp_path / "nowhere" / "x.sst")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sendfile", full)
    with pytest.raises(StateError, match="No space"):
        write_sst(chunks(1), tmp_path / "x.sst")
    assert list(tmp_path.iterdir()) == []
