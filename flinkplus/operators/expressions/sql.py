"""SQL text as a tree. sqlglot reads the text; it is imported with the first text, in the driver only.

Rules: the text is one expression in Spark's SQL. Operators, literals, CASE, CAST, BETWEEN, IN, LIKE, IS and intervals
are read by sqlglot's grammar; functions are taken by the names that they have, and looked up in the table of functions.
Queries, aggregates, windows and lambdas are refused.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, TypeGuard

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.schema import parse_schema
from flinkplus.operators.expressions.tree import Alias, Call, Case, Cast, Literal, Name, Part, Star, literal_of

LONGEST_TEXT = 100_000


def parsed(text: str) -> Part:
    """The expression that ``text`` is. Raises ``ConfigurationError`` with the place that is not understood."""
    from sqlglot.errors import SqlglotError

    if len(text) > LONGEST_TEXT:
        raise ConfigurationError(f"an expression of {len(text)} characters is too long")
    try:
        return _Reader(text).part(_only_column(_dialect().parse(f"SELECT 0,\n{text}"), text))
    except SqlglotError as error:
        raise ConfigurationError(f"{text!r} is not understood: {_problem(error)}") from error
    except RecursionError as error:
        raise ConfigurationError(f"the expression {text[:80]!r}... has too many levels") from error


def _only_column(found: Any, text: str) -> Any:
    """The second column of a query, which has nothing else: by itself ``comment`` would begin a statement, and as the
    first one ``all`` would be a word of the query."""
    query: Any = found[0] if len(found) == 1 else None
    if type(query).__name__ != "Select" or len(query.expressions) != 2:
        raise ConfigurationError(f"{text!r} is not one expression")
    if any(value for name, value in query.args.items() if name != "expressions"):
        raise ConfigurationError(f"{text!r} is not one expression: queries are not supported")
    return query.expressions[1]


def _problem(error: Any) -> str:
    found = getattr(error, "errors", None)
    if not found:
        return str(error).splitlines()[0]
    first = found[0]
    if first["description"].startswith("Required keyword"):
        first = {**first, "description": "a part of the expression is missing"}
    return f"{first['description']} (line {first['line'] - 1}, column {first['col']})"


@lru_cache(maxsize=1)
def _dialect() -> Any:
    """Spark's grammar without its functions: sqlglot would rewrite them to functions of its own."""
    from sqlglot.dialects.spark import Spark

    class _Plain(Spark):
        class Tokenizer(Spark.Tokenizer):
            STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'"]

        class Parser(Spark.Parser):  # type: ignore[valid-type,misc]
            FUNCTIONS: ClassVar[dict[str, Any]] = {}
            FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
                name: Spark.Parser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST")
            }
            NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
            NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
                "CASE": Spark.Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]
            }
            STRICT_CAST: ClassVar[bool] = True

    return _Plain()


_BINARY = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%", "IntDiv": "div", "EQ": "=", "NEQ": "<>", "LT": "<",
    "LTE": "<=", "GT": ">", "GTE": ">=", "NullSafeEQ": "<=>", "And": "and", "Or": "or", "BitwiseAnd": "&",
    "BitwiseOr": "|", "BitwiseXor": "^", "DPipe": "||", "Like": "like", "ILike": "ilike", "RegexpLike": "rlike",
}  # fmt: skip
_BITS = ("BitwiseAnd", "BitwiseXor", "BitwiseOr")
"""Operators on bits, the strongest first: to sqlglot they are equally strong."""
_UNDERSTOOD = {
    "this", "expression", "expressions", "to", "format", "unit", "low", "high", "ifs", "true", "default", "alias",
    "catalog", "db", "table", "negate", "query",
}  # fmt: skip
_WITHOUT_MEANING = {"is_string", "quoted", "safe", "typed", "_type"}
_UNARY = {"Not": "not", "BitwiseNot": "~"}
_UNITS = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000, "WEEK": 604_800_000_000,
}  # fmt: skip


def _number(text: str) -> int | float | decimal.Decimal:
    if "e" in text.lower():
        return float(text)
    return decimal.Decimal(text) if "." in text else int(text)


