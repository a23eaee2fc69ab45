"""The reader of a directory: each file once, through replays, other parallelisms, removals and changes."""

from __future__ import annotations

import gzip
import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sources.files import decoding, directory
from flinkplus.sources.files.directory import InputDirectory
from flinkplus.sources.files.seen import SeenFile
from flinkplus.sources.files.source import DirectoryFiles
from tests.s3_server import s3_server
from tests.unit.sources.files.driven import Driven, put, repeated, source_of

NOW_S = 1_700_000_000


def lines(file: int, count: int) -> str:
    return "".join(f"{file}:{line}\n" for line in range(count))


def values(rows: list[dict[str, Any]] | None) -> list[str]:
    return [row["value"] for row in rows or []]


def split(rows: list[str]) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in (row.split(":") for row in rows)]


def test_files_are_read_once_the_oldest_first(tmp_path: Path) -> None:
    for file in (2, 0, 1):
        put(tmp_path / f"{file}.txt", lines(file, 5), NOW_S + file)
    run = Driven(source_of(tmp_path))
    assert split(values(run.rows(15))) == [(file, line) for file in range(3) for line in range(5)]
    run.idle()
    put(tmp_path / "a.txt", lines(3, 9))
    assert split(values(run.rows(9, 4))) == [(3, line) for line in range(9)]
    run.idle()
    assert run.reader.metrics == {"rows": 24, "invalid_rows": 0, "invalid_lines": 0}
    assert run.reader.gauges() == {"lag_files": 0, "lag_bytes": 0, "ignored_files": 0}
    run.close()
    last = [step for step in run.steps if step.rows][-1]
    again = Driven(run.source, position=last.before)
    assert again.rows(1) == last.rows and split(values(last.rows))[-1] == (3, 8)
    again.idle()
    again.close()


def test_a_replay_gives_the_same_though_more_is_there(tmp_path: Path) -> None:
    """Files that come later, also with earlier times; the chunks of the first run do not matter."""
    for file in range(4):
        put(tmp_path / f"{file}", lines(file, 11), NOW_S + file)
    run = Driven(source_of(tmp_path, chunk_bytes=9))
    run.rows(44)
    run.close()
    for file in range(4, 9):
        put(tmp_path / f"{file}", lines(file, 3), NOW_S - file)
    repeated(run.steps, source_of(tmp_path, chunk_bytes=17))
    again = Driven(run.source, position=run.steps[-1].before)
    again.read(run.steps[-1].choice)
    assert sorted(split(values(again.rows(15)))) == [(file, line) for file in range(4, 9) for line in range(3)]
    again.idle()
    again.close()


def test_every_format_is_repeated(tmp_path: Path) -> None:
    put(tmp_path / "text/a.gz", gzip.compress(b"1\n\n\xff\n" * 9))
    put(tmp_path / "json/a", '{"n": 1}\nx\n\n{"n": 2}\n' * 9)
    put(tmp_path / "csv/a", "n\n" + "1\nx\n\n2\n" * 9)
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table({"n": range(30)}), tmp_path / "parquet/a", row_group_size=8)
    found = {}
    for form in ("text", "json", "csv", "parquet"):
        schema = None if form == "text" else "n long"
        options: dict[str, Any] = {} if form == "parquet" else {"chunk_bytes": 16}
        source = source_of(tmp_path / form, form, schema, watch=False, on_error="skip", **options).planned()
        run = Driven(source)
        run.all_rows(4)
        found[form] = run.reader.metrics
        run.close()
        repeated(run.steps, source)
    assert found["text"] == {"rows": 27, "invalid_rows": 0, "invalid_lines": 9}
    assert found["json"] == found["csv"] == {"rows": 18, "invalid_rows": 9, "invalid_lines": 0}
    assert found["parquet"] == {"rows": 30, "invalid_rows": 0, "invalid_lines": 0}


def test_readers_share_the_files(tmp_path: Path) -> None:
    for file in range(20):
        put(tmp_path / f"day={file % 3}/{file}", lines(file, 2))
    source = source_of(tmp_path, watch=False, recursive=True).planned()
    found = []
    for index in range(3):
        run = Driven(source, index, 3)
        found.append({file for file, _ in split(values(run.all_rows()))})
        run.close()
    assert sum(map(len, found)) == 20 and set.union(*found) == set(range(20)) and all(found)


