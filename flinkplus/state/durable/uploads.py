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

from flinkplus.errors import without_secrets
from flinkplus.state.s3.bucket import S3Bucket, warn_once

LONGEST_UPLOAD_S = 3600.0
"""While a job runs, an upload that began longer ago belongs to a process that was killed."""
LOOK_EVERY_S = 1800.0

log = logging.getLogger("flinkplus")


class Uploads:
    """The multipart uploads below the folder of a bucket. ``None``: it is not on S3, and there is nothing to do."""

    def __init__(self, bucket: S3Bucket | None) -> None:
        self._bucket = bucket
        self._looked_s = time.monotonic()

    def abort_old(self, folder: str = "") -> None:
        """Abort uploads that began longer ago than any upload takes; looks at most every ``LOOK_EVERY_S`` seconds."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self.abort(folder, LONGEST_UPLOAD_S)

    def abort(self, folder: str = "", older_than_s: float = 0.0) -> int:
        """Abort the uploads below ``folder`` that began more than ``older_than_s`` ago. Returns how many."""
        bucket = self._bucket
        if bucket is None:
            return 0
        try:
            client = bucket.client()
        except ImportError:
            warn_once("multipart uploads of killed processes stay on S3; pip install 'flinkplus[s3]' aborts them")
            return 0
        before_s, aborted = time.time() - older_than_s, 0
        where = f"s3://{bucket.name}/{bucket.folder}"
        prefix = "/".join(part for part in (bucket.folder, folder.strip("/")) if part)
        try:
            pages = client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=bucket.name, Prefix=f"{prefix}/" if prefix else ""):
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"].timestamp() <= before_s:
                        client.abort_multipart_upload(
                            Bucket=bucket.name, Key=upload["Key"], UploadId=upload["UploadId"]
                        )
                        aborted += 1
        except Exception as error:  # botocore has many kinds; the job does not depend on them
            warn_once(f"multipart uploads below {where} cannot be aborted: {without_secrets(str(error))}")
        if aborted:
            log.info("aborted %d multipart uploads below %s that no process will complete", aborted, where)
        return aborted
