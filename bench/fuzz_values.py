"""Python values that a caller may hand over in the place of a number or of an array."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from decoderspec.bench.fuzz_changes import LONG, near


class _Raising:
    """What raises an error of its own when it is read."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a device is lost")

    def __index__(self) -> int:
        raise OSError("no index")

    __int__ = __float__ = __len__ = __iter__ = __index__


class _Whole(int):
    """An integer of a class of its own."""


SCALARS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 10**400, 10**5000, -(10**5000), True, False, 0.0,
    -0.0, 0.5, 1.0, -1.0, 5e-324, 1e-300, 1e300, 1.7e308, float("nan"), float("inf"), float("-inf"), None, "", "4",
    b"4", "\udc80", LONG, [], [4], (4,), {}, {4}, 4j, Ellipsis, int, object(), Decimal(4), Decimal("nan"),
    Fraction(4), Fraction(1, 3), Fraction(1, 10**400), Fraction(10**400, 3), Fraction(1, 10**5000), _Whole(4),
    _Raising(), np.int8(4), np.uint64(2**63), np.float16(4), np.float32(0.5), np.float64("nan"), np.bool_(True),
    np.str_("4"), np.datetime64(4, "s"), np.array(4), np.array([4]), np.array(None), np.longdouble(4),
    np.longdouble("1e4000"), np.ma.masked, range(3), memoryview(b"4"), slice(None),
)  # fmt: skip
DTYPES = ("f2", "f4", ">f8", ">i8", "i1", "u1", "u8", "i4", "c16", "?", "O", "S3", "U3", "longdouble")


def changed_scalar(rng: Random, value: Any) -> Any:
    """Another value, of any type or near it."""
    return near(rng, value) if rng.random() < 0.3 else rng.choice(SCALARS)


def changed_array(rng: Random, array: Any) -> Any:
    """An array changed in a value, its dtype, its shape or its type; or something that is none."""
    return rng.choice(ARRAYS)(rng, np.atleast_1d(array))


def _one(rng: Random, array: Any, value: Any) -> Any:
    made = array.copy()
    made.flat[rng.randrange(made.size)] = value
    return made


def _scalar_within(rng: Random, array: Any) -> Any:
    """An array of objects, one of them odd."""
    made = array.astype(object)
    made.ravel()[rng.randrange(made.size) :][:1].fill(rng.choice(SCALARS))
    return made


def _ragged(array: Any) -> Any:
    rows = array.tolist()
    return [[0.0], *rows] if array.ndim == 1 else [rows[0][:-1], *rows[1:], rows[0]]


ARRAYS: tuple[Callable[[Random, Any], Any], ...] = (
    lambda rng, a: a.astype(rng.choice(DTYPES)),
    lambda rng, a: a.astype("i8").astype("M8[s]"),
    lambda rng, a: np.zeros(a.shape, [("value", float)]),
    lambda rng, a: _one(rng, a.astype(float), rng.choice((np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.5))),
    lambda rng, a: _one(rng, a, rng.choice((0, -1, 1, 100, 2**31, 2**62, -(2**62)))),
    _scalar_within,
    _scalar_within,
    lambda rng, a: np.full_like(a, rng.choice((0, 1, 1e150, 1e300, -1e300)) if a.dtype.kind == "f" else 0),
    lambda rng, a: a.T,
    lambda rng, a: a[..., ::-1],
    lambda rng, a: a[None],
    lambda rng, a: a[..., None],
    lambda rng, a: a.ravel(),
    lambda rng, a: a[:0],
    lambda rng, a: a[..., :0],
    lambda rng, a: a[:-1],
    lambda rng, a: np.concatenate([a, a]),
    lambda rng, a: np.broadcast_to(np.zeros((), a.dtype), (2 ** rng.choice((10, 40)), *a.shape[1:])),
    lambda rng, a: np.broadcast_to(np.zeros((), a.dtype), (2**20,) * rng.choice((1, 2))),
    lambda rng, a: np.zeros((1,) * 32),
    lambda rng, a: np.ma.masked_array(a, mask=np.arange(a.size).reshape(a.shape) % 3 == 0),
    lambda rng, a: np.asmatrix(a) if a.ndim == 2 else a.view(np.recarray),
    lambda rng, a: memoryview(np.ascontiguousarray(a).data),
    lambda rng, a: a.tolist(),
    lambda rng, a: tuple(a.tolist()),
    lambda rng, a: _ragged(a),
    lambda rng, a: iter(a.tolist()),
    lambda rng, a: str(a.tolist()),
    lambda rng, a: dict(enumerate(a.tolist())),
    lambda rng, a: np.array([a, None], object),
    lambda rng, a: rng.choice(SCALARS),
)
