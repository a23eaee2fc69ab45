"""The configuration of a client, without its secrets where it is stored. For sources and for sinks.

Rules: a secret is in no pickle, ``repr``, log or error. What exactly-once depends on cannot be configured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
"""Of a source: positions belong to checkpoints, and an offset that is gone is an error."""
SERVERS = ("bootstrap.servers", "metadata.broker.list")
OWN = (*SERVERS, "group.id", "group.protocol", "group.instance.id", *REQUIRED)
DEFAULTS: Mapping[str, Setting] = {
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16 << 10,
    "fetch.queue.backoff.ms": 50,
    "log.connection.close": False,
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 2_000,
}
"""Of a source. What the user gives counts."""


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
    def parse(
        cls, owner: str, servers: str | Sequence[str], config: Mapping[str, Any], own: Collection[str] = OWN
    ) -> KafkaConnection:
        """``owner``: the source or sink, for errors. ``own``: settings that it makes itself.

        Raises ``ConfigurationError``, which quotes no value: it may be a secret.
        """
        text = servers if isinstance(servers, str) else ",".join(servers)
        if not text.strip():
            raise ConfigurationError(f"{owner}: servers must be 'host:port', or several of them")
        for name, value in config.items():
            if name in own:
                raise ConfigurationError(f"{owner}: config cannot set {name!r}, which exactly-once needs as it is")
            if not isinstance(value, str | int | float):
                raise ConfigurationError(
                    f"{owner}: the value of {name!r} in config must be text, a number or a bool, since it is stored "
                    "with the job"
                )
        secret = tuple(sorted(name for name in config if any(word in name for word in SECRET_WORDS)))
        settings = {name: value for name, value in config.items() if name not in secret}
        return cls(text, settings, secret, {name: str(config[name]) for name in secret})

    def known_secrets(self, owner: str) -> dict[str, str]:
        """All that are needed, also from the environment. Raises ``ConfigurationError`` if one is missing."""
        return known_secrets(owner, self.secret_names, self.secrets, environment_name)

    def configuration(self, source: str, group: str | None, client_id: str) -> dict[str, Any]:
        """For a consumer. Raises ``ConfigurationError`` if a secret is missing."""
        own = {"bootstrap.servers": self.servers, "group.id": group or f"flinkplus-{source}", "client.id": client_id}
        return {**DEFAULTS, **self.settings, **self.known_secrets(f"source {source!r}"), **own, **REQUIRED}

    def shown(self, text: str) -> str:
        """``text`` of a library in one line, without secrets."""
        for secret in self.secrets.values():
            text = text.replace(secret, HIDDEN) if secret else text
        return printable(" ".join(text.split()), 1_000)
