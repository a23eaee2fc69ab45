"""Messages of a channel.

Rules: the core reads kind, channel, generation, sequence number, epoch, size and determinants; ``records``, and the
payload that accompanies a message, are opaque.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq


class MessageKind(IntEnum):
    """Kind of a message. CREDIT travels against the stream: its ``seq`` is the consumer's ``consumed`` cursor. REPLICA
    is sent between members of a chain: its channel is empty, its payload belongs to ``chain_backup``. WATERMARK: no row
    before its time follows it. ROUND: see ``loops.rounds``."""

    RECORDS = 1
    BARRIER = 2
    END_OF_INPUT = 3
    CREDIT = 4
    REPLICA = 5
    WATERMARK = 6
    ROUND = 7


class Message(NamedTuple):
    """One message.

    ``epoch``: of a BARRIER, the checkpoint that it starts.
    ``records``: set for RECORDS only.
    ``size``: of the payload in bytes: as sent, or as held in memory when it stays on the slot.
    ``determinants``: those of the sender that this receiver has not been sent before.
    ``watermark_ms``: event time of a WATERMARK; encoded number of a ROUND (``rounds.encoded``).
    ``rows``: number of rows, of RECORDS.
    """

    kind: MessageKind
    channel: ChannelId
    generation: Generation
    seq: Seq
    epoch: CheckpointId
    records: Any = None
    size: int = 0
    determinants: bytes = b""
    watermark_ms: int = 0
    rows: int = 0
