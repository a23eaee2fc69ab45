"""``CheckpointStorage``: the checkpoint directory of one job, put together from parts.

| files | part |
| --- | --- |
| ``JOB.json``: whose directory this is, and where it was; signed | ``ownership`` |
| ``blobs/plan``: what a new driver needs to resume the job, pickled; signed | ``blobs`` |
| ``blobs/program``: a description of the program that was started last; signed | ``blobs`` |
| ``blobs/zookeeper``: the secret behind the job's password in an ensemble; signed | ``blobs`` |
| ``.runs/<place>``: which run of the job has the directory | ``runs`` |
| ``blobs/cuts-<run>-<n>``: which manifests count | ``runs`` |
| ``state/<subtask>/<generation>-<checkpoint>-<n>.sst`` | ``state_files`` |
| ``checkpoints/<checkpoint>-<epoch>.json``; signed | ``manifests`` |

``retention`` removes what no checkpoint needs. Any thread may call anything here.
"""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from flinkplus.errors import CheckpointDirectoryError, StateError
from flinkplus.state.durable.blobs import Blobs
from flinkplus.state.durable.history import EPOCHS_PER_RUN
from flinkplus.state.durable.manifests import Manifests
from flinkplus.state.durable.ownership import Ownership
from flinkplus.state.durable.retention import CheckpointRetention
from flinkplus.state.durable.runs import Runs
from flinkplus.state.durable.seals import SigningKey
from flinkplus.state.durable.signed_files import SignedFiles
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.durable.uploads import Uploads
from flinkplus.state.file_system import open_directory


class CheckpointStorage:
    """The checkpoint directory of one job.

    ``uri_or_path``: a local path, or a URI that ``pyarrow.fs`` understands.
    ``filesystem``: a pyarrow file system to use instead of the one in the URI.
    ``key``, ``trust``: see ``SignedFiles``. ``trust`` ends with ``sign_again``.
    """

    def __init__(
        self,
        uri_or_path: str | Path,
        filesystem: fs.FileSystem | None = None,
        key: SigningKey | None = None,
        trust: bool = False,
    ) -> None:
        self.uri = uri = str(uri_or_path)
        try:
            files = open_directory(uri_or_path, filesystem)
        except (OSError, ValueError) as error:
            raise CheckpointDirectoryError(
                f"checkpoint directory {uri!r} cannot be opened: {error}; give a local path or a URI such as s3://bucket/path"
            ) from error
        uploads = Uploads(files.bucket)
        self.files = files
        self.signed = SignedFiles(files, key, trust)
        self.blobs = Blobs(files, self.signed)
        self.runs = Runs(uri, files, self.blobs, uploads)
        self.state_files = StateFiles(uri, files)
        self.manifests = Manifests(uri, files, self.signed, self.runs, self.state_files)
        self.retention = CheckpointRetention(self.manifests, self.state_files, self.runs, uploads)
        self.ownership = Ownership(uri, files, self.signed, self.blobs, self.manifests, self.runs)

    def begin(self, at_least: int = 1) -> int:
        """As ``Runs.begin``, with a number above those of all runs that have left something: claims may be missing
        where a user has copied a directory."""
        return self.runs.begin(max(at_least, self.manifests.newest_epoch() // EPOCHS_PER_RUN + 1))

    def sign_again(self) -> None:
        """Sign trusted content, as it was read, with our own key; from then on nothing else is accepted.

        Call it within a run. Raises ``StateError``.
        """
        if not self.signed.trust:
            return
        try:
            self.manifests.sign_again()
            self.blobs.sign_again()
            self.ownership.sign_again()
        except OSError as error:
            raise StateError(f"what is in {self.uri!r} cannot be signed: {error}") from error
        self.signed.end_trust()
