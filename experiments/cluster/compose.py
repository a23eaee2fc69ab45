"""What the namespaces need of ``docker-compose.yml``: services with host name, command, environment and volumes.

Rules: what Docker would do and the namespaces cannot is refused, so that one file holds for both. What only concerns
images and ports to the outside is passed over. Variables are ``${NAME}``, ``${NAME:-default}`` and ``$$``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flinkplus.errors import ConfigurationError

COMPOSE_FILE = "docker-compose.yml"
TOP_LEVEL = {"name", "services", "volumes"}
PASSED_OVER = {"build", "image", "init", "ports", "pull_policy", "working_dir"}
UNDERSTOOD = {"hostname", "command", "environment", "volumes"}
VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::-([^}]*))?\})")


@dataclass(frozen=True)
class Service:
    """One host. ``volumes``: (name of the volume, where it is mounted)."""

    name: str
    hostname: str
    command: tuple[str, ...]
    environment: dict[str, str]
    volumes: tuple[tuple[str, str], ...]


def find_compose() -> Path:
    """The file of this repository. Raises ``ConfigurationError`` where FlinkPlus was installed without it."""
    path = Path(__file__).parents[2] / COMPOSE_FILE
    if not path.is_file():
        raise ConfigurationError(f"no {COMPOSE_FILE} in {path.parent}: a cluster is started from the repository")
    return path


def read_compose(path: Path, environment: Mapping[str, str]) -> dict[str, Service]:
    """The services, in the order of the file, without those of a profile, which are started on request only.
    ``environment``: values of variables.

    Raises ``ConfigurationError`` for what the namespaces cannot do.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("services"), dict):
        raise ConfigurationError(f"{path} has no services")
    _only(TOP_LEVEL, (key for key in content if not str(key).startswith("x-")), str(path))
    volumes = set(content.get("volumes") or ())
    usual = {name: service for name, service in content["services"].items() if not service.get("profiles")}
    return {name: _service(name, service, volumes, environment) for name, service in usual.items()}


def _service(name: str, content: dict[str, Any], known: set[str], environment: Mapping[str, str]) -> Service:
    where = f"service {name}"
    _only(PASSED_OVER | UNDERSTOOD, content, where)
    command = content.get("command")
    if not command:
        raise ConfigurationError(f"{where} has no command")
    parts = shlex.split(command) if isinstance(command, str) else command
    given = content.get("environment") or {}
    if isinstance(given, list):
        given = dict(entry.split("=", 1) for entry in given)
    volumes = []
    for entry in content.get("volumes") or ():
        source, _, target = str(entry).partition(":")
        if source not in known or not target.startswith("/mnt/"):
            raise ConfigurationError(f"{where}: the volume {entry!r} has no name in volumes, or is not below /mnt")
        volumes.append((source, target))
    return Service(
        name,
        str(content.get("hostname", name)),
        tuple(_filled(str(part), environment) for part in parts),
        {str(key): _filled(str(value), environment) for key, value in given.items()},
        tuple(volumes),
    )


def _only(allowed: set[str], keys: Any, where: str) -> None:
    unknown = sorted(set(map(str, keys)) - allowed)
    if unknown:
        raise ConfigurationError(f"{where}: {unknown[0]!r} means nothing to a cluster of namespaces")


def _filled(text: str, environment: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        dollar, name, default = match.groups()
        if dollar:
            return "$"
        return environment.get(name) or default or ""

    return VARIABLE.sub(value, text)
