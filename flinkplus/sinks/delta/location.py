"""Where a Delta table is: one address for ``pyarrow.fs``, by which slots write, and what ``deltalake`` needs for it.

Rules: storage options that look secret are in no pickle, ``repr``, log or error; only the driver has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from flinkplus.errors import ConfigurationError, without_secrets
from flinkplus.state.file_system import is_uri

SECRET_WORDS = ("key", "secret", "token", "password", "credential", "sas")


@dataclass(frozen=True)
class StorageOptions:
    """Options of ``deltalake`` that a user gives. ``secrets``: only in the process that was given them."""

    public: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"public": dict(self.public), "secrets": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, given: object, sink: str) -> StorageOptions:
        """Raises ``ConfigurationError``."""
        options = {} if given is None else given
        if not isinstance(options, Mapping) or not all(
            isinstance(name, str) and isinstance(value, str) for name, value in options.items()
        ):
            raise ConfigurationError(f"sink {sink!r}: storage_options must be a dict of texts")
        secrets = {name for name in options if any(word in name.lower() for word in SECRET_WORDS)}
        return cls(
            {name: value for name, value in options.items() if name not in secrets},
            {name: options[name] for name in secrets},
        )


@dataclass(frozen=True)
class TableLocation:
    """``uri`` and ``options``: for ``deltalake``. ``str()`` shows no secret."""

    uri: str
    options: dict[str, str] = field(repr=False)

    def __str__(self) -> str:
        return without_secrets(self.uri)

    @classmethod
    def of(cls, path: str, given: StorageOptions) -> TableLocation:
        """The table at ``path``, a local path or a URI of ``pyarrow.fs``. What the user has ``given`` counts."""
        options = {**_s3_options(path), **given.public, **given.secrets}
        if not is_uri(path):
            return cls(path, options)
        parts = urlsplit(path)
        if parts.scheme == "file":
            return cls(unquote(parts.path), options)
        host = parts.netloc.rpartition("@")[2]
        return cls(urlunsplit((parts.scheme, host, parts.path, "", "")), options)


def _s3_options(path: str) -> dict[str, str]:
    """What the URI of an S3 file system says, for ``deltalake``."""
    parts = urlsplit(path)
    if parts.scheme != "s3":
        return {}
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    found = {}
    if parts.username:
        found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"] = (
            unquote(parts.username),
            unquote(parts.password or ""),
        )
    if "region" in query:
        found["AWS_REGION"] = query["region"]
    scheme = query.get("scheme", "https")
    if "endpoint_override" in query:
        endpoint = query["endpoint_override"]
        found["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if scheme == "http":
        found["AWS_ALLOW_HTTP"] = "true"
    return found
