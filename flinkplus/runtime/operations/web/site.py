"""Where the page of a job is served (option ``ui``), and what that place demands.

Rules: a host that other machines can reach needs TLS, because each request carries the token of the job.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
import ssl
import tempfile
from dataclasses import dataclass
from typing import Any

from flinkplus.config import SITE
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.operations.web.guard import names_loopback
from flinkplus.runtime.transport.auth.tls import Certificates

LOOPBACK = "127.0.0.1"
PACKAGES = ("prometheus_client", "starlette", "uvicorn")
INSTALL = "pip install 'flinkplus[ui]'"
BACKLOG = 64


@dataclass(frozen=True)
class Site:
    """``host`` is bound, at ``port`` (0: a free one)."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine reach it."""
        return names_loopback(self.host)


def is_installed() -> bool:
    """Whether the packages of the extra ``flinkplus[ui]`` are here."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)


def site_of(ui: bool | str, tls: bool | str) -> Site | None:
    """The place that the options ``ui`` and ``tls`` name; ``None``: no page.

    Raises ``ConfigurationError`` if packages are missing, or the host is not loopback and there is no TLS.
    """
    if ui is False:
        return None
    if not is_installed():
        raise ConfigurationError(f"the page of a job (option ui) needs further packages: {INSTALL}")
    if ui is True:
        return Site(LOOPBACK, 0)
    found = SITE.match(ui)
    assert found is not None  # the rule of the option
    site = Site(found["host"].strip("[]"), int(found["port"]))
    if not site.is_loopback and not tls:
        raise ConfigurationError(
            f"ui={ui!r}: other machines reach this host, and the token of the job would pass the network in clear; "
            f"give the job tls, or use ui='{LOOPBACK}:{site.port}' and a tunnel (ssh -L)"
        )
    return site


def bound(site: Site) -> socket.socket:
    """A socket that listens there. Raises ``ConfigurationError``, also for a ``localhost`` that others reach."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            site.host, site.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"the page of the job cannot be served at {site.host!r}: {error}") from error
    if site.is_loopback and not names_loopback(str(address[0])):
        listening.close()
        raise ConfigurationError(f"{site.host!r} is {address[0]} here, which other machines can reach")
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"the page of the job cannot be served at {site.host}:{site.port}: {error.strerror}; choose another port "
            "(option ui), or 0 for a free one"
        ) from error
    return listening


@functools.lru_cache(maxsize=4)
def server_context(certificates: Certificates) -> ssl.SSLContext:
    """TLS for browsers: they check this end, and prove themselves by the token. Raises ``ConfigurationError``."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    descriptor, name = tempfile.mkstemp(prefix="flinkplus-key-")  # readable by this user only; OpenSSL needs a file
    try:
        with open(descriptor, "wb") as file:
            file.write(certificates.key + b"\n" + certificates.certificate)
        made.load_cert_chain(name)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"tls: these certificates cannot be used: {error}") from error
    finally:
        os.unlink(name)
    return made


def url_of(host: str, listening: socket.socket, context: Any) -> str:
    """The address of the page. ``host``: the name at which it is reached."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if context else 'http'}://{shown}:{listening.getsockname()[1]}/"
