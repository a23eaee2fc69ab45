"""``flinkplus.checkpoints``: what is in a checkpoint directory, without Spark and without disturbing a running job."""

from __future__ import annotations

import os

from pyarrow import fs

from flinkplus.runtime.job.signing import existing_key
from flinkplus.state.durable.listing import Listing, StoredCheckpoints
from flinkplus.state.durable.storage import CheckpointStorage


def checkpoints(
    directory: str | os.PathLike[str],
    *,
    filesystem: fs.FileSystem | None = None,
    signing_key: str | os.PathLike[str] | None = None,
    verify: bool = False,
) -> StoredCheckpoints:
    """The checkpoints in a directory, oldest first, with sizes, operators, and whether each can be resumed from.

    ``directory``: a local path, or a URI that ``pyarrow.fs`` understands.
    ``filesystem``: the file system that ``directory`` is a path of.
    ``signing_key``: file of the key that must have signed the checkpoints; default: ``FLINKPLUS_KEY_FILE``, otherwise
    the user's own key. Where there is none, signatures are not checked.
    ``verify``: read every state file and compare its checksum; otherwise only existence and size are checked.

    Nothing is written or locked, so it may be called while the job runs. A checkpoint that cannot be read is listed
    with the reason. Raises ``CheckpointDirectoryError`` for a directory that cannot be listed or has no job, and
    ``ConfigurationError`` for a key file that cannot be used.
    """
    where = os.fspath(directory)
    key = existing_key(None if signing_key is None else os.fspath(signing_key), where)
    return Listing(CheckpointStorage(where, filesystem), key, verify).read()
