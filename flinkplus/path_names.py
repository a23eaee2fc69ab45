"""Checks names that another process wrote and that become parts of a path; no other module does.

Rules:
- the function that parses such a name (``from_json``, a decoder) calls ``checked_name`` at once. A name that was made
  by this process, or listed by the file system, needs no check;
- a part of a path is not empty, does not begin with a dot, and consists of ASCII letters, digits and ``_+-.,=~%[]`` and
  space. So no name leads out of its directory, and none is a hidden file;
- a folder of partitions may have other letters too, since it is named by values; each part has a ``=``;
- so may a file that another program has put into an output directory.
"""

from __future__ import annotations

import re
from functools import lru_cache

from flinkplus.errors import UnsafeName

MAX_CHARACTERS = 200
"""Maximum length of a part: file systems take 255 bytes, and names of temporary files are longer than the name."""
MAX_SUBTASK_CHARACTERS = 10_000
"""A subtask is named after all operators that are fused in it. In a path a long name is shortened (``folder_name``)."""
STATE_FILE_PARTS = 2

MAX_PARTITION_BYTES = 255
"""Maximum length of a folder's name, and of another program's file, in UTF-8."""

_FIRST, _OTHERS = r"[A-Za-z0-9_+\-,=~%\[\] ]", r"[A-Za-z0-9_+\-.,=~%\[\] ]"


@lru_cache
def _pattern(parts: int, longest: int) -> re.Pattern[str]:
    return re.compile("/".join([f"{_FIRST}{_OTHERS}{{0,{longest - 1}}}"] * parts) + r"\Z")


def checked_name(name: object, parts: int = 1, longest: int = MAX_CHARACTERS) -> str:
    """Returns ``name``. Raises ``UnsafeName`` unless it is ``parts`` parts of a path with ``/`` between them, each of
    ``longest`` characters at most."""
    if type(name) is not str:
        raise UnsafeName(f"{name!r:.100} is no name")
    if _pattern(parts, longest).match(name) is None:
        raise UnsafeName(f"{name!r:.100} is no name of {parts} part{'s' * (parts > 1)} that may become a path")
    return name


def checked_subtask(name: object) -> str:
    """The name of a subtask or vertex, which becomes the name of its folder. Raises ``UnsafeName``."""
    return checked_name(name, longest=MAX_SUBTASK_CHARACTERS)


def checked_foreign(name: object) -> str:
    """Returns ``name``, one part of a path that another program has chosen. Raises ``UnsafeName``."""
    if type(name) is str and name and not name.startswith(".") and "/" not in name and "\0" not in name:
        try:
            if len(name.encode()) <= MAX_PARTITION_BYTES:
                return name
        except UnicodeEncodeError:  # not UTF-8 on the disk
            pass
    raise UnsafeName(f"{name!r:.100} is no name of a file that can be listed")


_PARTITION = re.compile(r"[^./=\x00-\x1f\x7f][^/=\x00-\x1f\x7f]*=[^/\x00-\x1f\x7f]+")


def checked_partition(folder: object) -> str:
    """Returns ``folder``, one or more parts ``column=value`` with ``/`` between them. Raises ``UnsafeName``."""
    parts = folder.split("/") if type(folder) is str else []
    for part in parts:
        if _PARTITION.fullmatch(part) is None or len(part.encode(errors="replace")) > MAX_PARTITION_BYTES:
            raise UnsafeName(f"{folder!r:.100} is no folder of partitions")
    if not parts:
        raise UnsafeName(f"{folder!r:.100} is no folder of partitions")
    return str(folder)
