"""What an output directory holds before a job adds to it (``append``): which data, and whether the output fits to it.

Spark's readers of a directory with ``_spark_metadata`` see only what is listed there. So what others have written is
listed too, from the start:

- Files without a list, for example of a batch job, are taken into the new list.
- The list of another job of ours that has ended is continued. That job cannot be resumed any more.

Refused is a directory with other files, with other folders of partitions, with files of other columns (one of them is
read), with a list that Spark has written, and one whose job has not ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from flinkplus.errors import OutputDirectoryError, UnsafeName
from flinkplus.path_names import checked_foreign
from flinkplus.printable import printable
from flinkplus.sinks.file_names import STAGING_DIRECTORY, PartName, job_tag
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.partitions import values_of
from flinkplus.sinks.spark_log import LOG_DIRECTORY, LoggedFile, SparkFileLog, logged

DELTA_LOG = "_delta_log"


@dataclass(frozen=True)
class OutputForm:
    """What the files of an output are like. ``empty_file``: the content of one without rows.

    ``partition_by``, ``append``: see ``FileSink``. ``why_other``: see ``FileSink.why_other``.
    """

    suffix: str = ""
    partition_by: tuple[str, ...] = ()
    empty_file: bytes = b""
    append: bool = False
    why_other: Callable[[Any], str] = lambda content: ""


class EarlierData:
    """What is in the directory ``files``, whose list is ``log_``, before an output of ``form`` is added."""

    def __init__(self, files: OutputFiles, log_: SparkFileLog, form: OutputForm) -> None:
        self._files = files
        self._log = log_
        self._form = form

    def files(self, owner: object, new_owner: dict[str, Any]) -> Sequence[LoggedFile]:
        """The files that are not listed yet. Raises ``OutputDirectoryError``.

        ``owner``: as the directory says; ``None``: it says nothing. ``new_owner``: of the output that is added.
        """
        self._check_owner(owner, new_owner)
        if owner is not None and self._log.is_made():
            self._check_listed(job_tag(new_owner["job"]))
            return ()
        if owner is None and self._files.entries(LOG_DIRECTORY):
            raise self._refused(f"its {LOG_DIRECTORY} is that of a query of Spark")
        if self._files.entries(DELTA_LOG):
            raise self._refused("it is a table of Delta Lake; to_delta adds to it")
        found = list(self._files.data_files())
        self._check_form([name for name, _ in found])
        return [logged(self._files, name, entry) for name, entry in found]

    def _check_owner(self, owner: object, new: dict[str, Any]) -> None:
        if owner is None or owner == new:
            return
        if not isinstance(owner, dict) or owner.get("format") != new["format"]:
            raise self._refused("another version of FlinkPlus has written it")
        if owner.get("job") == new["job"]:
            raise self._refused(f"sink {printable(owner.get('sink'))!r} of this job writes to it")
        others = [entry.name for entry in self._files.entries(STAGING_DIRECTORY) if entry.name != new["job"]]
        if others:
            raise self._refused(
                f"job {printable(others[0])!r} has not ended: let it finish, or cancel it; if its driver has died, "
                f"resume it first, or remove {STAGING_DIRECTORY}"
            )

    def _check_listed(self, own_tag: str) -> None:
        self._log.load()
        listed = list(self._log.all_files())
        if any(part.job == own_tag for file in listed if (part := PartName.parse(file.name)) is not None):
            raise self._refused("it holds output of this job already")
        self._check_form([self._relative(file) for file in listed])

    def _relative(self, file: LoggedFile) -> str:
        """The name of a listed file below the directory, also if the list calls the directory otherwise."""
        here = self._files.uri("") + "/"
        if file.path.startswith(here):
            return unquote(file.path.removeprefix(here))
        *folders, last = unquote(file.path).split("/")
        kept = [last]
        while folders and "=" in folders[-1]:
            kept.insert(0, folders.pop())
        return "/".join(kept)

    def _check_form(self, names: Sequence[str]) -> None:
        """Check the names of all files, and the columns of one."""
        for name in names:
            folder, _, last = name.rpartition("/")
            self._check_listable(name)
            if not last.endswith(f".{self._form.suffix}"):
                raise self._refused(f"it holds {printable(name)}, which is no .{self._form.suffix} file")
            try:
                columns = tuple(values_of(folder))
            except ValueError:
                raise self._refused(f"it holds {printable(name)}, which is in no folder of a partition") from None
            if columns != self._form.partition_by and not _is_empty(last):
                raise self._refused(
                    f"{printable(name)} is divided by {', '.join(columns) or 'nothing'}, and the output by "
                    f"{', '.join(self._form.partition_by) or 'nothing'}"
                )
        first = next((name for name in names if not _is_empty(name)), None)
        if first is not None and self._files.info(first) is not None:
            self._check_columns(first)

    def _check_listable(self, name: str) -> None:
        try:
            for part in name.split("/"):
                checked_foreign(part)
        except UnsafeName as error:
            raise self._refused(printable(error)) from None

    def _check_columns(self, name: str) -> None:
        with self._files.opened(name) as content:
            why = self._form.why_other(content)
        if why:
            raise self._refused(f"{printable(name)}: {why}")

    def _refused(self, why: str) -> OutputDirectoryError:
        return OutputDirectoryError(
            f"cannot add to output directory {self._files.location}: {why}; choose another directory"
        )


def _is_empty(name: str) -> bool:
    """Whether this is the file without rows that a job leaves which had none (checkpoint 0)."""
    part = PartName.parse(name.rpartition("/")[2])
    return part is not None and part.checkpoint == 0
