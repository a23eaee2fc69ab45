"""Lists of functions: an object for each element, and one with the numbers of the first and the last. Rules:
``kept``."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from flinkplus.operators.base.operator import EntryStateLike
from flinkplus.operators.keyed.functions.expiry import Due
from flinkplus.operators.keyed.functions.kept import LIST_FORM, WITH_TTL, CurrentKey, ExpiringEntries, KeptEntries
from flinkplus.state.objects import pack, unpack

READ_ELEMENTS = 512
_HEADER = b""
_NUMBER = struct.Struct(">Q")
_NOTHING = object()


@dataclass(slots=True)
class _Change:
    """What a batch does to a list. Elements ``first`` to ``end`` - 1 are stored, and stay; those before are removed,
    from ``stored_first`` on. ``queued``: ``None``: the list is not in the removal queue."""

    stored_first: int
    first: int
    end: int
    queued: int | None
    exists: bool
    appended: list[Any] = field(default_factory=list)


class ListState(KeptEntries):
    """One named list of the current key, of anything that can be pickled, ``None`` included."""

    form: str | None = LIST_FORM

    def __init__(self, context: CurrentKey, state: EntryStateLike) -> None:
        super().__init__(context, state)
        self._lists: dict[bytes, _Change] = {}
        self._changed: dict[bytes, None] = {}

    def append(self, value: Any) -> None:
        """Put ``value``, as it is now, behind the others. Raises what pickle raises."""
        self.extend([value])

    def extend(self, values: Iterable[Any]) -> None:
        """As ``append`` for each."""
        self._append([self._made(value) for value in values])

    def _append(self, made: list[Any]) -> None:
        owner = self._owner()
        if made:
            self._list(owner).appended += made
            self._changed[owner] = None

    def put(self, values: Iterable[Any]) -> None:
        """Replace all elements. Raises what pickle raises, and then changes nothing."""
        made = [self._made(value) for value in values]
        self.clear()
        self._append(made)

    def clear(self) -> None:
        """Remove all elements, one by one."""
        owner = self._owner()
        change = self._list(owner)
        if change.exists or change.appended:
            change.first, change.appended = change.end, []
            self._changed[owner] = None

    def get(self) -> list[Any]:
        """All elements, fresh copies."""
        return list(self._elements())

    def __iter__(self) -> Iterator[Any]:
        """The elements, some hundred read at a time."""
        return self._during_call(self._elements())

    def is_empty(self) -> bool:
        """Whether there is no element."""
        return next(self._elements(), _NOTHING) is _NOTHING

    def __len__(self) -> int:
        if self.lifetime is None:
            change = self._list(self._owner())
            return change.end - change.first + len(change.appended)
        return sum(1 for _ in self._elements())

    def __bool__(self) -> bool:
        return not self.is_empty()

    def _made(self, value: Any) -> Any:
        return (pack(value),)

    def _list(self, owner: bytes) -> _Change:
        change = self._lists.get(owner)
        if change is None:
            (header,) = self._state.get_many([owner + _HEADER])
            first, end, *queued = (0, 0) if header is None else header
            queued_ms = queued[0] if queued else None
            change = self._lists[owner] = _Change(first, first, end, queued_ms, header is not None)
        return change

    def _elements(self) -> Iterator[Any]:
        owner = self._owner()
        change = self._list(owner)
        first, end, appended = change.first, change.end, list(change.appended)
        return self._read(owner, first, end, appended)

    def _read(self, owner: bytes, first: int, end: int, appended: list[Any]) -> Iterator[Any]:
        for start in range(first, end, READ_ELEMENTS):
            for record in self._state.get_many(_numbered(owner, start, min(end, start + READ_ELEMENTS))):
                if not self._is_over(record):
                    yield record[-1]
        for made in appended:
            if not self._is_over(made):
                yield unpack(made[-1])

    @override
    def discard(self) -> None:
        self._lists, self._changed, self._batch = {}, {}, None

    @override
    def write_back(self) -> None:
        names: list[bytes] = []
        values: list[Any] = []
        gone: list[bytes] = []
        for owner in self._changed:
            change = self._lists[owner]
            gone += _numbered(owner, change.stored_first, change.first)
            end = change.end + len(change.appended)
            if end > change.first:
                names += [owner + _HEADER, *_numbered(owner, change.end, end)]
                values += [self._header(owner, change, end), *map(_unpacked, change.appended)]
            elif change.exists:
                gone.append(owner + _HEADER)
        self.discard()
        if gone:
            self._state.delete_many(gone)
        if names:
            self._state.put_many(names, values)

    def _header(self, owner: bytes, change: _Change, end: int) -> tuple[int, ...]:
        return change.first, end


class ExpiringList(ExpiringEntries, ListState):
    """A ``ListState`` whose elements expire after they were appended, each by itself."""

    form = LIST_FORM + WITH_TTL

    @override
    def _header(self, owner: bytes, change: _Change, end: int) -> tuple[int, ...]:
        queued_ms = change.queued
        if queued_ms is None:
            queued_ms = change.appended[0][0]
            self.queue.add([owner], queued_ms)
        return change.first, end, queued_ms

    @override
    def looked_at(self, due: Sequence[Due]) -> None:
        wanted = list(dict.fromkeys(name for _, name in due))
        headers = dict(zip(wanted, self._state.get_many(wanted), strict=True))
        for owner in dict.fromkeys(name for at_ms, name in due if headers[name] and headers[name][2] == at_ms):
            first, end, _ = headers[owner]
            live = self._first_live(owner, first, end)
            if live > first:
                self._state.delete_many(_numbered(owner, first, live))
            if live == end:
                self._state.delete_many([owner])
                continue
            again_ms = self.lifetime.expiry()
            self._state.put_many([owner], [(live, end, again_ms)])
            self.queue.add([owner], again_ms)

    def _first_live(self, owner: bytes, first: int, end: int) -> int:
        """The number of the first element that has not expired; ``end`` if all have."""
        for start in range(first, end, READ_ELEMENTS):
            names = _numbered(owner, start, min(end, start + READ_ELEMENTS))
            for at, record in enumerate(self._state.get_many(names), start):
                if not self._is_over(record):
                    return at
        return end


def _unpacked(made: Sequence[Any]) -> tuple[Any, ...]:
    return (*made[:-1], unpack(made[-1]))


def _numbered(owner: bytes, first: int, end: int) -> list[bytes]:
    return [owner + _NUMBER.pack(number) for number in range(first, end)]


def element_number(name: bytes) -> int | None:
    """The number of an element of a list, from what follows the owner in its name; ``None``: it is no element."""
    return None if name == _HEADER else int(_NUMBER.unpack(name)[0])
