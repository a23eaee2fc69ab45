"""Keyed state that is not taken as it stands: chosen by operator, under another name, or read as other rows.

Rules: the state of an operator is what has its name, alone or with ``/`` or ``#`` behind it (``former.belongs_to``).
Entries keep their key group and key, so those of one state stay in order; only their prefix and perhaps their value
change. Pages are not copied: operators take them over (``OperatorInstance.inherit``) through ``FormerState``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from flinkplus.errors import CorruptState, InvariantViolation
from flinkplus.operators.base.operator import Dtype, EntryStateLike, KeyedState, NumberStateLike, ObjectStateLike
from flinkplus.protocol.program.description import Column, StateDescription
from flinkplus.protocol.snapshot.handle import START, KeyedPart, SnapshotHandle
from flinkplus.runtime.job.rescaling.former import belongs_to
from flinkplus.runtime.job.rescaling.keyed import Entries, OldStates, StatePlace, chunks_of
from flinkplus.state.backend import SubtaskState
from flinkplus.state.memtable import state_prefix
from flinkplus.state.objects import PICKLE_FORMAT, PICKLE_PROTOCOL

Recode = Callable[[bytes], bytes]


@dataclass(frozen=True)
class TakenState:
    """The state that one operator takes over: ``was`` and ``now`` are its names.

    ``recodes``: how values are written again, by what follows the name of the operator.
    """

    old: OldStates
    was: str
    now: str
    recodes: Mapping[str, Recode] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, KeyedPart]:
        """Its states of keys, by their names before."""
        return {name: part for name, part in self.old.kinds.items() if belongs_to(name, self.was)}

    def renamed(self, state: str) -> str:
        """The name of one of its states now."""
        return self.now + state.removeprefix(self.was)

    def view(self, state: SubtaskState) -> KeyedState:
        """The state of one old subtask, for the operator that inherits."""
        return FormerState(state, self)


def rewritten(subtask: str, taken: Sequence[TakenState], mine: range, place: StatePlace) -> SubtaskState:
    """The new state of ``subtask``: what operators take over of the keys of groups ``mine``, written as one base. The
    caller closes it. Raises as ``SubtaskState.restore`` and ``write_base``."""
    new = place.state("after", subtask)
    try:
        counts: dict[str, int] = {}
        base = new.write_base(place.checkpoint, chunks_of(_entries(taken, mine, counts)))
        files = () if base is None else (base,)
        kinds = {one.renamed(name): part for one in taken for name, part in one.kinds.items()}
        parts = {name: replace(part, keys=counts.get(name, 0)) for name, part in kinds.items()}
        new.restore(replace(START, files=files, states=parts))
    except BaseException:
        new.close()
        raise
    return new


def _entries(taken: Sequence[TakenState], mine: range, counts: dict[str, int]) -> Entries:
    """All entries, ascending: states by the order of their new names, each by key group."""
    places = {one.renamed(name): (one, name) for one in taken for name in one.kinds}
    for name in sorted(places, key=state_prefix):
        one, before = places[name]
        cut, prefix = len(state_prefix(before)), state_prefix(name)
        recode = one.recodes.get(before.removeprefix(one.was), bytes)
        for state in one.old.of(mine, keys=True).values():
            for key, value in state.entries_of(before, mine):
                counts[name] = counts.get(name, 0) + 1
                yield prefix + key[cut:], recode(value)


@dataclass(frozen=True)
class FormerState:
    """An old subtask's state as the operator that takes it over knows it: by its new name, with its new rows."""

    _state: SubtaskState
    _taken: TakenState

    def _before(self, name: str) -> str:
        if not belongs_to(name, self._taken.now):
            raise InvariantViolation(f"operator {self._taken.now!r} asks for {name!r}, which is not its own state")
        return self._taken.was + name.removeprefix(self._taken.now)

    def number_state(self, name: str, dtype: Dtype, /) -> NumberStateLike:
        """As ``KeyedState``."""
        return self._state.number_state(self._before(name), dtype)

    def object_state(self, name: str, form: str | None = None, /) -> ObjectStateLike:
        """As ``KeyedState``."""
        return self._state.object_state(self._before(name), form)

    def entry_state(self, name: str, form: str | None = None, /) -> EntryStateLike:
        """As ``KeyedState``."""
        return self._state.entry_state(self._before(name), form)

    def page_state(self, name: str, /) -> ObjectStateLike:
        """As ``KeyedState``; pages are read as the new rows."""
        pages = self._state.page_state(self._before(name))
        recode = self._taken.recodes.get(name.removeprefix(self._taken.now))
        return pages if recode is None else _RecodedPages(pages, recode)