@pytest.mark.parametrize("seed", range(3))
def test_another_parallelism_in_the_middle_of_files(tmp_path: Path, seed: int) -> None:
    """Readers stop anywhere, and their positions are dealt again, several times; each row is read once."""
    chance = random.Random(seed)
    for file in range(12):
        put(tmp_path / f"{file}", lines(file, 8))
    source = source_of(tmp_path, watch=False).planned()
    found: list[str] = []
    positions: list[Any] = [None] * 3
    for parallelism in (3, 1, 4, 2):
        if parallelism != 3:
            positions = source.redealt(positions, parallelism)
        for index in range(parallelism):
            run = Driven(source, index, parallelism, positions[index])
            for _ in range(chance.randrange(12)):
                more = run.step(3)
                found += values(more)
                if more is None:
                    break
            positions[index] = run.reader.position()
            run.close()
    for index, position in enumerate(source.redealt(positions, 2)):
        run = Driven(source, index, 2, position)
        found += values(run.all_rows())
        run.close()
    assert sorted(split(found)) == [(file, line) for file in range(12) for line in range(8)]


def test_hidden_files_and_folders_are_no_input(tmp_path: Path) -> None:
    for name in (".a", "_a", "a.tmp", "a._COPYING_", "_temporary/a", "folder/a"):
        put(tmp_path / name, "no\n")
    put(tmp_path / "_day=1", "yes\n")
    os.mkfifo(tmp_path / "pipe")
    run = Driven(source_of(tmp_path, watch=False).planned())
    assert values(run.all_rows()) == ["yes"]
    run.close()


@pytest.mark.parametrize("when", ["unread", "open", "read", "restored"])
def test_a_file_that_changes(tmp_path: Path, when: str) -> None:
    """An error, wherever it is; or it is not looked at."""
    put(tmp_path / "a", lines(0, 9), NOW_S)
    put(tmp_path / "b", lines(1, 3), NOW_S + 1)
    failing, ignoring = Driven(source_of(tmp_path)), Driven(source_of(tmp_path, changed="ignore"))
    runs = [failing, ignoring]
    for run in runs:
        run.rows({"unread": 0, "open": 1, "read": 12, "restored": 12}[when], 1)
        if when in ("read", "restored"):
            run.idle()
        else:
            run.until(partial(run.reader.choose, 1), "something to read")
    if when == "restored":
        for run in runs:
            run.close()
        runs[:] = [Driven(run.source, position=run.reader.position()) for run in runs]
    victim = tmp_path / ("b" if when == "unread" else "a")
    put(victim, lines(7, 4), NOW_S + 2)
    with pytest.raises(InputError, match=rf"{victim.name}' has changed after it was found"):
        runs[0].until(lambda: runs[0].reader.choose(1) is not None and runs[0].step(1) is None, "the error")
    if when == "unread":
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        runs[1].until(
            lambda: runs[1].reader.choose(1) is not None and runs[1].reader.gauges()["lag_bytes"] == size,
            "the change is noticed",
        )
        assert split(values(runs[1].rows(13))) == [(0, n) for n in range(9)] + [(7, n) for n in range(4)]
    elif when == "open":
        assert (0, 8) in split(values(runs[1].rows(11, 1)))  # it was open, and is decoded to its end
    runs[1].idle(3)
    for run in runs:
        run.close()


def test_a_file_that_is_removed_before_it_is_begun_is_no_error(tmp_path: Path) -> None:
    for file in range(3):
        put(tmp_path / f"{file}", lines(file, 2), NOW_S + file)
    run = Driven(source_of(tmp_path))
    run.until(lambda: run.reader.choose(1), "a first choice")
    (tmp_path / "1").unlink()
    found: list[tuple[int, int]] = []
    while (2, 1) not in found:
        found += split(values(run.step()))
    assert {(0, 0), (0, 1), (2, 0)} <= {*found} and len(found) in (4, 6)  # what was decoded by then is read
    run.idle()
    run.close()


