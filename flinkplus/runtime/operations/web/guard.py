"""Which requests to the page of a job are allowed. Pure: headers in, a refusal out.

Rules:
- On loopback, reading needs no token, like other status pages of a machine; elsewhere it does. A wrong token is refused
  everywhere. A command always needs the token.
- A page of another site must not reach the job through the browser of its user. On loopback the request must name
  loopback as its host (a foreign name that resolves to loopback is refused), a command must come from this page or from
  no page, and its body must be declared as JSON, which a form cannot do. No response allows other origins (no CORS).
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

BEARER = "bearer "
JSON = "application/json"


@dataclass(frozen=True)
class Refusal:
    """``status``: of HTTP. ``reason``: for the client, without secrets."""

    status: int
    reason: str


@dataclass(frozen=True)
class Guard:
    """``token``: proves that a client may command the job. ``is_loopback``: only this machine reaches the port."""

    token: str = field(repr=False)
    is_loopback: bool

    def refusal(self, headers: Mapping[str, str], *, command: bool) -> Refusal | None:
        """Why a request is refused; ``None``: it is allowed. ``headers``: names in lower case."""
        found = self._of_site(headers, command)
        return self._of_token(headers, command) if found is None else found

    def of_host(self, headers: Mapping[str, str]) -> Refusal | None:
        """As ``refusal``, for what anyone may read: the page itself."""
        if self.is_loopback and not names_loopback(_host(headers.get("host", ""))):
            return Refusal(403, "the page of this job is at its address or at localhost, and at no other name")
        return None

    def _of_site(self, headers: Mapping[str, str], command: bool) -> Refusal | None:
        refused = self.of_host(headers)
        if refused is not None:
            return refused
        origin = headers.get("origin")
        foreign = origin is not None and _netloc(origin) != headers.get("host", "").lower()
        if foreign or headers.get("sec-fetch-site") == "cross-site":
            return Refusal(403, "requests of other sites are refused")
        if command and headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            return Refusal(415, f"the body of a command is JSON: send Content-Type: {JSON}")
        return None

    def _of_token(self, headers: Mapping[str, str], command: bool) -> Refusal | None:
        given = headers.get("authorization")
        if given is None:
            if self.is_loopback and not command:
                return None
            return Refusal(401, "send the token of the job: Authorization: Bearer TOKEN (flinkplus ui prints it)")
        right = given[: len(BEARER)].lower() == BEARER and hmac.compare_digest(
            given[len(BEARER) :].strip().encode("utf-8", "replace"), self.token.encode()
        )
        return None if right else Refusal(401, "this is not the token of this run of the job (flinkplus ui prints it)")


def names_loopback(host: str) -> bool:
    """Whether ``host`` is ``localhost`` or an address that only this machine reaches."""
    if host.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _host(header: str) -> str:
    """The name in a ``Host`` header; empty for what is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