@dataclass(frozen=True)
class _RecodedPages:
    """Pages that are only read."""

    _pages: ObjectStateLike
    _recode: Recode

    def get_many(self, keys: list[bytes], /) -> list[Any]:
        return [None if page is None else self._recode(page) for page in self._pages.get_many(keys)]

    def put_many(self, keys: list[bytes], values: list[Any], /) -> None:
        raise InvariantViolation("state of the program before is not written to")

    def delete_many(self, keys: list[bytes], /) -> None:
        raise InvariantViolation("state of the program before is not written to")


# --- rows of another schema -------------------------------------------------------------------------------------------


def recodes_of(was: StateDescription, now: StateDescription, schemas: Mapping[str, pa.Schema]) -> dict[str, Recode]:
    """What reads rows of one description as rows of another, by state. ``schemas``: those of pages now."""
    found: dict[str, Recode] = {}
    for name, columns in now.rows.items():
        before = was.rows.get(name, columns)
        if before == columns:
            continue
        if now.form == "tuples":
            found[name] = _tuples(before, columns)
        elif now.form == "pages":
            found[name] = _pages(before, schemas[name])
    return found


def _tuples(before: Sequence[Column], after: Sequence[Column]) -> Recode:
    places = {column.name: at for at, column in enumerate(before)}
    order = [places.get(column.name) for column in after]

    def recode(stored: bytes) -> bytes:
        if stored[:1] != PICKLE_FORMAT:
            raise CorruptState(f"a stored row has format {stored[:1]!r}, known is {PICKLE_FORMAT!r}")
        row = pickle.loads(stored[1:])
        return PICKLE_FORMAT + pickle.dumps(tuple(None if at is None else row[at] for at in order), PICKLE_PROTOCOL)

    return recode


def _pages(before: Sequence[Column], after: pa.Schema) -> Recode:
    old = pa.schema([pa.field(column.name, _arrow_type(column, after)) for column in before])

    def recode(page: bytes) -> bytes:
        batch = pa.ipc.read_record_batch(pa.py_buffer(page), old)
        columns = [
            batch.column(old.get_field_index(field.name)).cast(field.type)
            if field.name in old.names
            else pa.nulls(batch.num_rows, field.type)
            for field in after
        ]
        return bytes(pa.RecordBatch.from_arrays(columns, schema=after).serialize().to_pybytes())

    return recode


def _arrow_type(column: Column, after: pa.Schema) -> pa.DataType:
    """The type of a column before, which is that of the column now, or a narrower number."""
    now = after.field(column.name).type
    if str(now) == column.type:
        return now
    if column.type.startswith("decimal"):
        bits, _, digits = column.type.removeprefix("decimal").partition("(")
        precision, scale = map(int, digits.rstrip(")").split(","))
        return (pa.decimal256 if bits == "256" else pa.decimal128)(precision, scale)
    return pa.type_for_alias(column.type)


def is_taken_whole(handles: Sequence[SnapshotHandle], taken: Sequence[TakenState]) -> bool:
    """Whether nothing of the states in ``handles`` is left behind, renamed or read as something else."""
    if any(one.was != one.now or one.recodes for one in taken):
        return False
    names = {name for handle in handles for name in handle.states}
    return all(any(belongs_to(name, one.was) for one in taken) for name in names)