def test_a_file_that_cannot_be_found_for_a_while_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing shows it, and opening it fails: as in network file systems."""
    put(tmp_path / "a", lines(0, 3), NOW_S)
    put(tmp_path / "b", lines(1, 3), NOW_S + 1)
    real, failures = InputDirectory.open, [0]

    def opened(self: InputDirectory, file: SeenFile) -> Any:
        if file.path == "a" and failures[0] < 3:
            failures[0] += 1
            raise FileNotFoundError(file.path)
        return real(self, file)

    monkeypatch.setattr(InputDirectory, "open", opened)
    run = Driven(source_of(tmp_path))
    assert sorted(split(values(run.rows(6)))) == [(file, line) for file in range(2) for line in range(3)]
    assert failures[0] == 3
    run.idle()
    run.close()


@pytest.mark.parametrize("changed", ["fail", "ignore"])
def test_a_planned_file_must_stay_as_it_is(tmp_path: Path, changed: str) -> None:
    for file in range(2):
        put(tmp_path / f"{file}", lines(file, 2), NOW_S + file)
    planned = source_of(tmp_path, watch=False, changed=changed).planned()
    put(tmp_path / "1", lines(1, 3))
    run = Driven(planned)
    with pytest.raises(InputError, match="1' has changed"):
        run.all_rows()
    run.close()
    (tmp_path / "1").unlink()
    run = Driven(planned)
    with pytest.raises(InputError, match="1' was removed before it was read"):
        run.all_rows()
    run.close()


def test_a_repeated_step_whose_file_was_removed(tmp_path: Path) -> None:
    put(tmp_path / "a", lines(0, 9))
    run = Driven(source_of(tmp_path))
    run.rows(9, 3)
    run.close()
    (tmp_path / "a").unlink()
    again = Driven(run.source, position=None)
    again.read(run.steps[0].choice)
    with pytest.raises(InputError, match="was removed or has changed: keep files"):
        again.read(run.steps[1].choice)
    again.close()
    inside = Driven(run.source, position=run.steps[3].before)
    with pytest.raises(InputError, match="a' was removed before it was read to its end"):
        inside.read(run.steps[3].choice)
    inside.close()


def test_a_begun_file_that_is_gone_is_given_up(tmp_path: Path) -> None:
    """A checkpoint between the two choices that begin a file; after it, everything is free."""
    put(tmp_path / "a", lines(0, 2))
    run = Driven(source_of(tmp_path))
    run.step()
    position = run.reader.position()
    run.close()
    (tmp_path / "a").unlink()
    put(tmp_path / "b", lines(1, 2))
    again = Driven(run.source, position=position)
    assert split(values(again.rows(2))) == [(1, 0), (1, 1)]
    again.close()


def test_files_are_removed_when_a_checkpoint_covers_them(tmp_path: Path) -> None:
    for file in range(3):
        put(tmp_path / f"in/f/{file}", lines(file, 2), NOW_S + file)
    for after, archive in (("archive", tmp_path / "done"), ("delete", None)):
        source = source_of(tmp_path / "in", after=after, recursive=True, archive_dir=archive and str(archive)).planned()
        run = Driven(source)
        run.rows(5, 1)
        covered = run.reader.position()
        run.rows(1)
        assert len(list((tmp_path / "in/f").iterdir())) == 3
        run.reader.committed(covered)

        def left(run: Driven = run) -> bool:
            run.reader.choose(1)
            return [path.name for path in (tmp_path / "in/f").iterdir()] == ["2"]

        run.until(left, "the end of two files")
        run.close()
        if archive is not None:
            assert sorted(path.name for path in (archive / "f").iterdir()) == ["0", "1"]
            for path in list((archive / "f").iterdir()):
                path.rename(tmp_path / "in/f" / path.name)


def test_what_was_read_is_forgotten(tmp_path: Path) -> None:
    """Of files that are gone, and of files that are old; those are not read again."""
    for file in range(3):
        put(tmp_path / f"{file}", lines(file, 1), NOW_S + 100 * file)
    run = Driven(source_of(tmp_path, max_age_ns=150 * 10**9, poll_s=0.005))
    run.rows(3)
    run.idle()
    run.until(lambda: run.reader.choose(1) is None and len(run.reader._backlog.read) == 2, "the oldest is forgotten")
    (tmp_path / "2").unlink()
    run.until(lambda: run.reader.choose(1) is None and len(run.reader._backlog.read) == 1, "a removed one is, too")
    position = run.reader.position()
    put(tmp_path / "late", "late\n", NOW_S)
    run.until(lambda: run.reader.choose(1) is None and run.reader.gauges()["ignored_files"] == 1, "a late file")
    run.close()
    again = Driven(run.source, position=position)
    again.idle(3)
    put(tmp_path / "2", lines(2, 2))
    assert len(again.rows(2)) == 2
    again.close()


def test_old_files_that_were_there_are_read(tmp_path: Path) -> None:
    """Whatever their age; also those that a reader had not begun when it stopped."""
    for file in range(5):
        put(tmp_path / f"{file}", lines(file, 1), NOW_S + 100 * file)
    run = Driven(source_of(tmp_path, max_age_ns=10**9))
    run.rows(2)
    position = run.reader.position()
    run.close()
    again = Driven(run.source, position=position)
    assert split(values(again.rows(3))) == [(2, 0), (3, 0), (4, 0)]
    again.idle()
    again.close()


def test_a_broken_row_comes_after_the_rows_before_it(tmp_path: Path) -> None:
    put(tmp_path / "a", '{"n": 1}\n{"n": 2}\nx\n{"n": 3}\n')
    run = Driven(source_of(tmp_path, "json", "n long", chunk_bytes=9))
    assert [row["n"] for row in run.rows(2)] == [1, 2]
    with pytest.raises(InputError, match=r"/a', row 3: not a JSON object; it is 'x'"):
        run.step()
    run.close()


def test_the_column_of_file_names(tmp_path: Path) -> None:
    put(tmp_path / "f/a", "1\n2\n")
    put(tmp_path / "b", "3\n")
    run = Driven(source_of(tmp_path, watch=False, recursive=True, file_column="path").planned())
    found = run.all_rows()
    assert sorted((row["value"], row["path"]) for row in found) == [
        ("1", f"{tmp_path}/f/a"),
        ("2", f"{tmp_path}/f/a"),
        ("3", f"{tmp_path}/b"),
    ]
    run.close()


def test_a_directory_that_is_away_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path / "in/a", lines(0, 2))
    run = Driven(source_of(tmp_path / "in"))
    run.rows(2)
    (tmp_path / "in").rename(tmp_path / "away")
    run.until(lambda: "cannot list the directory" in caplog.text, "a warning")
    put(tmp_path / "away/b", lines(1, 2))
    (tmp_path / "away").rename(tmp_path / "in")
    assert split(values(run.rows(2))) == [(1, 0), (1, 1)]
    assert caplog.text.count("cannot list the directory") == 1
    run.close()


def test_a_store_that_fails_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As stores may, not local disks: a file is opened again and read from the same place."""
    put(tmp_path / "a", lines(0, 50))
    monkeypatch.setattr(decoding, "RETRY_S", 0.001)
    monkeypatch.setattr(InputDirectory, "is_local", False)
    real, failures = InputDirectory.stream, [0]

    class Failing:
        """Gives a few bytes, then fails."""

        def __init__(self, stream: Any) -> None:
            self.stream, self.reads = stream, 0

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *_: object) -> None:
            self.stream.close()

        def read(self, count: int) -> bytes:
            self.reads += 1
            if self.reads == 3:
                failures[0] += 1
                raise OSError("the store is busy")
            return self.stream.read(count)

    monkeypatch.setattr(directory.InputDirectory, "stream", lambda *given: Failing(real(*given)))
    run = Driven(source_of(tmp_path, chunk_bytes=30))
    assert split(values(run.rows(50))) == [(0, line) for line in range(50)]
    assert failures[0] > 3
    run.close()
    monkeypatch.setattr(Failing, "read", lambda *_: (_ for _ in ()).throw(OSError("the store is away")))
    run = Driven(run.source)
    with pytest.raises(InputError, match=r"cannot read '.*a': OSError: the store is away"):
        run.step()
    run.close()


