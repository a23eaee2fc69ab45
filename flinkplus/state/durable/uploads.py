"""Multipart uploads to S3 that no process will complete.

A file of more than 10 MB goes to S3 in parts. When its process is killed, the parts stay in the bucket: they are in no
listing of files, and are paid for. botocore, which is optional (``flinkplus[s3]``), can abort them; ``pyarrow.fs``
cannot.

Rules: only uploads below the given folder are aborted. Without botocore, or when S3 refuses (``abort`` needs
``s3:ListBucketMultipartUploads``), there is only a warning: the job does not depend on it.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from flinkplus.errors import without_secrets

LONGEST_UPLOAD_S = 3600.0
"""While a job runs, an upload that began longer ago belongs to a process that was killed."""
TIMEOUT_S = 10.0
ATTEMPTS = 2
LOOK_EVERY_S = 1800.0
DEFAULT_REGION = "us-east-1"

log = logging.getLogger("flinkplus")
_warned: set[str] = set()


class Uploads:
    """The multipart uploads below the folder ``location``; nothing to do unless it is an ``s3://`` URI."""

    def __init__(self, location: str) -> None:
        self._on_s3 = location.startswith("s3://")
        parts = urlsplit(location)
        self._options = dict(parse_qsl(parts.query))
        self._key = unquote(parts.username or "")
        self._secret = unquote(parts.password or "")
        self._bucket = parts.hostname or ""
        self._folder = unquote(parts.path).strip("/")
        self._where = f"s3://{self._bucket}/{self._folder}"
        self._client: Any = None
        self._looked_s = time.monotonic()

    def abort_old(self, folder: str = "") -> None:
        """Abort uploads that began longer ago than any upload takes; looks at most every ``LOOK_EVERY_S`` seconds."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self.abort(folder, LONGEST_UPLOAD_S)

    def abort(self, folder: str = "", older_than_s: float = 0.0) -> int:
        """Abort the uploads below ``folder`` that began more than ``older_than_s`` ago. Returns how many."""
        if not self._on_s3:
            return 0
        try:
            client = self._client = self._client or self._connect()
        except ImportError:
            _warn_once("multipart uploads of killed processes stay on S3; pip install 'flinkplus[s3]' aborts them")
            return 0
        before_s, aborted = time.time() - older_than_s, 0
        prefix = "/".join(part for part in (self._folder, folder.strip("/")) if part)
        try:
            pages = client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{prefix}/" if prefix else ""):
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"].timestamp() <= before_s:
                        client.abort_multipart_upload(
                            Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )
                        aborted += 1
        except Exception as error:  # botocore has many kinds; the job does not depend on them
            _warn_once(f"multipart uploads below {self._where} cannot be aborted: {without_secrets(str(error))}")
        if aborted:
            log.info("aborted %d multipart uploads below %s that no process will complete", aborted, self._where)
        return aborted

    def _connect(self) -> Any:
        from botocore.config import Config
        from botocore.session import get_session

        endpoint = self._options.get("endpoint_override")
        session = get_session()
        return session.create_client(
            "s3",
            region_name=self._options.get("region") or session.get_config_variable("region") or DEFAULT_REGION,
            endpoint_url=f"{self._options.get('scheme', 'https')}://{endpoint}" if endpoint else None,
            aws_access_key_id=self._key or None,
            aws_secret_access_key=self._secret or None,
            config=Config(
                connect_timeout=TIMEOUT_S,
                read_timeout=TIMEOUT_S,
                retries={"max_attempts": ATTEMPTS},
                s3={"addressing_style": "path"} if endpoint else None,
            ),
        )


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        log.warning(message)
