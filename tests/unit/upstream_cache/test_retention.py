"""The memory budget that the logs of a slot share, and what is on disk when."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.upstream_cache.disks import Clock, InParts, body, files, limited, on_disk, spilled_bytes, spilled_log
from upstream_cache import OutputLog, Retention
from upstream_cache.retention import MESSAGE_OVERHEAD_BYTES, PIECE_BYTES, REMOVED_PER_CALL
from upstream_cache.segments import READ_AHEAD_BYTES

SIZE = 10_000
COUNTED = SIZE + MESSAGE_OVERHEAD_BYTES
BUDGET = 1_000_000


def shared(folder: Path, logs: int, budget: int = BUDGET) -> tuple[Retention[bytes], list[OutputLog[bytes]]]:
    retention: Retention[bytes] = Retention(folder / "spill", InParts(), memory_bytes=budget)
    return retention, [OutputLog(f"c{i}", 4, 1 << 20, retention=retention) for i in range(logs)]


def put(log: OutputLog[bytes], count: int, size: int = SIZE) -> None:
    """Append and send."""
    for _ in range(count):
        log.append(body(log.appended, size), size)
        log.take_to_send(log.appended, 1000, 1 << 30)


def test_within_the_budget_the_disk_is_never_touched(tmp_path: Path) -> None:
    retention, (log,) = shared(tmp_path, 1)
    put(log, BUDGET // COUNTED)
    assert retention.memory_bytes == BUDGET // COUNTED * COUNTED
    assert not retention.directory.exists()
    put(log, 1)
    assert retention.directory.exists()
    retention.close()
    assert not retention.directory.exists()


def test_all_logs_share_one_budget_and_the_largest_gives_first(tmp_path: Path) -> None:
    retention, (small, large) = shared(tmp_path, 2)
    put(small, 5)
    for _ in range(300):
        put(large, 1)
        assert retention.memory_bytes <= BUDGET
    assert retention.memory_bytes > BUDGET - PIECE_BYTES - 2 * COUNTED
    assert spilled_bytes(small) == 0
    assert spilled_bytes(large) > 200 * SIZE
    retention.close()


def test_one_append_writes_a_bounded_piece(tmp_path: Path) -> None:
    retention, (log,) = shared(tmp_path, 1)
    put(log, 100)
    retention.budget_bytes = 0
    before = retention.memory_bytes
    put(log, 1)
    assert before - retention.memory_bytes <= PIECE_BYTES
    retention.close()


def test_what_was_never_sent_stays_in_memory(tmp_path: Path) -> None:
    retention, (log,) = shared(tmp_path, 1, budget=0)
    for seq in range(4):
        log.append(body(seq, SIZE), SIZE)
    assert retention.memory_bytes == 4 * COUNTED
    assert len(on_disk(retention)) == 0
    retention.close()


def test_without_limits_what_was_never_sent_is_written_when_nothing_else_is_left(tmp_path: Path) -> None:
    retention, (log, other) = shared(tmp_path, 2, budget=20 * COUNTED)
    put(other, 10)
    log.lift_limits()
    for seq in range(500):
        assert log.accepts
        log.append(body(seq, SIZE), SIZE)
        assert retention.memory_bytes <= 21 * COUNTED
    assert spilled_bytes(other) > 0  # what is sent goes first
    for seq in range(500):
        assert log.next_to_send(500) == (seq, body(seq, SIZE))
        assert retention.memory_bytes <= 21 * COUNTED + READ_AHEAD_BYTES
    log.acknowledge(500)
    log.trim(500)
    assert spilled_bytes(log) == 0
    retention.close()


def test_what_waits_to_be_sent_again_is_written_when_nothing_else_is_left(tmp_path: Path) -> None:
    retention, (replayed, other) = shared(tmp_path, 2)
    put(replayed, 80)
    replayed.rewind(0)
    put(other, 300)
    assert retention.memory_bytes <= BUDGET
    assert spilled_bytes(replayed) == 0
    for seq in range(80, 84):
        replayed.append(body(seq, SIZE), SIZE)
    retention.budget_bytes = 20 * COUNTED
    put(other, 40)
    assert retention.memory_bytes <= retention.budget_bytes
    assert spilled_bytes(replayed) > 0
    assert replayed.take_to_send(84, 1000, 1 << 30) == [(seq, body(seq, SIZE)) for seq in range(84)]
    retention.close()


def test_replay_from_disk_goes_on_while_messages_arrive(tmp_path: Path) -> None:
    retention, (log,) = shared(tmp_path, 1)
    put(log, 500)
    log.rewind(100)
    sent = []
    for seq in range(500, 900):
        if log.has_room:
            log.append(body(log.appended, SIZE), SIZE)
        sent += log.take_to_send(log.appended, 2, 1 << 30)
        assert retention.memory_bytes <= BUDGET + READ_AHEAD_BYTES + 4 * COUNTED, seq
    assert sent == [(seq, body(seq, SIZE)) for seq in range(100, log.appended)]
    assert log.appended > 600
    retention.close()


def test_a_replayed_message_is_dropped_from_memory_once_sent(tmp_path: Path) -> None:
    retention, log = spilled_log(tmp_path, 50)
    before = retention.memory_bytes
    log.rewind(0)
    log.take_to_send(50, 10, 1 << 20)
    assert retention.memory_bytes > before
    log.take_to_send(50, 100, 1 << 20)
    assert retention.memory_bytes == before
    retention.close()


def test_sizes_are_known_of_what_is_on_disk(tmp_path: Path) -> None:
    retention, log = spilled_log(tmp_path, 50)
    log.rewind(10)
    assert (log.unsent_bytes, log.appended_at - log._position(log.trimmed), log.retained_messages) == (
        40_000,
        50_000,
        50,
    )
    assert [seq for seq, _ in log.take_to_send(50, 100, 3500)] == [10, 11, 12]
    assert [seq for seq, _ in log.take_to_send(50, 100, 10)] == [13]
    retention.close()


def test_trimming_removes_segments_a_few_at_a_time(tmp_path: Path) -> None:
    retention, log = spilled_log(tmp_path, 40, segment_bytes=1)
    assert len(on_disk(retention)) == 39
    log.acknowledge(40)
    log.trim(30)
    assert len(on_disk(retention)) == 9
    assert len(files(tmp_path)) == 39 - REMOVED_PER_CALL
    for seq in range(31, 41):
        log.trim(seq)
    assert (on_disk(retention), spilled_bytes(log), retention.memory_bytes) == ([], 0, 0)
    assert len(files(tmp_path)) == 39 - 11 * REMOVED_PER_CALL
    retention.close()
    assert files(tmp_path) == []


def test_segments_have_about_the_size_that_was_asked_for(tmp_path: Path) -> None:
    retention, log = spilled_log(tmp_path, 100, segment_bytes=20_000)
    sizes = [path.stat().st_size for path in files(tmp_path)]
    assert all(20_000 <= size < 22_000 for size in sizes[:-1])
    assert sum(sizes) == spilled_bytes(log)
    retention.close()


def test_a_closed_log_leaves_nothing_behind_and_the_others_go_on(tmp_path: Path) -> None:
    retention, (one, two) = shared(tmp_path, 2, budget=0)
    put(one, 20)
    put(two, 20)
    one.rewind(3)
    one.next_to_send(20)
    one.close()
    assert retention.memory_bytes == COUNTED
    assert sum(segment.file_bytes for segment in on_disk(retention)) == spilled_bytes(two)
    two.rewind(0)
    assert len(two.take_to_send(20, 100, 1 << 30)) == 20
    retention.close()


def test_leftovers_are_removed_and_other_peoples_files_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    folder.mkdir()
    (folder / "00000000.segment").write_bytes(b"of a process that was killed")
    (folder / "notes.txt").write_text("keep")
    retention, (log,) = shared(tmp_path, 1, budget=0)
    assert [path.name for path in files(tmp_path)] == ["notes.txt"]
    put(log, 20)
    retention.close()
    retention.close()
    assert [path.name for path in files(tmp_path)] == ["notes.txt"]
    assert log.retained_messages == 0


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    retention, log = spilled_log(tmp_path, 100, segment_bytes=5000)
    log.rewind(0)
    log.take_to_send(100, 30, 1 << 20)
    assert len(os.listdir("/proc/self/fd")) == before + 2  # one to write, one to read
    retention.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("budget, segment", [(-1, 10), (10, 0)])
def test_sizes_must_make_sense(tmp_path: Path, budget: int, segment: int) -> None:
    with pytest.raises(ValueError, match="bytes of memory"):
        Retention(tmp_path, InParts(), budget, segment)


def test_the_clock_is_not_asked_while_nothing_is_wrong(tmp_path: Path) -> None:
    clock = Clock()
    clock.now_s = float("nan")
    retention, log = spilled_log(tmp_path, 20, clock=clock)
    with limited(1 << 30):
        put(log, 20, 1000)
    assert retention.blocked is None
    retention.close()
