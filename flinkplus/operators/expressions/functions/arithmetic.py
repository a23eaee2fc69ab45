"""Numbers: ``+ - * / % div``, bits, and mathematical functions.

Rules: whole numbers and decimals that leave their range, and division by zero, are errors, as in Spark's ANSI mode.
Floating point follows IEEE 754. The types of results are Spark's.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.operators.expressions.bound import Bound, Values, applied, by_value, constant_of, on_arrays
from flinkplus.operators.expressions.casts import WIDE, alike, cast, rescaled, widened
from flinkplus.operators.expressions.functions.moments import shifted
from flinkplus.operators.expressions.functions.registry import attempting, check, function
from flinkplus.operators.expressions.types import (
    INT_DIGITS,
    MAX_DIGITS,
    bounded,
    decimal_for,
    is_moment,
    is_number,
    shown,
)

DOUBLE = pa.float64()
Two = tuple[Bound, Bound]


def _numbers(name: str, left: Bound, right: Bound) -> Two:
    for one in (left, right):
        if not is_number(one.dtype) and not pa.types.is_null(one.dtype):
            raise ConfigurationError(f"{name!r} needs numbers, not {shown(one.dtype)}: cast it")
    if pa.types.is_null(left.dtype) and pa.types.is_null(right.dtype):
        return cast(left, DOUBLE), cast(right, DOUBLE)
    return left, right


def _as_decimals(left: Bound, right: Bound) -> Two | None:
    """Both as decimals, where one is and the other can be; a whole constant with as many digits as it has."""
    kinds = [left.dtype, right.dtype]
    if not any(map(pa.types.is_decimal, kinds)) or any(map(pa.types.is_floating, kinds)):
        return None
    return _as_decimal(left), _as_decimal(right)


def _as_decimal(value: Bound) -> Bound:
    if pa.types.is_null(value.dtype):
        return cast(value, pa.decimal128(1, 0))
    if value.is_constant and value.constant is not None and pa.types.is_integer(value.dtype):
        return widened(value, pa.decimal128(len(str(abs(value.constant))), 0))
    return widened(value, decimal_for(value.dtype))


def _decimals(
    left: Bound,
    right: Bound,
    precision: int,
    scale: int,
    exact: Callable[..., Any],
    kernel: Callable[..., Values] | None,
) -> Bound:
    """Arithmetic of decimals: ``kernel`` where Arrow's result has the same type, otherwise ``exact`` and rounding."""
    dtype = bounded(precision, scale)
    if kernel is not None and precision <= MAX_DIGITS:
        return applied(dtype, lambda a, b: kernel(a, b).cast(dtype), left, right, fails=True)
    return by_value(dtype, lambda a, b: rescaled(exact(a, b), dtype), left, right, fails=True)


def _computed(left: Bound, right: Bound, whole: Callable[..., Values], real: Callable[..., Values]) -> Bound:
    left, right = alike("arithmetic", left, right)
    if pa.types.is_floating(left.dtype):
        return applied(left.dtype, real, left, right)
    return applied(left.dtype, whole, left, right, fails=True)


def _sum(name: str, left: Bound, right: Bound) -> Bound:
    left, right = _numbers(name, left, right)
    adds = name == "+"
    both = _as_decimals(left, right)
    if both is None:
        whole, real = (pc.add_checked, pc.add) if adds else (pc.subtract_checked, pc.subtract)
        return _computed(left, right, whole, real)
    a, b = both[0].dtype, both[1].dtype
    scale = max(a.scale, b.scale)
    digits = max(a.precision - a.scale, b.precision - b.scale) + scale + 1
    return _decimals(*both, digits, scale, WIDE.add if adds else WIDE.subtract, pc.add if adds else pc.subtract)


@function("+")
def plus(left: Bound, right: Bound) -> Bound:
    if is_moment(right.dtype):
        left, right = right, left
    if is_moment(left.dtype):
        return shifted(left, right, backwards=False)
    return _sum("+", left, right)


