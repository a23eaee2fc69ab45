"""Envelopes of blobs and manifests: a checksum against damage, a signature against forgery.

A file is one line and the content behind it::

    <magic> 1 <bytes> <checksum>                                sealed: content that does no harm if a stranger wrote it
    <magic> 2 <bytes> <checksum> <job> <key> <signature>        signed: what is unpickled, or says what is restored

Rules:
- the checksum is BLAKE2b over the content, of 20 bytes when it is sealed and of 32 when it is signed;
- the signature is HMAC-SHA256 over the line before it and the name of the file within its directory; the checksum
  stands for the content;
- the key is derived from the user's and the id of the job, so that what is signed for one job is of no use for another.
  ``<key>`` names the user's key, and reveals nothing of it;
- what is short or altered is ``CorruptCheckpoint``; what is whole, and not signed by a known key, is
  ``UntrustedCheckpoint``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from flinkplus.errors import CorruptCheckpoint, UnsafeName, UntrustedCheckpoint
from flinkplus.path_names import checked_name
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.files import CHECKSUM_BYTES

SEALED_FORMAT = 1
SIGNED_FORMAT = 2
SIGNED_CHECKSUM_BYTES = 32
KEY_BYTES = 32
UNSIGNED = "-"
"""In the place of job, key and signature, in what is written without a key."""


@dataclass(frozen=True)
class SigningKey:
    """A user's key. ``where``: what it is called in messages."""

    secret: bytes = field(repr=False)
    where: str

    @classmethod
    def made(cls, where: str) -> SigningKey:
        """A new one."""
        return cls(secrets.token_bytes(KEY_BYTES), where)

    @property
    def name(self) -> str:
        """Identifies the key."""
        return hmac.digest(self.secret, b"flinkplus/key/name", "sha256")[:8].hex()

    def derived(self, purpose: str) -> SigningKey:
        """A key for one purpose, from which this one cannot be found."""
        return SigningKey(hmac.digest(self.secret, b"flinkplus/key/for/" + purpose.encode(), "sha256"), self.where)

    def sign(self, job_id: str, name: str, header: bytes) -> str:
        """The signature for the file ``name`` of a job, whose line begins with ``header``."""
        key = hmac.digest(self.secret, b"flinkplus/key/job/" + job_id.encode(), "sha256")
        return hmac.new(key, header + b"\n" + name.encode(), "sha256").hexdigest()


def sealed(magic: bytes, body: bytes) -> bytes:
    """``body`` with its checksum."""
    return b"%s %d %d %s\n%s" % (magic, SEALED_FORMAT, len(body), _digest(body, CHECKSUM_BYTES), body)


def unsealed(magic: bytes, data: bytes, where: str) -> bytes:
    """The inverse of ``sealed``. Raises ``CorruptCheckpoint`` naming ``where``."""
    fields, body = _fields(magic, data, SEALED_FORMAT, 4, where)
    _check_content(fields, body, CHECKSUM_BYTES, where)
    return body


def signed(magic: bytes, body: bytes, name: str, key: SigningKey | None, job_id: str | None) -> bytes:
    """``body`` with its checksum and a signature by ``key``, for the file ``name``."""
    digest = _digest(body, SIGNED_CHECKSUM_BYTES)
    job, key_name = (UNSIGNED, UNSIGNED) if key is None or job_id is None else (job_id, key.name)
    header = b"%s %d %d %s %s %s" % (magic, SIGNED_FORMAT, len(body), digest, job.encode(), key_name.encode())
    signature = UNSIGNED if key is None or job_id is None else key.sign(job_id, name, header)
    return b"%s %s\n%s" % (header, signature.encode(), body)


def checked(magic: bytes, data: bytes, name: str, key: SigningKey | None, where: str) -> tuple[bytes, str]:
    """The inverse of ``signed``: the body, and the id of the job. ``key`` ``None``: the signature is not checked.

    Raises ``CorruptCheckpoint`` or ``UntrustedCheckpoint`` naming ``where``.
    """
    fields, body = _fields(magic, data, SIGNED_FORMAT, 7, where)
    _check_content(fields, body, SIGNED_CHECKSUM_BYTES, where)
    try:
        job_id = checked_name(fields[4].decode("ascii"))
    except (UnicodeDecodeError, UnsafeName) as error:
        raise CorruptCheckpoint(f"{where} names a job ID that cannot exist: {error}") from None
    if key is not None:
        _check_signature(fields, job_id, name, key, where)
    return body, job_id


def _check_signature(fields: list[bytes], job_id: str, name: str, key: SigningKey, where: str) -> None:
    if fields[5] == UNSIGNED.encode():
        raise UntrustedCheckpoint(f"{where} is not signed")
    if not hmac.compare_digest(fields[5], key.name.encode()):
        raise UntrustedCheckpoint(
            f"{where} is signed with the key {fields[5].decode('ascii', 'replace')!r:.40}; the key here, {key.where}, "
            f"is {key.name!r}"
        )
    if not hmac.compare_digest(fields[6], key.sign(job_id, name, b" ".join(fields[:6])).encode()):
        raise UntrustedCheckpoint(f"{where} has a signature that was not made with the key it names, {key.name!r}")


def _fields(magic: bytes, data: bytes, known: int, count: int, where: str) -> tuple[list[bytes], bytes]:
    header, _, body = data.partition(b"\n")
    fields = header.split(b" ")
    if len(fields) < 2 or fields[0] != magic:
        raise CorruptCheckpoint(f"{where} is truncated or is not a FlinkPlus file")
    if fields[1] != b"%d" % known:
        raise CorruptCheckpoint(
            f"{where} has format {printable(fields[1].decode(errors='replace'), 40)}, known is {known}"
        )
    if len(fields) != count:
        raise CorruptCheckpoint(f"{where} is truncated or is not a FlinkPlus file")
    return fields, body


def _check_content(fields: list[bytes], body: bytes, digest_bytes: int, where: str) -> None:
    if fields[2] != b"%d" % len(body) or fields[3] != _digest(body, digest_bytes):
        raise CorruptCheckpoint(f"{where} does not match its checksum: it is truncated or was altered")


def _digest(data: bytes, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size).hexdigest().encode()
