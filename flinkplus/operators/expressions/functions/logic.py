"""Conditions: comparison, and, or, not, nulls, membership, and the choice between values.

Rules: null is unknown, as in SQL. NaN is equal to itself, and larger than any other number, as in Spark. What decides
is computed first, from left to right; the rest only for the rows where it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.operators.expressions.bound import Bound, RowValues, Values, applied, chosen, constant, derived, once
from flinkplus.operators.expressions.casts import alike
from flinkplus.operators.expressions.functions.registry import check, function
from flinkplus.operators.expressions.types import is_number, shown

BOOL = pa.bool_()


def condition(argument: Bound) -> Bound:
    """An argument that must be a condition."""
    if pa.types.is_null(argument.dtype):
        return constant(None, BOOL)
    check(argument, pa.types.is_boolean, "a condition")
    return argument


@function("and")
def conjunction(*arguments: Bound) -> Bound:
    return _junction(arguments, pc.and_kleene, lambda so_far: so_far.fill_null(True))


@function("or")
def disjunction(*arguments: Bound) -> Bound:
    return _junction(arguments, pc.or_kleene, lambda so_far: pc.invert(so_far.fill_null(False)))


def _junction(
    arguments: Sequence[Bound], combine: Callable[..., Values], undecided: Callable[[Values], Values]
) -> Bound:
    parts = tuple(map(condition, arguments))

    def run(rows: RowValues) -> Values:
        so_far = parts[0].run(rows)
        for part in parts[1:]:
            if part.fails:
                so_far = rows.array(so_far)
                so_far = combine(so_far, chosen(rows, undecided(so_far), part))
            else:
                so_far = combine(so_far, part.run(rows))
        return so_far

    return derived(BOOL, run, parts)


@function("not")
def negation(argument: Bound) -> Bound:
    return applied(BOOL, pc.invert, condition(argument))


def is_nan_constant(argument: Bound) -> bool:
    """Whether a constant is NaN."""
    return argument.is_constant and argument.constant is not None and argument.constant != argument.constant


def _without_nan(argument: Bound) -> bool:
    return not pa.types.is_floating(argument.dtype) or (argument.is_constant and not is_nan_constant(argument))


def _equal(left: Values, right: Values) -> Values:
    return pc.or_kleene(pc.equal(left, right), pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def _less(left: Values, right: Values) -> Values:
    return pc.or_kleene(pc.less(left, right), pc.and_kleene(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def _compared(name: str, left: Bound, right: Bound, plain: str) -> Bound:
    left, right = alike(f"{name!r}", left, right)
    dtype = left.dtype
    if pa.types.is_null(dtype):
        return constant(None, BOOL)
    if pa.types.is_nested(dtype):
        raise ConfigurationError(f"values of type {shown(dtype)} cannot be compared")
    if _without_nan(left) and _without_nan(right):
        return applied(BOOL, getattr(pc, plain), left, right)
    return applied(BOOL, _WITH_NAN[name], left, right)


_WITH_NAN: dict[str, Callable[[Values, Values], Values]] = {
    "=": _equal,
    "<>": lambda left, right: pc.invert(_equal(left, right)),
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: pc.invert(_less(right, left)),
    ">=": lambda left, right: pc.invert(_less(left, right)),
}


@function("=")
def equal(left: Bound, right: Bound) -> Bound:
    return _compared("=", left, right, "equal")


@function("<>")
def different(left: Bound, right: Bound) -> Bound:
    return _compared("<>", left, right, "not_equal")


@function("<")
def less(left: Bound, right: Bound) -> Bound:
    return _compared("<", left, right, "less")


@function("<=")
def at_most(left: Bound, right: Bound) -> Bound:
    return _compared("<=", left, right, "less_equal")


@function(">")
def greater(left: Bound, right: Bound) -> Bound:
    return _compared(">", left, right, "greater")


@function(">=")
def at_least(left: Bound, right: Bound) -> Bound:
    return _compared(">=", left, right, "greater_equal")


@function("<=>")
def equal_with_nulls(left: Bound, right: Bound) -> Bound:
    left, right = map(once, alike("'<=>'", left, right))
    compared = equal(left, right)

    def kernel(same: Values, one: Values, other: Values) -> Values:
        return pc.or_(pc.fill_null(same, False), pc.and_(pc.is_null(one), pc.is_null(other)))

    return applied(BOOL, kernel, compared, left, right)


@function("between")
def between(value: Bound, low: Bound, high: Bound) -> Bound:
    value = once(value)
    return conjunction(at_least(value, low), at_most(value, high))


@function("in")
def among(value: Bound, *members: Bound) -> Bound:
    if not members:
        raise ConfigurationError("needs at least one value to compare with")
    value, *others = alike("'in'", value, *members)
    value = once(value)
    known = [member.constant for member in others if member.is_constant and member.constant is not None]
    if len(known) < len(others) or pa.types.is_floating(value.dtype) or pa.types.is_nested(value.dtype):
        return disjunction(*[equal(value, member) for member in others])
    values = pa.array(known, value.dtype)

    def kernel(found: Values) -> Values:
        return pc.if_else(pc.is_null(found), pa.scalar(None, BOOL), pc.is_in(found, value_set=values))

    return applied(BOOL, kernel, value)


@function("isnull")
def is_null(argument: Bound) -> Bound:
    return applied(BOOL, pc.is_null, argument)


@function("isnotnull")
def is_not_null(argument: Bound) -> Bound:
    return applied(BOOL, pc.is_valid, argument)


@function("isnan")
def is_nan(argument: Bound) -> Bound:
    check(argument, is_number, "a number")
    if not pa.types.is_floating(argument.dtype):
        return applied(BOOL, lambda values: pc.and_(pc.is_valid(values), pa.scalar(False)), argument)
    return applied(BOOL, lambda values: pc.fill_null(pc.is_nan(values), False), argument)


def case(branches: Sequence[tuple[Bound, Bound]], otherwise: Bound | None) -> Bound:
    """The value of the first branch whose condition is true."""
    conditions = [condition(one) for one, _ in branches]
    values = alike("'case'", *[value for _, value in branches], otherwise or constant(None, pa.null()))
    dtype = values[-1].dtype

    def run(rows: RowValues) -> Values:
        left = pa.repeat(pa.scalar(True), rows.count)
        result = pa.nulls(rows.count, dtype)
        for one, value in zip(conditions, values[:-1], strict=True):
            taken = pc.and_(left, chosen(rows, left, one).fill_null(False))
            result = pc.if_else(taken, chosen(rows, taken, value), result)
            left = pc.and_not(left, taken)
        return pc.if_else(left, chosen(rows, left, values[-1]), result)

    return derived(dtype, run, (*conditions, *values))


@function("if")
def if_(test: Bound, then: Bound, otherwise: Bound) -> Bound:
    return case([(test, then)], otherwise)


@function("coalesce", "nvl", "ifnull")
def coalesce(*arguments: Bound) -> Bound:
    if not arguments:
        raise ConfigurationError("needs at least one value")
    values = alike("'coalesce'", *arguments)

    def run(rows: RowValues) -> Values:
        result = values[0].array(rows)
        for value in values[1:]:
            if not result.null_count:
                return result
            missing = pc.is_null(result)
            result = pc.if_else(missing, chosen(rows, missing, value), result)
        return result

    return derived(values[0].dtype, run, values)


@function("nvl2")
def nvl2(value: Bound, then: Bound, otherwise: Bound) -> Bound:
    return case([(is_not_null(value), then)], otherwise)


@function("nullif")
def nullif(value: Bound, other: Bound) -> Bound:
    value = once(value)
    return case([(equal(value, other), constant(None, value.dtype))], value)


@function("nanvl")
def nanvl(value: Bound, other: Bound) -> Bound:
    value = once(value)
    return case([(is_nan(value), other)], value)


def _extreme(name: str, arguments: Sequence[Bound], *, largest: bool) -> Bound:
    if len(arguments) < 2:  # as SQL has it
        raise ConfigurationError(f"{name!r} needs at least two values")
    values = alike(f"{name!r}", *arguments)
    dtype = values[0].dtype
    if pa.types.is_null(dtype):
        return constant(None, dtype)
    if pa.types.is_nested(dtype):
        raise ConfigurationError(f"values of type {shown(dtype)} cannot be compared")
    precedes = _less if pa.types.is_floating(dtype) else pc.less

    def kernel(best: Values, *others: Values) -> Values:
        for other in others:
            better = precedes(best, other) if largest else precedes(other, best)
            best = pc.if_else(pc.or_(pc.is_null(best), pc.fill_null(better, False)), other, best)
        return best

    return applied(dtype, kernel, *values)


@function("greatest")
def greatest(*arguments: Bound) -> Bound:
    return _extreme("greatest", arguments, largest=True)


@function("least")
def least(*arguments: Bound) -> Bound:
    return _extreme("least", arguments, largest=False)
