"""Conditional writes to S3: an object is created only if none exists, or replaced only if it is unchanged.

Rules:
- an answer may be lost after the write. So what a refused or failed request has left is read back and compared;
- a server that does not know the conditions may ignore them. So the first accepted request of each kind is repeated:
  it must be refused. Otherwise, and without botocore, ``NoConditionalWrites`` is raised from then on.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from flinkplus.errors import without_secrets

TIMEOUT_S = 10.0
ATTEMPTS = 2
CONFLICTS = 6
"""Maximum number of tries while S3 reports that another conditional request for the object is in progress."""
CONFLICT_PAUSE_S = 0.05
"""Before the second try; doubled before each later one."""
DEFAULT_REGION = "us-east-1"

log = logging.getLogger("flinkplus")
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    if message not in _warned:
        _warned.add(message)
        log.warning(message)


def warn_unconditional(where: str, reason: str) -> None:
    """Log once that files are written to ``where`` without a condition."""
    warn_once(
        f"{where} has no conditional writes ({reason}): two drivers that begin a run of a job at the same moment may "
        "both believe that they have it; start one driver at a time, or give the job an ensemble "
        "(zookeeper='host:port,...')"
    )


class NoConditionalWrites(Exception):
    """The store cannot write on a condition; nothing was written."""


class S3Bucket:
    """The bucket that an ``s3://`` URI names, with its credentials. Paths are ``<bucket>/<key>``, as in Arrow."""

    def __init__(self, location: str) -> None:
        parts = urlsplit(location)
        self._options = dict(parse_qsl(parts.query))
        self._key = unquote(parts.username or "")
        self._secret = unquote(parts.password or "")
        self.name = parts.hostname or ""
        self.folder = unquote(parts.path).strip("/")
        self._client: Any = None
        self._refuses: set[str] = set()  # conditions that were seen to have an effect
        self._reason = ""  # why there are no conditional writes

    @classmethod
    def of(cls, location: str) -> S3Bucket | None:
        """``None``: the location is not on S3."""
        return cls(location) if location.startswith("s3://") else None

    @property
    def is_conditional(self) -> bool:
        """Whether conditional writes are known to be had, as far as that was tried."""
        try:
            self._required()
        except NoConditionalWrites:
            return False
        return True

    def client(self) -> Any:
        """botocore's client. Raises ``ImportError`` without botocore."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def create(self, path: str, data: bytes) -> bool:
        """Write an object if none of its name exists. Whether it now has this content.

        Raises ``OSError``: the object may appear later; ``NoConditionalWrites``.
        """
        return self._put(path, data, {"IfNoneMatch": "*"}, None)

    def swap(self, path: str, before: bytes, data: bytes) -> bool:
        """Replace an object that has the content ``before``. Whether it now has the content ``data``. Raises as
        ``create``."""
        found, tag = self._read(path)
        if found != before or data == before:
            return found == data
        return self._put(path, data, {"IfMatch": tag}, before)

    def _put(self, path: str, data: bytes, condition: dict[str, str], before: bytes | None) -> bool:
        accepted = self._requested(path, data, condition)
        (kind,) = condition
        if accepted:
            if kind not in self._refuses:
                self._try_again(path, data, condition, kind)
            return True
        found, _ = self._read(path)
        if found == data:
            return True
        if accepted is None and found == before:
            raise OSError(f"S3 has not answered whether {path!r} was written; it may appear later")
        return False

    def _requested(self, path: str, data: bytes, condition: dict[str, str]) -> bool | None:
        """Whether S3 has accepted the write; ``None``: it has not answered."""
        client = self._required()
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError

        bucket, _, key = path.partition("/")
        for number in range(CONFLICTS):
            try:
                client.put_object(Bucket=bucket, Key=key, Body=data, **condition)
                return True
            except ClientError as error:
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                if status == 412 or error.response.get("Error", {}).get("Code") == "NoSuchKey":
                    return False
                if status == 501:
                    raise self._unable("the server does not implement them") from None
                if status > 501 or status == 500:
                    _log_unanswered(path, error)
                    return None
                if status != 409:
                    raise _failed(path, error) from None
                time.sleep(CONFLICT_PAUSE_S * 2**number)
            except ParamValidationError:
                raise self._unable("botocore is too old; pip install -U 'flinkplus[s3]'") from None
            except NoCredentialsError as error:
                raise _failed(path, error) from None
            except BotoCoreError as error:
                _log_unanswered(path, error)
                return None
        raise OSError(f"{path!r} cannot be written: S3 reports conflicting requests without end")

    def _try_again(self, path: str, data: bytes, condition: dict[str, str], kind: str) -> None:
        """The same request once more, which must be refused."""
        try:
            accepted = self._requested(path, data, condition)
        except OSError:
            return  # the next write tries again
        except NoConditionalWrites:
            accepted = True
        if accepted:
            reason = self._reason = self._reason or "the server ignores the condition"
            warn_unconditional(f"s3://{self.name}", reason)
        elif accepted is not None:
            self._refuses.add(kind)

    def _read(self, path: str) -> tuple[bytes | None, str]:
        """Content and tag of an object; ``None``: it does not exist."""
        client = self._required()
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, _, key = path.partition("/")
        try:
            found = client.get_object(Bucket=bucket, Key=key)
            return found["Body"].read(), found["ETag"]
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                return None, ""
            raise _failed(path, error) from None
        except BotoCoreError as error:
            raise _failed(path, error) from None

    def _required(self) -> Any:
        if self._reason:
            raise NoConditionalWrites(self._reason)
        try:
            return self.client()
        except ImportError:
            raise self._unable("pip install 'flinkplus[s3]'") from None

    def _unable(self, reason: str) -> NoConditionalWrites:
        self._reason = reason
        return NoConditionalWrites(reason)

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
                request_checksum_calculation="when_required",  # not every server knows the others
                response_checksum_validation="when_required",
            ),
        )


def _log_unanswered(path: str, error: Exception) -> None:
    log.warning("S3 has not answered whether %s was written: %s", path, without_secrets(str(error)))


def _failed(path: str, error: Exception) -> OSError:
    return OSError(f"{path!r} cannot be written or read on S3: {without_secrets(str(error))}")
