"""The page of one job, from its start to some time after its end: ``JobPage``.

The packages of the extra ``flinkplus[ui]`` are imported when a page opens, and not before.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.runtime.operations.commands import Commands
from flinkplus.runtime.operations.web.drawn import DrawnGraph, drawn
from flinkplus.runtime.operations.web.guard import Guard
from flinkplus.runtime.operations.web.site import INSTALL, Site, bound, server_context, site_of, url_of
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import derived

if TYPE_CHECKING:
    from flinkplus.runtime.operations.web.requests import WebRequests
    from flinkplus.runtime.operations.web.server import WebServer

WILDCARDS = ("0.0.0.0", "::")
SERVING = ("app", "requests", "server")
"""The modules here that import packages of the extra."""


def token_of(commands: Credentials) -> str:
    """The token of a job's page, made from the key for its commands: who may command the job knows it."""
    return derived(commands.secret, "ui").hex()


class JobPage:
    """Binds its port at once. Raises ``ConfigurationError`` if that is impossible. On loopback it is plain HTTP.

    ``commands``: the credentials of shells.
    ``reach``: name of this host for others.
    """

    def __init__(self, site: Site, options: Options, commands: Credentials, reach: str) -> None:
        certificates = None if site.is_loopback else commands.certificates
        self._context = None if certificates is None else server_context(certificates)
        self._token = token_of(commands)
        self._linger_s = options.ui_linger
        self._site = site
        self._listening = bound(site)
        self.address = url_of(reach if site.host in WILDCARDS else site.host, self._listening, self._context)
        self._requests: WebRequests | None = None
        self._server: WebServer | None = None

    @classmethod
    def opened(cls, options: Options, commands: Credentials, reach: str) -> JobPage | None:
        """The page that the options ask for; ``None``: none. Raises ``ConfigurationError``."""
        site = site_of(options.ui, options.tls)
        if site is None:
            return None
        try:
            for module in SERVING:
                importlib.import_module(f"{__package__}.{module}")
        except ImportError as error:
            raise ConfigurationError(f"the packages of the page (option ui) do not work: {error}; {INSTALL}") from error
        return cls(site, options, commands, reach)

    def start(
        self,
        graph: JobGraph,
        commands: Commands,
        soon: Callable[[Callable[[], None]], None],
        status: tuple[str, Any],
    ) -> None:
        """Serve the page.

        ``soon``: runs an action in the coordinator's thread. ``status``: name of the request for it, and its class.
        """
        from flinkplus.runtime.operations.web import app
        from flinkplus.runtime.operations.web.requests import WebRequests
        from flinkplus.runtime.operations.web.server import WebServer

        request, document = status
        self._requests = requests = WebRequests(commands, soon, request)
        guard = Guard(self._token, self._site.is_loopback)
        made = app.make_app(requests, guard, drawn(graph).to_json(), app.described(requests, document, DrawnGraph))
        self._server = WebServer(made, self._listening, self._context)
        self._server.start()

    def end(self, status: dict[str, Any] | None) -> None:
        """The job has ended, with this last status; close the page, after ``ui_linger`` seconds."""
        if self._server is None:
            self._listening.close()
            return
        assert self._requests is not None
        self._requests.end(status)
        if status is None or not self._linger_s:
            self._server.stop()
            return
        timer = threading.Timer(min(self._linger_s, threading.TIMEOUT_MAX), self._server.stop)
        timer.daemon = True
        timer.name = "flinkplus-ui-linger"
        timer.start()
