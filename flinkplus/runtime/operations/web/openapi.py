"""The OpenAPI document of a job's REST interface, made from the classes of its documents and requests."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from flinkplus.documents import Document, hints_of

OPENAPI = "3.1.0"
PLAIN: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
TOKEN: list[dict[str, list[str]]] = [{"token": []}]
ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def path_name(request: str) -> str:
    """The name of a request in a path: ``DrainHostCommand`` -> ``drain-host``."""
    return re.sub("(?<!^)(?=[A-Z])", "-", request.removesuffix("Command")).lower()


class _Schemas:
    """JSON schemas of types; ``components`` has those of documents."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        if hint in PLAIN:
            return {"type": PLAIN[hint]}
        origin, kinds = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            return {"anyOf": [self.of(kind) for kind in kinds]}
        if origin in (list, tuple):
            return {"type": "array", "items": self.of(kinds[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(kinds[1])}
        if isinstance(hint, type) and issubclass(hint, Document):
            return self.document(hint)
        return {}

    def document(self, cls: Any) -> dict[str, Any]:
        """A reference to the schema of a document."""
        name = cls.__name__
        if name not in self.components:
            self.components[name] = {}  # it may contain itself
            self.components[name] = self.fields(cls, hints_of(cls))
        return {"$ref": f"#/components/schemas/{name}"}

    def fields(self, cls: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
        """The schema of a dataclass."""
        properties = {name: self.of(hint) for name, hint in hints.items()}
        required = []
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                required.append(field.name)
            elif field.default is not dataclasses.MISSING:
                properties[field.name] = {**properties[field.name], "default": field.default}
        return {
            "type": "object",
            "description": " ".join((cls.__doc__ or "").split()),
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }


def document(version: str, status: Any, graph: Any, requests: Mapping[str, Any]) -> dict[str, Any]:
    """The OpenAPI document.

    ``status``, ``graph``: classes of documents. ``requests``: classes of the commands, by name.
    """
    schemas = _Schemas()
    paths: dict[str, Any] = {
        "/api/status": {"get": _reading("The status of the job", _json(schemas.of(status)))},
        "/api/graph": {"get": _reading("The graph of the job", _json(schemas.of(graph)))},
        "/metrics": {
            "get": _reading("Metrics for Prometheus", {"text/plain": {"schema": {"type": "string"}}}),
        },
    }
    for name, made in sorted(requests.items()):
        schemas.components[name] = schemas.fields(made, typing.get_type_hints(made))
        paths[f"/api/commands/{path_name(name)}"] = {"post": _command(name, made)}
    return {
        "openapi": OPENAPI,
        "info": {"title": "A FlinkPlus job", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**schemas.components, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _failures(*statuses: int) -> dict[str, Any]:
    words = {
        400: "The body is not a JSON object",
        401: "The token is missing or wrong",
        403: "A request of another site",
        408: "The body has not arrived in time",
        409: "The job refuses the command, and says why",
        413: "The body is too long",
        415: "The body is not declared as JSON",
        500: "The page has failed; the driver's log says why",
        503: "The job does not answer, or has ended",
    }
    error = _json({"$ref": "#/components/schemas/Error"})
    return {str(status): {"description": words[status], "content": error} for status in statuses}


def _reading(summary: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "security": [{}, *TOKEN],  # on loopback without a token
        "responses": {"200": {"description": summary, "content": content}, **_failures(401, 403, 500, 503)},
    }


def _command(name: str, made: Any) -> dict[str, Any]:
    summary = (made.__doc__ or name).strip().splitlines()[0]
    return {
        "summary": summary,
        "security": TOKEN,
        "requestBody": {"required": True, "content": _json({"$ref": f"#/components/schemas/{name}"})},
        "responses": {
            "200": {"description": "Done, or begun", "content": _json({"type": "object"})},
            **_failures(400, 401, 403, 408, 409, 413, 415, 500, 503),
        },
    }
