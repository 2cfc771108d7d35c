"""Ball arithmetic (Arb, through python-flint) for the oracle: every number is a midpoint with a proven radius.

The true value of what was computed lies within the radius, whatever was rounded on the way: Johansson, "Arb: efficient
arbitrary-precision midpoint-radius interval arithmetic", 2017. What is exact keeps radius 0, future attention weights
and products with zero among it; what is undefined or beyond all bounds (infinities that cancel, a root of a ball
that reaches below zero, `exp` of 10^30) is NaN or an infinite radius, which says nothing and so nothing wrong.

Flint has one working precision per process. It is set on entering the arithmetic and put back on leaving, so
results do not depend on it; elements that are computed with later round to whatever it is then. Not for threads.
"""

from collections.abc import Callable
from functools import cache
from operator import methodcaller
from typing import Any

import numpy as np
from flint import arb, arb_mat, arf, ctx

from decoderspec.reference.arithmetic import (
    GUARD_BITS,
    Arithmetic,
    Elementwise,
    Exact,
    Floats,
    by_columns,
    packed,
    whole_digits,
)

BITS_PER_DIGIT = 3.3219280948873626
_outer: list[int] = []  # working precisions to go back to


def balls(digits: int) -> Arithmetic:
    """Ball arithmetic with a working precision of so many decimal digits and a few guard digits.

    Raises `ValueError` for fewer digits than 1.
    """
    return _balls(whole_digits(digits))


@cache
def _balls(digits: int) -> Arithmetic:
    return Arithmetic(
        digits=digits,
        exact=_exact,
        matmul=_matmul,
        exp=_each("exp"),
        log1p=_each("log1p"),
        root=_each("sqrt"),
        cos=_each("cos"),
        sin=_each("sin"),
        peak=_peak,
        radius=radius,
        enter=_enter(int(digits * BITS_PER_DIGIT) + 1 + GUARD_BITS),
        leave=_leave,
    )


def _enter(bits: int) -> Callable[[], None]:
    def enter() -> None:
        _outer.append(ctx.prec)
        ctx.prec = bits

    return enter


def _leave() -> None:
    ctx.prec = _outer.pop()


def _each(name: str) -> Elementwise:
    method = methodcaller(name)

    def elementwise(x: Any) -> Exact:
        x = np.asarray(x, object)
        return packed(map(method, x.flat), x.shape)

    return elementwise


def _peak(x: Exact) -> Exact:
    """The largest midpoint: a shift without a radius of its own leaves the balls that it shifts narrow."""
    rows = x.reshape(-1, x.shape[-1])
    return packed((max(value.mid() for value in row) for row in rows), (*x.shape[:-1], 1))


def radius(x: Exact) -> Floats:
    """The radius of each ball, rounded up; infinite where the midpoint is not a number."""
    radii: Floats = np.array([float(value.rad()) for value in x.ravel().tolist()], np.float64)
    exact = np.array([value.is_exact() for value in x.ravel().tolist()], bool)
    radii = np.where(exact, radii, np.nextafter(radii, np.inf)).reshape(x.shape)
    return np.where(np.isnan(x.astype(np.float64)), np.inf, radii)


def _exact(values: Any) -> Exact:
    """The same real numbers as balls of radius 0; what is a ball already stays as it is."""
    numbers = _numbers(values)
    if _is_balls(numbers):
        return numbers
    return packed(map(arb, numbers.ravel().tolist()), numbers.shape)


def _numbers(values: Any) -> np.ndarray[Any, Any]:
    """An array whose elements as Python numbers are ones that flint takes without rounding."""
    array = np.asarray(values)
    if array.dtype.kind in "iu" or (array.dtype.kind == "f" and array.dtype.itemsize <= 8) or _is_balls(array):
        return array
    if array.dtype != object and array.dtype.kind != "f":
        raise TypeError(f"expected real numbers, got dtype {array.dtype}")
    return packed(map(_number, array.flat), array.shape)


def _is_balls(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype == object and set(map(type, array.ravel().tolist())) == {arb}


def _number(value: Any) -> Any:
    if type(value) is arb:
        return value
    if hasattr(value, "_mpf_"):  # mpmath: sign, mantissa, exponent, bits
        sign, mantissa, exponent, _ = value._mpf_
        special = not mantissa and exponent
        return arb(float(value)) if special else arb(arf((-mantissa if sign else mantissa, exponent)))
    if isinstance(value, np.longdouble) and np.isfinite(value):
        numerator, denominator = value.as_integer_ratio()  # the denominator is a power of two
        return arb(arf((numerator, 1 - denominator.bit_length())))
    if isinstance(value, int | float | np.integer | np.floating):
        return arb(value.item() if isinstance(value, np.integer | np.floating) else value)
    raise TypeError(f"expected a real number, got {type(value).__name__}: {value!r}")


def _matmul(left: Any, right: Any) -> Exact:
    """Matrix products as Arb computes them: in blocks of like exponents, so that small terms keep their digits."""
    left, right = _numbers(left), _numbers(right)
    if left.ndim == 1:
        return _matmul(left[None], right)[..., 0, :]
    if right.ndim == 2:  # one flat product
        return _product(left.reshape(-1, left.shape[-1]), right).reshape(*left.shape[:-1], right.shape[-1])
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left, right = (np.broadcast_to(x, batch + x.shape[-2:]) for x in (left, right))
    product: Exact = np.empty((*left.shape[:-1], right.shape[-1]), object)
    for at in np.ndindex(batch):
        product[at] = _product(left[at], right[at])
    return product


def _product(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> Exact:
    """`[M, K]` by `[K, N]`."""
    rows = _matrix(left)
    return by_columns(lambda _, columns: _entries(rows * _matrix(columns)), left, right)


def _matrix(x: np.ndarray[Any, Any]) -> Any:
    return arb_mat(*x.shape, x.ravel().tolist())


def _entries(x: Any) -> Exact:
    return packed(x.entries(), (x.nrows(), x.ncols()))
