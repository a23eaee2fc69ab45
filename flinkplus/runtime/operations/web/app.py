"""What the web server of a job answers: the page, the REST interface, metrics.

Rules: ``guard`` decides first about each request. All responses forbid other sites to embed or to read them. An error
is a JSON object with one line in ``error``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flinkplus.documents import parse_document
from flinkplus.errors import CommandRefused, PeerProtocolError
from flinkplus.printable import printable
from flinkplus.runtime.operations.commands import MAX_ERROR_CHARACTERS, REQUEST_BYTES
from flinkplus.runtime.operations.web.exposition import CONTENT_TYPE, exposition
from flinkplus.runtime.operations.web.guard import Guard
from flinkplus.runtime.operations.web.openapi import document, path_name
from flinkplus.runtime.operations.web.requests import WebRequests

INTERFACE = "1"
"""Version of the interface; it rises when a path or field changes its meaning."""
BODY_TIMEOUT_S = 10.0
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
ASSETS = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
log = logging.getLogger("flinkplus.ui")
Answer = Callable[[Request], Awaitable[Response]]


def make_app(requests: WebRequests, guard: Guard, graph: Mapping[str, Any], described: Mapping[str, Any]) -> Starlette:
    """The application of one job. ``graph``, ``described``: the documents of the graph and of the interface."""

    async def status(_request: Request) -> Response:
        return _reply(await requests.status())

    async def drawn(_request: Request) -> Response:
        return _reply(graph)

    async def openapi(_request: Request) -> Response:
        return _reply(described)

    async def metrics(_request: Request) -> Response:
        return Response(exposition(await requests.status()), media_type=None, headers={"Content-Type": CONTENT_TYPE})

    names = {path_name(name): name for name in command_names(requests)}

    async def command(request: Request) -> Response:
        name = names.get(request.path_params["name"])
        if name is None:
            return _error(404, f"this job does not know that command; it knows {', '.join(sorted(names))}")
        body = await _body_of(request)
        return body if isinstance(body, Response) else _reply(await requests.command(name, body))

    folder = resources.files(__package__) / "assets"
    assets = {name: (folder / name).read_bytes() for name in ASSETS}

    async def asset(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in assets:
            return _error(404, "there is no such page")
        return Response(assets[name], headers={"Content-Type": ASSETS[name]})

    reading, commanding = partial(_guarded, guard, False), partial(_guarded, guard, True)
    made = Starlette(
        routes=[
            Route("/", partial(_guarded, guard, None)(asset)),
            Route("/assets/{name}", partial(_guarded, guard, None)(asset)),
            Route("/api/status", reading(status)),
            Route("/api/graph", reading(drawn)),
            Route("/api/openapi.json", reading(openapi)),
            Route("/metrics", reading(metrics)),
            Route("/api/commands/{name}", commanding(command), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error},
    )
    made.router.redirect_slashes = False  # a redirect would pass the guard, to the host that the request names
    return made


def command_names(requests: WebRequests) -> dict[str, type[Any]]:
    """The requests that are commands: all but the one for the status."""
    return {name: made for name, made in requests.commands.requests.items() if name != requests.status_name}


def described(requests: WebRequests, status: Any, graph: Any) -> dict[str, Any]:
    """The OpenAPI document. ``status``, ``graph``: classes of documents."""
    return document(INTERFACE, status, graph, command_names(requests))


def _guarded(guard: Guard, command: bool | None, answer: Answer) -> Answer:
    """``answer``, behind the guard. ``command``: ``None`` for what needs no token anywhere."""

    async def guarded(request: Request) -> Response:
        headers = request.headers
        refused = guard.of_host(headers) if command is None else guard.refusal(headers, command=command)
        if refused is not None:
            return _error(refused.status, refused.reason)
        try:
            response = await answer(request)
        except CommandRefused as error:
            return _error(409 if command else 503, str(error))
        except (TimeoutError, PeerProtocolError) as error:
            return _error(503, str(error))
        except ClientDisconnect:
            return _error(400, "the client has gone")
        except Exception:
            log.warning("the page of the job could not answer %s", request.url.path, exc_info=True)
            return _error(500, "the page of the job has failed; the driver's log says why")
        response.headers.update(HEADERS)
        return response

    return guarded


async def _body_of(request: Request) -> dict[str, Any] | Response:
    """The JSON object in the body, or what is answered instead."""
    data = bytearray()

    async def read() -> None:
        async for chunk in request.stream():
            data.extend(chunk)
            if len(data) > REQUEST_BYTES:
                return

    try:
        await asyncio.wait_for(read(), BODY_TIMEOUT_S)
        if len(data) > REQUEST_BYTES:
            return _error(413, f"the body is longer than {REQUEST_BYTES} bytes")
        body = parse_document(data) if data else {}
        if not isinstance(body, dict):
            raise ValueError("not an object")
    except asyncio.TimeoutError:
        return _error(408, f"the body has not arrived within {BODY_TIMEOUT_S:g} s")
    except ValueError:
        return _error(400, "the body is not a JSON object")
    return body


def _reply(content: Mapping[str, Any]) -> Response:
    return JSONResponse(content, headers=HEADERS)


def _error(status: int, reason: str) -> Response:
    headers = {**HEADERS, **({"WWW-Authenticate": "Bearer", "Connection": "close"} if status == 401 else {})}
    if status in (408, 413):
        headers["Connection"] = "close"
    return JSONResponse({"error": printable(reason, MAX_ERROR_CHARACTERS)}, status, headers=headers)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = _error(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response
