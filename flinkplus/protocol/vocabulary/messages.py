"""What travels on a channel.

Rules: the core sees kind, channel, generation, sequence number, epoch, size and determinants; ``records``, and what
goes beside a message as its payload, are opaque.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq


class MessageKind(IntEnum):
    """What a message is. CREDIT travels against the stream: its ``seq`` is the consumer's ``consumed`` cursor. REPLICA
    is between members of a chain: its channel is empty and its payload belongs to ``chain_backup``. WATERMARK: no row
    before its time comes behind it. ROUND: see ``rounds``; what came together on several channels is one round."""

    RECORDS = 1
    BARRIER = 2
    END_OF_INPUT = 3
    CREDIT = 4
    REPLICA = 5
    WATERMARK = 6
    ROUND = 7


class Message(NamedTuple):
    """One message. ``epoch`` of a BARRIER is the checkpoint it starts. ``records`` is set for RECORDS only.

    ``size``: of the payload in bytes: as sent, or as held in memory when it never leaves the slot.
    ``determinants``: those of the sender's that this receiver has not been sent before.
    ``watermark_ms``: event time, of a WATERMARK only; of a ROUND, which one it is (``rounds.encoded``).
    ``rows``: of RECORDS: how many.
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