def _is_interval(part: Part) -> TypeGuard[Literal]:
    return isinstance(part, Literal) and bool(pa.types.is_duration(part.dtype))


class _Reader:
    """From sqlglot's tree to this package's."""

    def __init__(self, text: str) -> None:
        self._text = text

    def part(self, node: Any) -> Part:
        """The tree of a node. Raises ``ConfigurationError`` for one that says more than is read here."""
        for name, value in node.args.items():
            if value and name not in _UNDERSTOOD and name not in _WITHOUT_MEANING and type(node).__name__ != "Star":
                raise ConfigurationError(
                    f"{name!r} of {node.sql(dialect='spark')!r} in {self._text!r} is not supported"
                )
        found = self._read(node)
        return Call("not", (found,)) if node.args.get("negate") else found  # of LIKE and ILIKE

    def _read(self, node: Any) -> Part:
        kind = type(node).__name__
        if kind in _BITS:
            return self._bits(node)
        if kind in _BINARY:
            return self._binary(_BINARY[kind], node)
        if kind in _UNARY:
            return Call(_UNARY[kind], (self.part(node.this),))
        read: Callable[[Any], Part] | None = getattr(self, f"_read_{kind.lower()}", None)
        if read is None:
            raise ConfigurationError(f"{node.sql(dialect='spark')!r} in {self._text!r} is not supported")
        return read(node)

    def _binary(self, sign: str, node: Any) -> Part:
        if sign in ("and", "or"):
            return self._junction(sign, node)
        left, right = self.part(node.this), self.part(node.expression)
        if sign in "+-" and _is_interval(left) and _is_interval(right):
            return literal_of(left.value + right.value if sign == "+" else left.value - right.value)
        return Call(sign, (left, right))

    def _junction(self, sign: str, node: Any) -> Part:
        """``a AND b AND c``, however long, which sqlglot gives as ``(a AND b) AND c``."""
        kind, parts = type(node), []
        while type(node) is kind:
            parts.append(node.expression)
            node = node.this
        return Call(sign, tuple(map(self.part, (node, *reversed(parts)))))

    def _bits(self, node: Any) -> Part:
        """``a | b & c``, which sqlglot gives as ``(a | b) & c``: ``&`` is stronger than ``^``, and that than ``|``."""
        signs, nodes = [], []
        while type(node).__name__ in _BITS:
            signs.append(type(node).__name__)
            nodes.append(node.expression)
            node = node.this
        signs.reverse()
        parts = list(map(self.part, (node, *reversed(nodes))))
        for sign in _BITS:
            while sign in signs:
                at = signs.index(sign)
                del signs[at]
                parts[at : at + 2] = [Call(_BINARY[sign], (parts[at], parts[at + 1]))]
        return parts[0]

    def _read_paren(self, node: Any) -> Part:
        return self.part(node.this)

    def _read_alias(self, node: Any) -> Part:
        return Alias(self.part(node.this), node.alias)

    def _read_star(self, node: Any) -> Part:
        if any(node.args.values()):
            raise ConfigurationError(f"{self._text!r}: * takes nothing beside it; use drop or rename")
        return Star()

    def _read_column(self, node: Any) -> Part:
        names = [node.args[level] for level in ("catalog", "db", "table") if node.args.get(level) is not None]
        if type(node.this).__name__ == "Star":
            return Star(Name(tuple(name.name for name in names)) if names else None)
        return Name((*(name.name for name in names), node.this.name))

    def _read_identifier(self, node: Any) -> Part:
        return Name((node.name,))

    def _read_dot(self, node: Any) -> Part:
        if type(node.expression).__name__ != "Identifier":
            raise ConfigurationError(f"{node.sql(dialect='spark')!r} in {self._text!r} is not supported")
        value, name = self.part(node.this), node.expression.name
        if isinstance(value, Name):
            return Name((*value.parts, name))
        return Call(".", (value, literal_of(name)))

    def _read_bracket(self, node: Any) -> Part:
        if len(node.expressions) != 1:
            raise ConfigurationError(f"{node.sql(dialect='spark')!r} in {self._text!r} needs one position or key")
        return Call("[]", (self.part(node.this), self.part(node.expressions[0])))

    def _read_literal(self, node: Any) -> Part:
        return literal_of(node.this if node.is_string else _number(node.this))

    def _read_rawstring(self, node: Any) -> Part:
        return literal_of(node.this)

    def _read_hexstring(self, node: Any) -> Part:
        return literal_of(bytes.fromhex(node.this.zfill(len(node.this) + 1 & ~1)))

    def _read_null(self, node: Any) -> Part:
        return literal_of(None)

    def _read_boolean(self, node: Any) -> Part:
        return literal_of(node.this)

    def _read_concat(self, node: Any) -> Part:
        """Texts side by side, such as ``'it''s'``."""
        parts = [self.part(each) for each in node.expressions]
        if not all(isinstance(each, Literal) and isinstance(each.value, str) for each in parts):
            raise ConfigurationError(f"{node.sql(dialect='spark')!r} in {self._text!r} is not supported")
        return literal_of("".join(str(each) for each in parts))

    def _read_neg(self, node: Any) -> Part:
        if type(node.this).__name__ == "Literal" and not node.this.is_string:
            return literal_of(-_number(node.this.this))
        return Call("-", (self.part(node.this),))

    def _read_cast(self, node: Any) -> Part:
        return self._cast(node, strict=True)

    def _read_trycast(self, node: Any) -> Part:
        return self._cast(node, strict=False)

    def _cast(self, node: Any, *, strict: bool) -> Part:
        if node.args.get("format") is not None:
            raise ConfigurationError(f"{self._text!r}: a cast takes no format; use to_timestamp or date_format")
        dtype = parse_schema(f"value {node.to.sql(dialect='spark')}").field(0).type
        return Cast(self.part(node.this), dtype, strict)

    def _read_interval(self, node: Any) -> Part:
        unit = getattr(node.args.get("unit"), "name", "").upper().removesuffix("S")
        if unit not in _UNITS or type(node.this).__name__ not in ("Literal", "Neg"):
            known = ", ".join(_UNITS).lower()
            raise ConfigurationError(f"{self._text!r}: an interval is a number and a unit: {known}")
        amount = self.part(node.this)
        assert isinstance(amount, Literal)
        try:
            microseconds = int(decimal.Decimal(str(amount.value).strip()) * _UNITS[unit])
            return literal_of(datetime.timedelta(microseconds=microseconds))
        except (decimal.InvalidOperation, OverflowError) as error:
            raise ConfigurationError(f"{self._text!r}: {amount.value!r} is no number of {unit.lower()}s") from error

    def _read_between(self, node: Any) -> Part:
        return Call("between", (self.part(node.this), self.part(node.args["low"]), self.part(node.args["high"])))

    def _read_in(self, node: Any) -> Part:
        if not node.expressions:
            raise ConfigurationError(f"{self._text!r}: IN takes a list of values")
        return Call("in", (self.part(node.this), *map(self.part, node.expressions)))

    def _read_is(self, node: Any) -> Part:
        value, other = self.part(node.this), self.part(node.expression)
        if isinstance(other, Literal) and other.value is None:
            return Call("isnull", (value,))
        return Call("<=>", (value, other))

    def _read_nullsafeneq(self, node: Any) -> Part:
        return Call("not", (Call("<=>", (self.part(node.this), self.part(node.expression))),))

    def _read_case(self, node: Any) -> Part:
        subject = None if node.this is None else self.part(node.this)
        branches = []
        for branch in node.args["ifs"]:
            condition = self.part(branch.this)
            test = condition if subject is None else Call("=", (subject, condition))
            branches.append((test, self.part(branch.args["true"])))
        default = node.args.get("default")
        return Case(tuple(branches), None if default is None else self.part(default))

    def _read_anonymous(self, node: Any) -> Part:
        return Call(str(node.this).lower(), tuple(map(self.part, node.expressions)))