@function("-")
def minus(left: Bound, right: Bound | None = None) -> Bound:
    if right is None:
        check(left, is_number, "a number")
        return applied(left.dtype, pc.negate_checked, left, fails=pa.types.is_integer(left.dtype))
    if is_moment(left.dtype):
        return shifted(left, right, backwards=True)
    return _sum("-", left, right)


@function("*")
def times(left: Bound, right: Bound) -> Bound:
    left, right = _numbers("*", left, right)
    both = _as_decimals(left, right)
    if both is None:
        return _computed(left, right, pc.multiply_checked, pc.multiply)
    a, b = both[0].dtype, both[1].dtype
    return _decimals(*both, a.precision + b.precision + 1, a.scale + b.scale, WIDE.multiply, pc.multiply)


def _check_divisor(dividend: Values, divisor: Values) -> None:
    zero = pc.and_(pc.is_valid(dividend), pc.equal(divisor, pa.scalar(0).cast(divisor.type)))
    if zero.as_py() if isinstance(zero, pa.Scalar) else pc.any(zero).as_py():
        raise ZeroDivisionError("division by zero")


def _quotient(dividend: Values, divisor: Values) -> Values:
    _check_divisor(dividend, divisor)
    return pc.divide(dividend, divisor)


def _fails_as_divisor(divisor: Bound) -> bool:
    return not divisor.is_constant or divisor.constant == 0


@function("/")
def divided(left: Bound, right: Bound) -> Bound:
    left, right = _numbers("/", left, right)
    both = _as_decimals(left, right)
    if both is None:
        left, right = cast(left, DOUBLE), cast(right, DOUBLE)
        return applied(DOUBLE, _quotient, left, right, fails=_fails_as_divisor(right))
    a, b = both[0].dtype, both[1].dtype
    scale = max(6, a.scale + b.precision + 1)
    return _decimals(*both, a.precision - a.scale + b.scale + scale, scale, _exact_quotient, None)


def _exact_quotient(a: decimal.Decimal, b: decimal.Decimal) -> decimal.Decimal:
    if not b:
        raise ZeroDivisionError("division by zero")
    return _WIDER.divide(a, b)


_WIDER = decimal.Context(prec=160, rounding=decimal.ROUND_DOWN)
"""Many more digits than any result, so that cutting here does not change the rounding there."""


@function("div")
def whole_division(left: Bound, right: Bound) -> Bound:
    left, right = _numbers("div", left, right)
    both = _as_decimals(left, right)
    if both is not None:
        return by_value(pa.int64(), lambda a, b: int(_exact_quotient(a, b)), *both, fails=True)
    if pa.types.is_floating(left.dtype) or pa.types.is_floating(right.dtype):
        raise ConfigurationError("'div' needs whole numbers or decimals; use /")
    return applied(pa.int64(), pc.divide_checked, cast(left, pa.int64()), cast(right, pa.int64()), fails=True)


def _numpy(dtype: pa.DataType, kernel: Callable[..., npt.NDArray[Any]]) -> Callable[..., pa.Array]:
    """A kernel of numpy for Arrow's arrays; null where one of them is."""

    def on_two(left: pa.Array, right: pa.Array) -> pa.Array:
        _check_divisor(left, right)
        nulls = np.asarray(pc.or_(pc.is_null(left), pc.is_null(right)))
        a = np.asarray(left.fill_null(pa.scalar(0).cast(left.type)))
        b = np.where(nulls, 1, np.asarray(right.fill_null(pa.scalar(1).cast(right.type)))).astype(a.dtype)
        with np.errstate(all="ignore"):
            return pa.array(kernel(a, b), dtype, mask=nulls)

    return on_two


