"""Mutations of valid bytes. Rules: everything comes from the given generator; nothing grows beyond ``MAX_BYTES``."""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

MAX_BYTES = 1 << 16
HOSTILE = "\x1b[2J\x9b31m\u202e\u2066\r\n12:00:00.000 error \x85\u2028\x00\x7f"
"""Clears a terminal, colours it, reverses the direction of writing and begins lines that look like another record's."""
LONG = HOSTILE * 200
WHOLE = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 64) - 1)
TEXTS = (b"0", b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"[]", b"{}", b'""', b"9" * 30, b"9" * 5000, b"true",
    json.dumps(LONG).encode(),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 31, 1 << 63, 1 << 70, 1.5, 1e308, "", "x", "\u00b2", "count[\u00b2]", "9" * 5000, "../../x",
    "..", "a/../../x", "/etc/x", "a/b", ".a/b", "a\0/b", "a/1-2-3.sst\n", "%2E%2E%2Fx",
    "\ud800", HOSTILE, LONG, [HOSTILE], {HOSTILE: LONG}, [], [[]], [None], {}, {"": 0}, {"files": 3}, [[[[[[[[]]]]]]]],
)  # fmt: skip
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")

Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def _flip(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    size, code = rng.choice(((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")))
    if len(data) >= size:
        at = rng.randrange(len(data) - size + 1)
        data[at : at + size] = struct.pack(code, rng.choice(WHOLE) & ((1 << 8 * size) - 1))


def _cut(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _remove(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 4, 8, 64))]


def _insert(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(
        (
            rng.randbytes(rng.randrange(16)),
            b"\0" * 8,
            b"\xff" * 8,
            b"[" * rng.choice((3, 5000)),
            b"../",
            HOSTILE.encode(),
        )
    )


def _repeat(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 8, 64, 1024))
    data[at:at] = data[at : at + size]


def _splice(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


def _text(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    found = list(NUMBER.finditer(data))
    if found:
        match = rng.choice(found)
        data[match.start() : match.end()] = rng.choice(TEXTS)


_MUTATIONS: tuple[Mutation, ...] = (_flip, _set, _number, _cut, _remove, _insert, _repeat, _splice, _text)


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of ``seeds``, changed in one to eight places; now and then, nothing but noise."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(_MUTATIONS)(rng, data, seeds)
    return bytes(data[:MAX_BYTES])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a document are: the way to each, from the outermost."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            found += places(inner, (*path, at))
    return found


def mutated_document(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of ``seeds``, JSON, with one to three values changed for others, removed or renamed; or ``mutated``."""
    if rng.random() < 0.4:
        return mutated(rng, seeds)
    document = json.loads(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3))):
        *way, last = rng.choice(places(document)) or (None,)
        if last is None:
            document = copy.deepcopy(rng.choice(VALUES))
            break
        inside = document
        for step in way:
            inside = inside[step]
        match rng.randrange(5):
            case 0:
                del inside[last]
            case 1 if isinstance(inside, dict):
                inside[rng.choice(("", "v", "files", "format", "../x[1]", HOSTILE, LONG))] = inside.pop(last)
            case 2:
                inside[last] = [inside[last]]
            case _:
                inside[last] = copy.deepcopy(rng.choice(VALUES))
        if not document:
            break
    return json.dumps(document).encode()[:MAX_BYTES]
