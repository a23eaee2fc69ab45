"""A full disk loses nothing and stops the producer; a damaged segment is noticed."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from unittest import mock

import pytest

from tests.unit.upstream_cache.disks import Clock, blocked, body, files, has_room, limited, on_disk, spilled_log
from upstream_cache import CorruptSegment, OutputLog, Retention, segments
from upstream_cache.retention import RETRY_S

COUNT, SIZE = 20, 1000


def everything(log: OutputLog[bytes], size: int = SIZE) -> bool:
    """Whether the log hands out again all that it keeps, as it was."""
    log.rewind(log.trimmed)
    return log.take_to_send(log.appended, 1 << 20, 1 << 30) == [
        (seq, body(seq, size)) for seq in range(log.trimmed, log.appended)
    ]


def add(log: OutputLog[bytes], size: int = SIZE) -> None:
    log.append(body(log.appended, size), size)
    log.next_to_send(log.appended)


def test_a_full_disk_stops_the_producers_and_loses_nothing(tmp_path: Path) -> None:
    clock = Clock()
    retention, log = spilled_log(tmp_path, COUNT, clock=clock)
    other: OutputLog[bytes] = OutputLog("other", 4, 1 << 20, retention=retention)
    with limited(SIZE * 5 // 2) as disk:
        while has_room(log):
            add(log)
        assert log.appended < COUNT + 6
        assert blocked(retention) == f"spill volume full: {tmp_path / 'spill'}: No space left on device"
        assert not has_room(other)
        assert retention._retry_at == clock.now_s + RETRY_S
        assert everything(log)
        disk.left = 1 << 30
    assert not has_room(log)  # not tried again yet
    clock.now_s += RETRY_S
    assert has_room(log)
    assert blocked(retention) is None
    add(log)
    assert everything(log)
    retention.close()
    assert files(tmp_path) == []


def test_a_full_disk_is_tried_again_after_a_while_not_all_the_time(tmp_path: Path) -> None:
    clock = Clock()
    retention, log = spilled_log(tmp_path, COUNT, clock=clock)
    with limited(0) as disk:
        add(log)
        assert disk.failures == 1
        for _ in range(10):
            assert not has_room(log)
        assert disk.failures == 1
        clock.now_s += RETRY_S
        assert not has_room(log)
        assert disk.failures == 2
    retention.close()


def test_a_trim_makes_room_at_once(tmp_path: Path) -> None:
    retention, log = spilled_log(tmp_path, COUNT, clock=Clock())
    with limited(0):
        add(log)
        assert not has_room(log)
        log.acknowledge(log.sent)
        log.trim(log.sent)
        assert retention.memory_bytes == 0
        assert has_room(log)
        assert blocked(retention) is None
    add(log)
    assert everything(log)
    retention.close()


def test_writing_is_tried_again_right_after_a_trim(tmp_path: Path) -> None:
    retention, log = spilled_log(tmp_path, COUNT, clock=Clock())
    with limited(0) as disk:
        add(log)
        add(log)
        assert not has_room(log)
        disk.left = 1 << 30
        assert not has_room(log)
        log.acknowledge(1)
        log.trim(1)
        assert has_room(log)
    assert everything(log)
    retention.close()


def test_whoever_found_room_may_append_to_every_log_and_barriers_pass(tmp_path: Path) -> None:
    retention, log = spilled_log(tmp_path, COUNT, clock=Clock())
    others = [OutputLog[bytes](f"other{i}", 4, 1 << 20, retention=retention) for i in range(3)]
    with limited(0):
        for each in (log, *others):
            each.append(body(each.appended, SIZE), SIZE)
        assert blocked(retention) is not None
        assert not has_room(log)
        assert log.accepts
        log.append(b"", 0)
    retention.close()


def test_writes_in_small_parts_are_put_together(tmp_path: Path) -> None:
    with limited(1 << 30, at_once=7):
        retention, log = spilled_log(tmp_path, COUNT, segment_bytes=3000)
    assert everything(log)
    retention.close()


def test_a_file_system_that_refuses_large_files(tmp_path: Path) -> None:
    """As the system reports it: the last write goes through in part, the next one fails."""
    limit = 10_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        retention, log = spilled_log(tmp_path, COUNT)
        assert blocked(retention) == f"spill volume full: {tmp_path / 'spill'}: File too large"
        assert not has_room(log)
        assert everything(log)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(tmp_path)[0].stat().st_size == limit
    retention._retry_at = 0.0
    assert has_room(log)
    assert everything(log)
    retention.close()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with mock.patch.object(os, "open", side_effect=OSError(errno.EACCES, "Permission denied")):
        retention, log = spilled_log(tmp_path, 3)
        assert blocked(retention) == f"spill volume failed: {tmp_path / 'spill'}: Permission denied"
        assert on_disk(retention) == []
    assert everything(log)
    retention.close()


def read_error(log: OutputLog[bytes]) -> CorruptSegment:
    """What reading everything again raises: the same each time, when what is intact has been handed out."""
    log.rewind(log.trimmed)
    with pytest.raises(CorruptSegment) as first:
        while log.take_to_send(log.appended, 4, 1 << 20):
            pass
    sent = log.sent
    with pytest.raises(CorruptSegment, match=r"tokenize\[0\]->count\[1\]") as second:
        log.next_to_send(log.appended)
    assert log.sent == sent
    assert str(first.value) == str(second.value)
    return second.value


def spilled_file(folder: Path) -> tuple[Retention[bytes], OutputLog[bytes], Path]:
    retention, log = spilled_log(folder, COUNT)
    (path,) = files(folder)
    return retention, log, path


@pytest.mark.parametrize("message", [0, 7, COUNT - 2])
def test_every_byte_of_a_record_counts(tmp_path: Path, message: int) -> None:
    retention, log, path = spilled_file(tmp_path)
    intact = path.read_bytes()
    record = (len(intact) - len(log._spilled._segments[0]._header)) // (COUNT - 1)  # type: ignore[union-attr]
    start = len(intact) - record * (COUNT - 1 - message)
    for at in (0, 4, 8, 16, 500, record - 1):
        damaged = bytearray(intact)
        damaged[start + at] ^= 0x10
        path.write_bytes(damaged)
        error = read_error(log)
        assert (error.path, error.why) == (path, f"has a wrong checksum at message {message}")
        assert log.sent == message
    path.write_bytes(intact)
    assert everything(log)
    retention.close()


def test_a_record_in_the_place_of_another(tmp_path: Path) -> None:
    retention, log, path = spilled_file(tmp_path)
    data = path.read_bytes()
    record = SIZE + segments.RECORD_HEADER_BYTES
    path.write_bytes(data[: -2 * record] + data[-record:] + data[-2 * record : -record])
    assert read_error(log).why == f"has message {COUNT - 2} of {SIZE} bytes where message {COUNT - 3} was written"
    retention.close()


def test_a_truncated_segment_gives_what_is_whole(tmp_path: Path) -> None:
    retention, log, path = spilled_file(tmp_path)
    os.truncate(path, path.stat().st_size - 1500)
    error = read_error(log)
    assert log.sent == COUNT - 3
    assert error.why == f"ends at byte {path.stat().st_size}, inside message {COUNT - 3}"
    os.truncate(path, 3)
    assert read_error(log).why == "has another header than was written"
    retention.close()


def test_a_missing_and_a_foreign_segment(tmp_path: Path) -> None:
    retention, log, path = spilled_file(tmp_path)
    data = path.read_bytes()
    path.unlink()
    assert read_error(log).why == "cannot be opened (No such file or directory)"
    path.write_bytes(b"FPLG\x02" + data[5:])
    assert read_error(log).why == "has another header than was written"
    retention.close()


def test_a_disk_that_fails_to_read(tmp_path: Path) -> None:
    retention, log = spilled_log(tmp_path, COUNT)
    with mock.patch.object(os, "pread", side_effect=OSError(errno.EIO, "Input/output error")):
        assert read_error(log).why == "cannot be read (Input/output error)"
    assert everything(log)
    retention.close()
