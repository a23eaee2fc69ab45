"""Mutual TLS, by option: certificates, contexts, and sockets for the loops.

Rules: each end shows a certificate of the job's authority and asks for one; TLS 1.3 only. Who exactly is at the other
end is not a matter of names in certificates but of the handshake that follows inside (``handshake``); gRPC insists on
a name, ``NAME``. What a loop calls on a ``TlsSocket`` never waits; any thread may write while the loop reads.
"""

from __future__ import annotations

import datetime
import errno
import functools
import os
import socket
import ssl
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flinkplus.errors import ConfigurationError

NAME = "flinkplus"
AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
VALID_DAYS = 3650
CLOCKS_DIFFER = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificates:
    """PEM: of the authority, of who shows this, and the key to the latter."""

    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)


def made_for(job_id: str) -> Certificates:
    """New certificates for one job. Its authority's key is forgotten at once: there will be no others."""
    from cryptography import x509  # the driver alone needs it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.timezone.utc)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def begun(subject: str, public: ec.EllipticCurvePublicKey, of_authority: bool) -> x509.CertificateBuilder:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named(f"flinkplus authority {job_id}"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCKS_DIFFER)
            .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
            .add_extension(x509.BasicConstraints(of_authority, 0 if of_authority else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=not of_authority,
                    key_cert_sign=of_authority,
                    crl_sign=of_authority,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )

    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    authority = begun(f"flinkplus authority {job_id}", authority_key.public_key(), True).sign(
        authority_key, hashes.SHA256()
    )
    certificate = (
        begun(f"flinkplus job {job_id}", key.public_key(), False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Certificates(
        authority.public_bytes(pem),
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def read_from(directory: str) -> Certificates:
    """Those of a directory on this host. Raises ``ConfigurationError``."""
    try:
        return Certificates(*(Path(directory, name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY)))
    except OSError as error:
        raise ConfigurationError(f"tls: {AUTHORITY}, {CERTIFICATE} and {KEY} in {directory!r}: {error}") from error


@functools.lru_cache(maxsize=16)
def context(certificates: Certificates, server: bool) -> ssl.SSLContext:
    """For one end of connections. Raises ``ConfigurationError`` for what is no certificate, or no key to it."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    if server:
        made.num_tickets = 0  # no client resumes a session
    descriptor, name = tempfile.mkstemp(prefix="flinkplus-key-")  # readable by this user only; OpenSSL wants a file
    try:
        with open(descriptor, "wb") as file:
            file.write(certificates.key + b"\n" + certificates.certificate)
        made.load_cert_chain(name)
        made.load_verify_locations(cadata=certificates.authority.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"tls: these certificates cannot be used: {error}") from error
    finally:
        os.unlink(name)
    return made


class TlsSocket:
    """A connected socket with TLS over it, as ``Connection`` uses sockets. ``BlockingIOError``: not yet."""

    def __init__(self, sock: socket.socket, certificates: Certificates, server: bool) -> None:
        sock.getpeername()  # it may have been reset meanwhile, and would be left open where it is wrapped
        self._sock = context(certificates, server).wrap_socket(
            sock, server_side=server, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
        self._sock.setblocking(False)
        self._lock = threading.Lock()
        if getattr(self._sock, "_sslobj", None) is None:  # it broke meanwhile: nothing is to be taken without TLS
            self._sock.close()
            raise OSError(errno.ENOTCONN, "the connection has broken")

    def fileno(self) -> int:
        return self._sock.fileno()

    def do_handshake(self) -> None:
        with self._lock:
            try:
                self._sock.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def recv_into(self, buffer: memoryview) -> int:
        """As much as there is and fits: several records, so that none is left where no selector sees it."""
        filled = 0
        with self._lock:
            try:
                while filled < len(buffer):
                    count = self._sock.recv_into(buffer[filled:])
                    if not count:
                        break  # the end; what came before it is taken first
                    filled += count
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not filled:
                    raise BlockingIOError from None
            except ssl.SSLEOFError:
                pass
            return filled

    def pending(self) -> int:
        """Bytes that are there although no selector says so."""
        return self._sock.pending() if self._sock.fileno() >= 0 else 0

    def send(self, data: Any) -> int:
        with self._lock:
            try:
                return self._sock.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        return self._sock.getsockopt(level, name, size)

    def shutdown(self, how: int) -> None:
        """Shut the connection down; TLS is left as it is, for what still comes in."""
        socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        self._sock.close()
