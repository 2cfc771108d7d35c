"""The numbers of the oracle: what the decoder's formulas need of arithmetic, as a record of functions, and its
instance in arbitrary precision (mpmath); `ball` has another. Nothing here knows of decoders."""

import copyreg
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from numbers import Integral
from typing import Any

import numpy as np
from mpmath import nstr
from mpmath.ctx_mp import MPContext
from mpmath.libmp import from_float, from_int, from_man_exp, mpf_cos, mpf_exp, mpf_sin, mpf_sqrt, normalize

from decoderspec.spec.shown import shown

Exact = np.ndarray[Any, np.dtype[np.object_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Elementwise = Callable[[Any], Exact]

GUARD_BITS = 32  # beyond the digits asked for: what a deep composition of rounded operations may lose
BLOCK = 2**20  # elements of a matrix that are made exact at a time
SPAN_BITS = 512  # a row whose elements lie within this many binades of each other is multiplied without error


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """One kind of number at one precision; `+ - * / **` and comparison come with the elements themselves.

    Its numbers are computed with inside `with`, which sets what they share (a working precision) and puts it back.
    """

    digits: int
    exact: Callable[[Any], Exact]  # real numbers of any dtype: the same values, unrounded
    matmul: Callable[[Any, Any], Exact]  # [..., M, K] by [..., K, N], batched as in NumPy; takes what `exact` takes
    exp: Elementwise
    log1p: Elementwise  # log(1 + x)
    root: Elementwise
    cos: Elementwise
    sin: Elementwise
    peak: Elementwise  # about the largest of the last axis, which is kept: the shift of a softmax
    radius: Callable[[Exact], Floats] | None = None  # what the true value is proven to lie within; None: nothing is
    enter: Callable[[], None] = _nothing
    leave: Callable[[], None] = _nothing

    def __enter__(self) -> "Arithmetic":
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


Precision = Callable[[int], Arithmetic]  # digits -> arithmetic


def whole_digits(digits: Any) -> int:
    """The number of digits to compute with. Raises `ValueError` for what is none."""
    if isinstance(digits, bool) or not isinstance(digits, Integral) or digits < 1:
        raise ValueError(f"digits must be a whole number, 1 or more, got {shown(digits)}")
    return int(digits)


class _Context(MPContext):  # type: ignore[misc]  # mpmath has no types
    """An mpmath of our own: nobody's `mp.dps` reaches it, and its numbers print with the digits asked for."""

    _str_digits = 15  # a property in the base class, where it follows the working precision

    def __init__(self, digits: int) -> None:
        super().__init__()
        self.pretty = True
        self.dps = digits
        self.prec += GUARD_BITS
        self._str_digits = digits
        # The number type is made per context, so pickle and deepcopy cannot find it by name.
        copyreg.pickle(self.mpf, lambda value: (_restored, (digits, value._mpf_)))


@cache
def _context(digits: int) -> Any:
    return _Context(digits)


def _restored(digits: int, parts: Any) -> Any:
    return _context(digits).make_mpf(parts)


def multiprecision(digits: int) -> Arithmetic:
    """Arbitrary precision (mpmath): every operation is rounded to `digits` decimal digits and a few guard digits.

    Raises `ValueError` for fewer digits than 1.
    """
    return _multiprecision(whole_digits(digits))


@cache
def _multiprecision(digits: int) -> Arithmetic:
    context = _context(digits)
    return Arithmetic(
        digits=digits,
        exact=lambda values: _exact(context, values),
        matmul=lambda left, right: by_columns(partial(_matmul, context), np.asarray(left), np.asarray(right)),
        exp=_rounded(context, mpf_exp),
        log1p=lambda x: packed(map(context.log1p, np.asarray(x, object).flat), np.shape(x)),
        root=_rounded(context, mpf_sqrt),
        cos=_rounded(context, mpf_cos),
        sin=_rounded(context, mpf_sin),
        peak=lambda x: np.max(x, axis=-1, keepdims=True),
    )


def packed(items: Iterable[Any], shape: tuple[int, ...]) -> Exact:
    """An object array of the items, row by row."""
    return np.fromiter(items, object, count=int(np.prod(shape, dtype=int))).reshape(shape)


def _rounded(context: Any, function: Callable[..., Any]) -> Elementwise:
    """The libmp function on each element, correctly rounded to the context's precision."""
    make, precision = context.make_mpf, context.prec

    def elementwise(x: Any) -> Exact:
        x = np.asarray(x, object)
        return packed((make(function(v._mpf_, precision, "n")) for v in x.flat), x.shape)

    return elementwise


def _exact(context: Any, values: Any) -> Exact:
    """The same real numbers as elements of the context; a float64 is a dyadic fraction, so nothing is lost."""
    array, make = np.asarray(values), context.make_mpf
    if array.dtype == object:
        if all(type(v) is context.mpf for v in array.flat):
            return array
        items = (make(_parts(v)) for v in array.flat)
    elif array.dtype.kind in "iu":
        items = (make(from_int(v)) for v in array.ravel().tolist())
    elif array.dtype.itemsize > 8:  # long double: wider than float64
        items = (make(_parts(v)) for v in array.flat)
    else:
        floats = array.astype(np.float64, casting="same_kind").ravel().tolist()
        items = (make(from_float(v)) for v in floats)
    return packed(items, array.shape)


def _parts(value: Any) -> Any:
    """The number as mpmath's (sign, mantissa, exponent, bits)."""
    if hasattr(value, "_mpf_"):
        return value._mpf_
    if isinstance(value, int | np.integer):
        return from_int(int(value))
    if isinstance(value, np.longdouble) and np.isfinite(value):
        numerator, denominator = value.as_integer_ratio()  # the denominator is a power of two
        return from_man_exp(numerator, 1 - denominator.bit_length())
    if isinstance(value, float | np.floating):
        return from_float(float(value))
    raise TypeError(f"expected a real number, got {type(value).__name__}: {value!r}")


def by_columns(multiply: Callable[[Any, Any], Exact], left: Any, right: Any) -> Exact:
    """A matrix product, `BLOCK` elements of `right` at a time: so many columns are made exact at once."""
    columns = right.shape[-1]
    width = max(1, BLOCK * columns // max(1, right.size))
    blocks = [multiply(left, right[..., at : at + width]) for at in range(0, max(1, columns), width)]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=-1)


def _matmul(context: Any, left: Any, right: Any) -> Exact:
    """Matrix product in block floating point: integers with one exponent per row of `left` and column of `right`.

    Integer products and sums are exact, so the only errors are the final rounding and what `_integers` cuts off:
    nothing while the elements of a row (a column) span at most `SPAN_BITS` binades, 154 decades. Beyond that
    each element is off by less than `2^(1 - SPAN_BITS - prec)` of its row's largest, hence a result by less than
    `K 2^(3 - SPAN_BITS - prec) max|row| max|column|`: full precision, unless huge terms meet tiny partners
    (`[1, 1e-300] . [0, 1e300]`), where only this absolute bound holds.
    """
    if left.ndim == 1:
        return _matmul(context, left[None], right)[..., 0, :]
    try:
        rows, row_exponents = _integers(context, left)
        columns, column_exponents = _integers(context, right.swapaxes(-1, -2))
    except FloatingPointError:  # infinities and NaN have no exponent: elementwise, as IEEE does
        return np.asarray(_exact(context, left) @ _exact(context, right), object)
    product = rows @ columns.swapaxes(-1, -2)
    exponents = row_exponents[..., :, None] + column_exponents[..., None, :]
    make, precision = context.make_mpf, context.prec
    terms = zip(product.ravel().tolist(), exponents.ravel().tolist(), strict=True)
    parts = (normalize(int(m < 0), abs(m), e, m.bit_length(), precision, "n") for m, e in terms)
    return packed(map(make, parts), product.shape)


def _integers(context: Any, x: Any) -> tuple[Exact, Exact]:
    """Integers `[..., K]` and one exponent per row `[...]` such that `x = integers * 2^exponent`."""
    bits = context.prec + SPAN_BITS
    if x.dtype in (np.float64, np.float32):
        return _integers_of_floats(x.astype(np.float64), bits)
    x = _exact(context, x)
    rows = [_common(row.tolist(), bits) for row in x.reshape(-1, x.shape[-1])]
    integers = packed((m for mantissas, _ in rows for m in mantissas), x.shape)
    return integers, packed((exponent for _, exponent in rows), x.shape[:-1])


def _integers_of_floats(x: Floats, bits: int) -> tuple[Exact, Exact]:
    """The same for float64 at once: mantissas of 53 bits."""
    if not np.isfinite(x).all():
        raise FloatingPointError("not finite")
    fractions, high = np.frexp(x)
    high = np.where(x == 0, -(2**20), high)  # below any other: a zero has no exponent
    highest = high.max(axis=-1, keepdims=True)
    lowest = np.where(x == 0, highest, high).min(axis=-1, keepdims=True)
    low = np.maximum(lowest - 53, highest - bits)
    mantissas, shifts = np.ldexp(fractions, 53).astype(np.int64), high - 53 - low
    cut = (mantissas >> np.clip(-shifts, 0, 63)).astype(object)
    integers: Exact = cut << np.maximum(shifts, 0).astype(object)
    return integers, low[..., 0].astype(object)


def _common(row: list[Any], bits: int) -> tuple[list[int], int]:
    parts = [value._mpf_ for value in row]
    spans = [(exponent, exponent + size) for _, mantissa, exponent, size in parts if mantissa]
    if len(spans) < len(parts) and any(exponent for _, mantissa, exponent, _ in parts if not mantissa):
        raise FloatingPointError("not finite")
    if not spans:
        return [0] * len(row), 0
    # The lowest bit of any element, but at most `bits` below the highest.
    low = max(min(low for low, _ in spans), max(high for _, high in spans) - bits)
    return [_shifted(sign, mantissa, exponent - low) for sign, mantissa, exponent, _ in parts], low


def _shifted(sign: int, mantissa: int, shift: int) -> int:
    magnitude = mantissa << shift if shift >= 0 else mantissa >> -shift
    return -magnitude if sign else magnitude


def to_float(truth: Any) -> Floats:
    """The nearest float64 of each element; beyond the range, an infinity or zero."""
    return np.asarray(truth, object).astype(np.float64)


def difference(values: Any, truth: Any) -> Floats:
    """`values - truth` before rounding to float64: right where both agree in all but their last bits."""
    exact = multiprecision(50).exact
    values, truth = exact(values), exact(truth)
    if values.shape != truth.shape:
        raise ValueError(f"shapes differ: values {values.shape}, truth {truth.shape}")
    return to_float(values - truth)


def text(array: Any, digits: int = 12) -> str:
    """The array as aligned text with so many digits an element."""
    digits = whole_digits(digits)
    formatter: Any = {"object": lambda value: nstr(value, digits, strip_zeros=False).rjust(digits + 7)}
    return np.array2string(np.asarray(array, object), formatter=formatter)
