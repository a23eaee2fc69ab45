"""The ports of a subtask's output channels: the log of each channel, and the memory and disk that logs share.

The runtime and the simulator use the implementations in ``upstream_cache``.

Rules: ``OutputChannels`` calls them in the thread of the steps. Positions are sequence numbers of the channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from flinkplus.protocol.vocabulary.ids import ChannelId
from flinkplus.protocol.vocabulary.messages import Message

Entry: TypeAlias = tuple[Message, Any]
"""A message and its payload."""


class ChannelLog(Protocol):
    """An output log (see ``upstream_cache.log``): ``trimmed <= acknowledged <= sent <= appended``."""

    max_unsent_messages: int
    max_unsent_bytes: int

    @property
    def trimmed(self) -> int: ...

    @property
    def acknowledged(self) -> int: ...

    @property
    def sent(self) -> int: ...

    @property
    def sent_once(self) -> int: ...

    @property
    def appended(self) -> int: ...

    @property
    def unsent_bytes(self) -> int: ...

    @property
    def in_flight_bytes(self) -> int: ...

    @property
    def accepts(self) -> bool: ...

    def append(self, message: Entry, size_bytes: int, /) -> int: ...

    def next_to_send(self, limit: int, /) -> tuple[int, Entry] | None: ...

    def acknowledge(self, seq: int, /) -> None: ...

    def trim(self, seq: int, /) -> None: ...

    def rewind(self, seq: int, /) -> None: ...

    def lift_limits(self) -> None: ...

    def close(self) -> None: ...


class SpillVolume(Protocol):
    """The memory and disk that the logs of a slot share (see ``upstream_cache.retention``)."""

    @property
    def blocked(self) -> str | None: ...

    def relieve(self) -> bool: ...


MakeLog: TypeAlias = Callable[[ChannelId, int, int, bool], ChannelLog]
"""``(channel, first seq, next seq that its consumer expects, whether the log may spill to disk) -> log``."""
