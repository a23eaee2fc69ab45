"""Pickled objects read without running any code of their authors, and as JSON.

Rules:
- only classes that hold plain data are made (numbers, texts, times, collections, numpy arrays). Any other class or
  function has a *stand-in*, which is never called: it keeps what it would have been made of;
- so state can be read where the program that wrote it is not installed.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import importlib
import io
import json
import math
import pickle
import zoneinfo
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar

import numpy as np

from flinkplus.errors import CorruptState
from flinkplus.printable import printable

MAX_DEPTH = 64
_COLLECTIONS = ("OrderedDict", "defaultdict", "deque", "Counter")
_BUILTINS = ("bytearray", "complex", "dict", "float", "frozenset", "int", "list", "object", "range", "set", "slice")
_NUMPY = ("core.multiarray", "_core.multiarray", "core.numeric", "_core.numeric")
PLAIN_CLASSES = frozenset(
    {
        *(("builtins", name) for name in (*_BUILTINS, "bool", "bytes", "str", "tuple")),
        *(("collections", name) for name in _COLLECTIONS),
        *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
        *((f"numpy.{module}", name) for module in _NUMPY for name in ("_reconstruct", "scalar", "_frombuffer")),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("uuid", "UUID"),
        ("zoneinfo", "ZoneInfo"),
        ("zoneinfo", "ZoneInfo._unpickle"),
        ("pyspark.sql.types", "Row"),
        ("pyspark.sql.types", "_create_row"),
    }
)
"""Module and name of the classes, and their constructors, that are made as they are."""


class StandIn:
    """An object of a class that is not loaded. ``stands_for``: the class or function, as ``module.name``."""

    stands_for: ClassVar[str] = ""

    def __new__(cls, *args: Any, **named: Any) -> StandIn:
        made = super().__new__(cls)
        made._args, made._named = args, named
        made._state, made._items = None, []
        return made

    def __init__(self, *args: Any, **named: Any) -> None:
        self._args: tuple[Any, ...]
        self._named: dict[str, Any]
        self._state: Any
        self._items: list[Any]

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items.append((key, value))

    def append(self, value: Any) -> None:
        """What unpickling calls for a class of lists."""
        self._items.append(value)

    def extend(self, values: Sequence[Any]) -> None:
        """As ``append``."""
        self._items.extend(values)

    add = append

    def __call__(self, *args: Any, **named: Any) -> StandIn:
        return StandIn(*args, **named)

    def described(self) -> dict[str, Any]:
        """What is known of the object: its class, and the parts that it would be made of."""
        found: dict[str, Any] = {"class": type(self).stands_for}
        state = self._state
        if isinstance(state, tuple) and len(state) == 2 and all(part is None or type(part) is dict for part in state):
            state = {**(state[0] or {}), **(state[1] or {})}  # that of a class with slots
        parts = {"args": list(self._args), "named": self._named, "state": state, "items": self._items}
        return {**found, **{name: part for name, part in parts.items() if part}}


def stand_in(module: str, name: str) -> type[StandIn]:
    """The class that stands for ``module.name``."""
    return type(name.rpartition(".")[2] or "StandIn", (StandIn,), {"stands_for": f"{module}.{name}".strip(".")})


def _moment(*parts: Any) -> Any:
    """A date and time; one in a time zone of another class has a stand-in."""
    try:
        return datetime.datetime(*parts)
    except TypeError:
        return stand_in("datetime", "datetime")(*parts)


def _attribute(of: Any, name: str) -> Any:
    """The only attribute that plain data needs: zones of time are pickled by it."""
    return zoneinfo.ZoneInfo._unpickle if of is zoneinfo.ZoneInfo and name == "_unpickle" else stand_in("", name)  # type: ignore[attr-defined]


_SPECIAL: dict[tuple[str, str], Any] = {
    ("datetime", "datetime"): _moment,
    ("builtins", "getattr"): _attribute,
}


class PlainUnpickler(pickle.Unpickler):
    """Unpickles plain data. ``also``: a further class or constructor that may be used; ``None`` for any other."""

    def __init__(self, data: bytes, also: Callable[[str, str], Any | None] = lambda module, name: None) -> None:
        super().__init__(io.BytesIO(data))
        self._also = also
        self._known: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What the pickle refers to as ``module.name``."""
        wanted = module, name
        if wanted in _SPECIAL:
            return _SPECIAL[wanted]
        if wanted not in self._known:
            self._known[wanted] = self._found(module, name)
        return self._known[wanted]

    def _found(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN_CLASSES:
            try:
                return loaded(module, name)
            except (ImportError, AttributeError):  # of another version of a library
                return stand_in(module, name)
        also = self._also(module, name)
        if also is not None:
            return also
        if "cloudpickle" in module:  # makes classes and functions: what it is called for stands in for them
            return lambda *args, **named: stand_in("", next((arg for arg in args if type(arg) is str), name))
        return stand_in(module, name)


def loaded(module: str, name: str) -> Any:
    """The attribute ``name``, which may have dots, of a module. Raises ``ImportError`` or ``AttributeError``."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def unpickled(data: bytes) -> Any:
    """The object in a pickle, with stand-ins. Raises ``CorruptState`` for one that cannot be read."""
    try:
        return PlainUnpickler(data).load()
    except Exception as error:  # a pickle that is damaged, or of a class with unusual methods, may raise anything
        raise CorruptState(f"a stored object cannot be read: {printable(error)}") from error


def to_json(value: Any) -> str:
    """``value`` as JSON text.

    Binary data is base64; decimals, and numbers that JSON does not have, are texts; times are in ISO 8601, instants in
    UTC. Tuples and sets are arrays. A key of a mapping that is no text becomes its JSON text.
    """
    return json.dumps(jsonable(value), ensure_ascii=False)


def jsonable(value: Any, depth: int = 0) -> Any:
    """``value`` made of what JSON has; see ``to_json``. What is nested deeper than ``MAX_DEPTH`` is cut."""
    if value is None or type(value) in (bool, int, str):
        return value
    if depth > MAX_DEPTH:
        return "..."
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc).isoformat()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return _nested(value, depth + 1)


def _nested(value: Any, depth: int) -> Any:
    if isinstance(value, StandIn):
        return jsonable(value.described(), depth)
    if isinstance(value, type) and issubclass(value, StandIn):
        return {"class": value.stands_for}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {key if type(key) is str else to_json(key): jsonable(each, depth) for key, each in pairs}
    if isinstance(value, Set):
        return sorted((jsonable(each, depth) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    if isinstance(value, (np.generic, np.ndarray)):
        return jsonable(value.tolist(), depth)
    if hasattr(value, "asDict"):  # PySpark's row
        return jsonable(value.asDict(), depth)
    if isinstance(value, (list, tuple, range)) or type(value).__name__ == "deque":
        return [jsonable(each, depth) for each in value]
    if isinstance(value, (int, str)):  # of a class of its own
        return jsonable(int(value) if isinstance(value, int) else str(value))
    return str(value) if isinstance(value, (decimal.Decimal, datetime.timedelta)) else printable(value)