# --- the descriptor


def test_what_was_planned_comes_back(tmp_path: Path) -> None:
    put(tmp_path / "a", "1\n")
    planned = source_of(tmp_path, watch=False).planned()
    put(tmp_path / "b", "2\n")
    assert isinstance(planned, DirectoryFiles) and planned.planned() is planned
    again = source_of(tmp_path, watch=False).with_split_plan(planned.split_plan())
    assert again == planned
    run = Driven(again)
    assert values(run.all_rows()) == ["1"]
    run.close()
    assert source_of(tmp_path).planned().split_plan() is None


def test_a_directory_that_cannot_be_read(tmp_path: Path) -> None:
    put(tmp_path / "file", "1\n")
    put(tmp_path / "log/_spark_metadata/0", "v1\n")
    for path, message in [("none", "there is no directory"), ("file", "not a directory"), ("log", "from_spark")]:
        with pytest.raises(InputError, match=message):
            source_of(tmp_path / path).planned()


@pytest.mark.parametrize("position", [7, {}, {"format": 2}, {"format": 1, "read": "?"}])
def test_what_is_no_position(tmp_path: Path, position: Any) -> None:
    with pytest.raises(InputError, match="source 'files': not a position"):
        source_of(tmp_path).reader(0, 1).open(position)


def test_an_archive_in_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must not be in the directory"):
        source_of(tmp_path, after="archive", archive_dir=str(tmp_path / "done"))
    with pytest.raises(ConfigurationError, match="in the same file system"):
        source_of(tmp_path, after="archive", archive_dir="s3://bucket/x").planned()


