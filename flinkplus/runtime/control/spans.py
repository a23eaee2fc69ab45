"""Spans of determinants and of digests in control messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dedup.digests import Digests, pack_digests, unpack_digests
from flinkplus.documents import whole
from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.determinants.determinants import Span


def spans_to_json(spans: Iterable[Span]) -> list[list[Any]]:
    """Spans of determinants as in ``Fenced`` and ``Promote``."""
    return [[first, list(determinants)] for first, determinants in spans]


def spans_from_json(found: Iterable[Sequence[Any]]) -> list[Span]:
    """The inverse of ``spans_to_json``. Raises ``PeerProtocolError``."""
    try:
        spans = [(whole(first), tuple(determinants)) for first, determinants in found]
        if not all(set(map(type, determinants)) <= {int} for _, determinants in spans):
            raise TypeError("determinants are whole numbers")
        return spans
    except (TypeError, ValueError) as error:
        raise PeerProtocolError(f"malformed spans of determinants: {error}") from error


def digests_to_json(spans: Iterable[tuple[int, Digests]]) -> list[list[Any]]:
    """Spans of digests as in ``Fenced`` and ``Promote``."""
    return [[first, pack_digests(digests)] for first, digests in spans]


def digests_from_json(found: Iterable[Sequence[Any]]) -> dict[int, int]:
    """``seq`` -> digest of the message. Raises ``PeerProtocolError``."""
    try:
        return {whole(first) + at: digest for first, text in found for at, digest in enumerate(unpack_digests(text))}
    except (TypeError, ValueError) as error:
        raise PeerProtocolError(f"malformed digests: {error}") from error
