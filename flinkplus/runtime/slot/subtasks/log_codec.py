"""Messages as an output log spills them: as they would travel, so that what is read back is sent as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkplus.errors import PeerProtocolError
from flinkplus.runtime.transport.wire.message_format import Message, decode_frame, encode, encode_canonical

Entry = tuple[Message, Any]
"""A message with its encoded payload (``None`` when it has none, or holds records that were never encoded)."""


class MessageCodec:
    """Turns entries of an output log into bytes and back."""

    def encode(self, message: Entry) -> Sequence[Any]:
        """The buffers of one entry, header first."""
        header, payload = message
        if payload is None:
            payload = encode_canonical(header.records) if header.records is not None else b""
        return encode(header, payload)

    def decode(self, data: memoryview) -> Entry:
        """The inverse of ``encode``; the payload is a view of ``data``. Raises ``PeerProtocolError``."""
        found = list(decode_frame(data))
        if len(found) != 1:
            raise PeerProtocolError(f"{len(found)} messages where one was written")
        ((header, payload),) = found
        return header, payload if len(payload) else None
