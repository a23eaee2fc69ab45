"""Where a page may be served."""

from __future__ import annotations

import socket
import sys

import pytest

from flinkplus.config import Options, options_from
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.operations.web import site
from flinkplus.runtime.operations.web.page import JobPage
from flinkplus.runtime.operations.web.site import Site, bound, site_of, url_of
from flinkplus.runtime.transport.auth.credentials import Credentials


@pytest.mark.parametrize(
    ("ui", "tls", "found"),
    [
        (False, False, None),
        (True, False, Site("127.0.0.1", 0)),
        ("127.0.0.1:8080", False, Site("127.0.0.1", 8080)),
        ("localhost:0", False, Site("localhost", 0)),
        ("[::1]:80", False, Site("::1", 80)),
        ("0.0.0.0:8443", True, Site("0.0.0.0", 8443)),
        ("driver.example:8443", "/certificates", Site("driver.example", 8443)),
    ],
)
def test_the_option_names_a_place(ui: bool | str, tls: bool | str, found: Site | None) -> None:
    assert site_of(Options(ui=ui).checked().ui, tls) == found


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "driver.example", "10.0.0.7"])
def test_a_host_that_others_reach_needs_tls(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"in clear; give the job tls, or use ui='127\.0\.0\.1:8080'"):
        site_of(f"{host}:8080", False)


@pytest.mark.parametrize("ui", ["", "8080", "host", "host:", ":80", "host:65536", "a b:80", "http://h:80", None, 1.5])
def test_anything_else_is_refused(ui: object) -> None:
    with pytest.raises(ConfigurationError, match="ui must be True, False or HOST:PORT"):
        options_from({}, {"ui": ui})


def test_the_option_in_the_configuration_of_spark() -> None:
    assert options_from({"spark.flinkplus.ui": "true"}, {}).ui is True
    assert (
        options_from({"spark.flinkplus.ui": "localhost:80", "spark.flinkplus.uiLinger": "3"}, {}).ui == "localhost:80"
    )


def test_without_its_packages_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "PACKAGES", ("starlette", "no_such_package_of_ours"))
    assert site_of(False, False) is None
    with pytest.raises(ConfigurationError, match=r"pip install 'flinkplus\[ui\]'"):
        site_of(True, False)


def test_packages_that_do_not_work_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "flinkplus.runtime.operations.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.h11_impl", None)
    with pytest.raises(ConfigurationError, match=r"packages of the page .* do not work: .*uvicorn.*; pip install"):
        JobPage.opened(Options(ui=True), Credentials(b"k" * 32), "driver")


def test_a_port_in_use_and_an_unknown_host_are_refused() -> None:
    with bound(Site("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: .*choose another port"):
            bound(Site("127.0.0.1", port))
        assert url_of("127.0.0.1", first, None) == f"http://127.0.0.1:{port}/"
        assert url_of("::1", first, object()) == f"https://[::1]:{port}/"
    with pytest.raises(ConfigurationError, match=r"cannot be served at 'no-such-host\.invalid'"):
        bound(Site("no-such-host.invalid", 0))


def test_a_localhost_that_others_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("0.0.0.0", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_more: found)
    with pytest.raises(ConfigurationError, match=r"'localhost' is 0\.0\.0\.0 here, which other machines can reach"):
        bound(Site("localhost", 0))