def test_a_file_from_the_future_makes_no_other_too_old(tmp_path: Path) -> None:
    put(tmp_path / "future", lines(0, 1), time.time() + 1_000_000)
    run = Driven(source_of(tmp_path, max_age_ns=1_000 * 10**9))
    run.rows(1)
    run.idle()
    put(tmp_path / "now", lines(1, 1))
    assert split(values(run.rows(1))) == [(1, 0)]
    assert run.reader.gauges()["ignored_files"] == 0
    run.close()


@pytest.mark.parametrize("after", ["delete", "archive"])
def test_a_covered_file_that_was_replaced_stays(tmp_path: Path, after: str) -> None:
    put(tmp_path / "in/0", lines(0, 1), NOW_S)
    archive = str(tmp_path / "done") if after == "archive" else None
    run = Driven(source_of(tmp_path / "in", after=after, archive_dir=archive, poll_s=3600.0))
    run.rows(1)
    while run.reader.gauges()["lag_files"]:
        run.step()
    put(tmp_path / "in/0", lines(1, 1), NOW_S + 1)
    run.reader.committed(run.reader.position())
    run.close()
    assert (tmp_path / "in/0").read_text() == lines(1, 1)


def test_a_closed_reader_removes_what_was_covered_before(tmp_path: Path) -> None:
    """The last checkpoint of a job is complete just before its readers are closed."""
    put(tmp_path / "in/0", lines(0, 1), NOW_S)
    run = Driven(source_of(tmp_path / "in", after="delete", poll_s=3600.0))
    run.rows(1)
    while run.reader.gauges()["lag_files"]:
        run.step()
    run.reader.committed(run.reader.position())
    run.close()
    assert list((tmp_path / "in").iterdir()) == []


def test_the_archive_keeps_files_of_the_same_name(tmp_path: Path) -> None:
    inputs, archive = InputDirectory(str(tmp_path / "in")), tmp_path / "done"
    for content in ("1\n", "22\n", "333\n"):
        put(tmp_path / "in/day.csv", content)
        inputs.move(inputs.info("day.csv"), str(archive))
        assert list((tmp_path / "in").iterdir()) == []
    assert sorted(path.read_text() for path in archive.iterdir()) == ["1\n", "22\n", "333\n"]
    assert {path.suffix for path in archive.iterdir()} == {".csv"}
    inputs.move(SeenFile.of("day.csv", 1, NOW_S), str(archive))  # it is not there: nothing to do
    inputs.delete(SeenFile.of("day.csv", 1, NOW_S))
    assert len(list(archive.iterdir())) == 3


def test_a_move_in_an_object_store_is_repeated(tmp_path: Path) -> None:
    """It is a copy and a removal, and a failure may come between them."""
    with s3_server() as bucket:
        inputs, archive = InputDirectory(bucket.uri("in")), bucket.uri("done")
        for content in (b"1\n", b"1\n", b"22\n"):
            bucket.objects["in/day.csv"] = content
            inputs.move(inputs.info("day.csv"), archive)
            assert not bucket.below("in")
        assert bucket.objects["done/day.csv"] == b"1\n"
        assert sorted(bucket.objects[f"done/{name}"] for name in bucket.below("done")) == [b"1\n", b"22\n"]
