"""Digests of messages, and digests as text."""

from __future__ import annotations

import base64
from array import array
from typing import TypeAlias

Digests: TypeAlias = "array[int]"
"""64 bits for each message."""


def pack_digests(digests: Digests) -> str:
    """Digests as text."""
    return base64.b64encode(digests.tobytes()).decode("ascii")


def unpack_digests(text: str) -> Digests:
    """The inverse of ``pack_digests``. Raises ``ValueError``."""
    digests = array("Q")
    digests.frombytes(base64.b64decode(text, validate=True))
    return digests
