"""Files of a directory as a source: those that are there at the start, or also all that appear while the job runs.

Rules:

- Reader *i* of *n* owns a file if the number of its path is *i* modulo *n*: nothing is dealt, and a new file has an
  owner at once. Each reader lists the directory by itself.
- Each file is read once, from its beginning to its end. It must be complete when it appears, and not change.
- With ``watch=False`` the driver lists the files, once; a resumed job reads the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import Source
from flinkplus.sources.files.directory import InputDirectory
from flinkplus.sources.files.position import FilesPosition, position_of, redealt
from flinkplus.sources.files.reader import FilesReader, FilesToRead
from flinkplus.sources.files.records import FileFormat
from flinkplus.sources.files.seen import SeenFile
from flinkplus.state.file_system import absolute, filesystem_of, is_uri


@dataclass(frozen=True)
class DirectoryFiles(Source):
    """The files in the directory ``path``, a local path or a URI that ``pyarrow.fs`` knows.

    ``form``: how they are read. ``poll_s``: pause between listings. ``max_age_ns``: see ``backlog``.
    ``changed``: ``"fail"`` or ``"ignore"``. ``after``: what becomes of a file when a complete checkpoint covers it;
    ``archive_dir``: where it is moved. ``file_column``: a column with the name of the file.
    ``files``: by ``planned``, unless the directory is watched.

    Raises ``ConfigurationError`` for options that make no sense.
    """

    name: str
    path: str
    form: FileFormat
    watch: bool = True
    recursive: bool = False
    poll_s: float = 1.0
    max_age_ns: int | None = None
    changed: str = "fail"
    after: str = "keep"
    archive_dir: str | None = None
    file_column: str | None = None
    files: tuple[SeenFile, ...] | None = None

    is_live: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check_one_of("changed", self.changed, ("fail", "ignore"))
        self._check_one_of("after", self.after, ("keep", "delete", "archive"))
        if (self.after == "archive") != (self.archive_dir is not None):
            raise ConfigurationError(f"source {self.name!r}: after='archive' and archive_dir go together")
        if self.archive_dir is not None and _inside(self.archive_dir, self.path):
            raise ConfigurationError(f"source {self.name!r}: archive_dir must not be in the directory that is read")
        if self.file_column is not None and self.file_column in self.form.schema.names:
            raise ConfigurationError(
                f"source {self.name!r}: the schema has a column {self.file_column!r}: choose another file_column"
            )

    def _check_one_of(self, option: str, value: str, known: tuple[str, ...]) -> None:
        if value not in known:
            raise ConfigurationError(f"source {self.name!r}: {option} must be one of {known}, not {value!r}")

    @property
    def schema(self) -> pa.Schema:
        """Those of the format, and the name of the file."""
        found = self.form.schema
        return found if self.file_column is None else found.append(pa.field(self.file_column, pa.string(), False))

    @property
    def directory(self) -> InputDirectory:
        """What is listed and read; a new object each time."""
        return InputDirectory(self.path, self.recursive)

    @override
    def planned(self) -> DirectoryFiles:
        if self.files is not None:
            return self
        directory = self.directory
        directory.check()
        if self.archive_dir is not None:
            _check_archive(self.name, self.path, self.archive_dir)
        if self.watch:
            return self
        try:
            return replace(self, files=tuple(sorted(directory.files())))
        except OSError as error:
            raise InputError(f"source {self.name!r}: cannot list {directory.shown!r}: {error}") from error

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        kind = type(self.form).__name__.removesuffix("Format").lower()
        multiline = bool(getattr(self.form, "multiline", False))
        return {"path": self.directory.shown, "format": kind, "recursive": self.recursive, "multiline": multiline}

    @override
    def split_plan(self) -> JsonValue:
        return None if self.files is None else [[file.path, file.size, file.mtime_ns] for file in self.files]

    @override
    def with_split_plan(self, plan: Any) -> DirectoryFiles:
        files = tuple(SeenFile.of(str(path), int(size), int(mtime_ns)) for path, size, mtime_ns in plan)
        return replace(self, files=files)

    @override
    def reader(self, index: int, parallelism: int) -> FilesReader:
        if not self.watch and self.files is None:
            raise ConfigurationError(f"source {self.name!r} is not planned; the driver must call planned()")
        directory = self.directory
        dispose = None if self.after == "keep" else partial(_dispose, directory, self.archive_dir)
        ignores = self.changed == "ignore"
        known = (self.poll_s, self.max_age_ns, ignores, self.file_column, self.files, dispose)
        return FilesReader(FilesToRead(self.name, self.schema, directory, self.form, *known), index, parallelism)

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        found = [FilesPosition() if position is None else position_of(self.name, position) for position in positions]
        return [position.to_json() for position in redealt(found, parallelism)]


def _dispose(directory: InputDirectory, archive_dir: str | None, file: SeenFile) -> None:
    if archive_dir is None:
        directory.delete(file)
    else:
        directory.move(file, archive_dir)


def _inside(inner: str, outer: str) -> bool:
    def plain(location: str) -> str:
        return location.partition("?")[0].rstrip("/") + "/"

    return plain(absolute(inner)).startswith(plain(absolute(outer)))


def _check_archive(source: str, path: str, archive_dir: str) -> None:
    """Raises ``ConfigurationError`` unless files can be moved from one to the other."""
    if is_uri(path) != is_uri(archive_dir):
        raise ConfigurationError(f"source {source!r}: archive_dir must be in the same file system as the directory")
    try:
        same = filesystem_of(path)[0].equals(filesystem_of(archive_dir)[0])
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"source {source!r}: archive_dir cannot be opened: {error}") from error
    if not same:
        raise ConfigurationError(f"source {source!r}: archive_dir must be in the same file system as the directory")
