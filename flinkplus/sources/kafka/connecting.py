"""The configuration of a client, without its secrets where it is stored.

Rules: a secret is in no pickle, ``repr``, log or error. What exactly-once depends on cannot be configured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flinkplus.errors import HIDDEN, ConfigurationError
from flinkplus.printable import printable
from flinkplus.sources.secrets import known_secrets

Setting = str | int | float | bool
SECRET_WORDS = ("password", "passphrase", "secret", ".pem", "oauthbearer.config")
REQUIRED: Mapping[str, Setting] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
"""Positions belong to checkpoints, and an offset that is gone is an error."""
OWN = ("bootstrap.servers", "metadata.broker.list", "group.id", "group.protocol", "group.instance.id", *REQUIRED)
DEFAULTS: Mapping[str, Setting] = {
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16 << 10,
    "fetch.queue.backoff.ms": 50,
    "log.connection.close": False,
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 2_000,
}
"""What the user gives counts."""


def environment_name(setting: str) -> str:
    """The variable that a secret is taken from where the program did not give it."""
    return "KAFKA_" + setting.upper().replace(".", "_")


@dataclass(frozen=True)
class KafkaConnection:
    """How to reach the brokers. ``settings``: of librdkafka, without secrets. ``secret_names``: of those that are
    needed. ``secrets``: only in the process that was given them."""

    servers: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "settings": dict(self.settings), "secrets": {}}

    @classmethod
    def parse(cls, source: str, servers: str | Sequence[str], config: Mapping[str, Any]) -> KafkaConnection:
        """Raises ``ConfigurationError``, which quotes no value: it may be a secret."""
        text = servers if isinstance(servers, str) else ",".join(servers)
        if not text.strip():
            raise ConfigurationError(f"source {source!r}: servers must be 'host:port', or several of them")
        for name, value in config.items():
            if name in OWN:
                raise ConfigurationError(f"source {source!r}: config cannot set {name!r}, which the source sets itself")
            if not isinstance(value, str | int | float):
                raise ConfigurationError(
                    f"source {source!r}: the value of {name!r} in config must be text, a number or a bool, since it is "
                    "sent to the slots"
                )
        secret = tuple(sorted(name for name in config if any(word in name for word in SECRET_WORDS)))
        settings = {name: value for name, value in config.items() if name not in secret}
        return cls(text, settings, secret, {name: str(config[name]) for name in secret})

    def known_secrets(self, source: str) -> dict[str, str]:
        """All that are needed, also from the environment. Raises ``ConfigurationError`` if one is missing."""
        return known_secrets(source, self.secret_names, self.secrets, environment_name)

    def configuration(self, source: str, group: str | None, client_id: str) -> dict[str, Any]:
        """For a consumer. Raises ``ConfigurationError`` if a secret is missing."""
        own = {"bootstrap.servers": self.servers, "group.id": group or f"flinkplus-{source}", "client.id": client_id}
        return {**DEFAULTS, **self.settings, **self.known_secrets(source), **own, **REQUIRED}

    def shown(self, text: str) -> str:
        """``text`` of a library in one line, without secrets."""
        for secret in self.secrets.values():
            text = text.replace(secret, HIDDEN) if secret else text
        return printable(" ".join(text.split()), 1_000)