def _remainder(name: str, left: Bound, right: Bound, kernel: Callable[..., Any], exact: Callable[..., Any]) -> Bound:
    left, right = _numbers(name, left, right)
    both = _as_decimals(left, right)
    if both is not None:
        a, b = both[0].dtype, both[1].dtype
        scale = max(a.scale, b.scale)
        return _decimals(*both, min(a.precision - a.scale, b.precision - b.scale) + scale, scale, exact, None)
    left, right = alike(f"{name!r}", left, right)
    return on_arrays(left.dtype, _numpy(left.dtype, kernel), left, right, fails=_fails_as_divisor(right))


def _exact_remainder(a: decimal.Decimal, b: decimal.Decimal) -> decimal.Decimal:
    if not b:
        raise ZeroDivisionError("division by zero")
    return _WIDER.remainder(a, b)


def _exact_pmod(a: decimal.Decimal, b: decimal.Decimal) -> decimal.Decimal:
    found = _exact_remainder(a, b)
    return _exact_remainder(found + b, b) if found < 0 else found


def _numpy_pmod(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    found = np.fmod(a, b)
    return np.where(found < 0, np.fmod(found + b, b), found)


@function("%", "mod")
def modulo(left: Bound, right: Bound) -> Bound:
    return _remainder("%", left, right, np.fmod, _exact_remainder)


@function("pmod")
def positive_modulo(left: Bound, right: Bound) -> Bound:
    return _remainder("pmod", left, right, _numpy_pmod, _exact_pmod)


for _name, _make in {"add": plus, "subtract": minus, "multiply": times, "divide": divided, "mod": modulo}.items():
    function(f"try_{_name}")(attempting(_make))


# --- bits


def _bits(kernel: Callable[..., Values]) -> Callable[[Bound, Bound], Bound]:
    def make(left: Bound, right: Bound) -> Bound:
        check(left, pa.types.is_integer, "whole numbers")
        check(right, pa.types.is_integer, "whole numbers")
        left, right = alike("bits", left, right)
        return applied(left.dtype, kernel, left, right)

    return make


for _sign, _kernel in {"&": pc.bit_wise_and, "|": pc.bit_wise_or, "^": pc.bit_wise_xor}.items():
    function(_sign)(_bits(_kernel))


@function("~")
def bitwise_not(value: Bound) -> Bound:
    check(value, pa.types.is_integer, "a whole number")
    return applied(value.dtype, pc.bit_wise_not, value)


# --- functions of floating point


def _real(kernel: Callable[..., Values]) -> Callable[[Bound], Bound]:
    def make(value: Bound) -> Bound:
        check(value, is_number, "a number")
        return applied(DOUBLE, kernel, cast(value, DOUBLE))

    return make


def _logarithm(kernel: Callable[..., Values]) -> Callable[..., Values]:
    """Null for what is not positive."""

    def positive(values: Values) -> Values:
        none = pa.scalar(None, DOUBLE)
        return kernel(pc.if_else(pc.less_equal(values, 0.0), none, values))

    return positive


_REAL: dict[str, Callable[..., Values]] = {
    "sqrt": pc.sqrt, "exp": pc.exp, "sin": pc.sin, "cos": pc.cos, "tan": pc.tan, "asin": pc.asin, "acos": pc.acos,
    "atan": pc.atan, "ln": _logarithm(pc.ln), "log10": _logarithm(pc.log10), "log2": _logarithm(pc.log2),
    "degrees": lambda values: pc.multiply(values, 180.0 / math.pi),
    "radians": lambda values: pc.multiply(values, math.pi / 180.0),
}  # fmt: skip
for _name, _kernel in _REAL.items():
    function(_name)(_real(_kernel))


@function("log")
def log(first: Bound, second: Bound | None = None) -> Bound:
    """``log(x)``, or ``log(base, x)``."""
    if second is None:
        return _real(_logarithm(pc.ln))(first)
    return applied(DOUBLE, pc.divide, log(second), log(first))


@function("pow", "power")
def power(base: Bound, exponent: Bound) -> Bound:
    _numbers("pow", base, exponent)
    return applied(DOUBLE, pc.power, cast(base, DOUBLE), cast(exponent, DOUBLE))


@function("atan2")
def atan2(y: Bound, x: Bound) -> Bound:
    _numbers("atan2", y, x)
    return applied(DOUBLE, pc.atan2, cast(y, DOUBLE), cast(x, DOUBLE))


# --- functions of any number


@function("abs")
def absolute(value: Bound) -> Bound:
    check(value, is_number, "a number")
    return applied(value.dtype, pc.abs_checked, value, fails=pa.types.is_integer(value.dtype))


@function("sign", "signum")
def sign(value: Bound) -> Bound:
    check(value, is_number, "a number")
    return applied(DOUBLE, pc.sign, cast(value, DOUBLE))


def _to_long(values: Values) -> Values:
    return values.cast(pa.int64())


def _rounded_to_whole(value: Bound, kernel: Callable[..., Values], rounding: str) -> Bound:
    check(value, is_number, "a number")
    if pa.types.is_integer(value.dtype):
        return cast(value, pa.int64())
    if pa.types.is_decimal(value.dtype):
        dtype = pa.decimal128(min(MAX_DIGITS, value.dtype.precision - value.dtype.scale + 1), 0)
        return by_value(dtype, lambda number: number.to_integral_value(rounding=rounding), value, fails=True)
    return applied(pa.int64(), lambda values: _to_long(kernel(values)), value, fails=True)


@function("floor")
def floor(value: Bound) -> Bound:
    return _rounded_to_whole(value, pc.floor, decimal.ROUND_FLOOR)


@function("ceil", "ceiling")
def ceil(value: Bound) -> Bound:
    return _rounded_to_whole(value, pc.ceil, decimal.ROUND_CEILING)


def _rounded(name: str, value: Bound, places: Bound | None, rounding: str, whole: str) -> Bound:
    check(value, is_number, "a number")
    digits = 0 if places is None else constant_of(places, "the number of decimal places", int)
    if pa.types.is_integer(value.dtype):
        if digits >= 0:
            return value
        wide = pa.decimal128(INT_DIGITS[value.dtype.byte_width], 0)
        return cast(_rounded(name, cast(value, wide), places, rounding, whole), value.dtype)
    if pa.types.is_decimal(value.dtype):
        integral, scale = value.dtype.precision - value.dtype.scale + 1, min(value.dtype.scale, max(digits, 0))
        dtype = pa.decimal128(min(MAX_DIGITS, max(integral + scale, 1 - digits if digits < 0 else 1)), scale)
        return by_value(dtype, lambda number: _rounded_decimal(number, digits, rounding), value, fails=True)
    if digits == 0:
        return applied(value.dtype, lambda values: pc.add(pc.round(values, round_mode=whole), _zero(values)), value)
    return by_value(value.dtype, lambda number: _rounded_float(number, digits, rounding), value)


def _zero(values: Values) -> pa.Scalar:
    """What makes zero of minus zero when it is added: no number is rounded to minus zero."""
    return pa.scalar(0.0, values.type)


def _rounded_decimal(number: decimal.Decimal, digits: int, rounding: str) -> decimal.Decimal:
    found = number.quantize(decimal.Decimal(1).scaleb(-digits), rounding, WIDE)
    return found.quantize(decimal.Decimal(1), context=WIDE) if digits < 0 else found


def _rounded_float(number: float, digits: int, rounding: str) -> float:
    if not math.isfinite(number):
        return number
    exact = decimal.Decimal(repr(number))
    unit = decimal.Decimal(1).scaleb(-digits)
    return float(exact.quantize(unit, rounding, decimal.Context(prec=700))) + 0.0


@function("round")
def round_half_up(value: Bound, places: Bound | None = None) -> Bound:
    return _rounded("round", value, places, decimal.ROUND_HALF_UP, "half_towards_infinity")


@function("bround")
def round_half_even(value: Bound, places: Bound | None = None) -> Bound:
    return _rounded("bround", value, places, decimal.ROUND_HALF_EVEN, "half_to_even")
