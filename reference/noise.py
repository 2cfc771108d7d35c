"""Rounding noise: how far a right implementation of a declared precision strays (section 8 of the text).

Every operation is wrapped so that each rounding that some right formulation of it makes is replaced by an independent
random error of the same size, in its forward and in its pullback; a few runs at once give the root mean square
change of every output element, its *noise unit*. Stochastic arithmetic (La Porte and Vignes 1974; Parker 1997; Denis,
de Oliveira Castro and Petit 2016), used here as the acceptance limit of a conformance suite.

Runs lead all other axes. A rounding to nearest has an error uniform over the spacing of the format at the result. Where
what is rounded stays inside, its size is that of the average significand: with unit roundoff `u` the relative error is
uniform in `[-u, u] / m` for a significand `m` in [1, 2), log-uniform, and its root mean square is `RMS * u`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoderspec.reference.operations import Array
from decoderspec.spec.precision import Format, Recipe
from decoderspec.spec.stages import suffix

RMS = math.sqrt((1 - 2.0**-2) / (2 * math.log(2)) / 3)  # 0.425
RUNS = 16
FINEST_INJECTED = 2.0**-40  # finer noise would drown in the float64 arithmetic that carries it
EQUAL = 2.0**-46  # relative: sums of the same terms differ by float64's last bits where a product is computed in tiles
ALIKE = 2.0**-22  # the same where the terms have cancelled: of float32's rounding of them
DRAWN_BITS = 12  # so many errors are drawn for each run, as a power of two; values are dealt out among them
MIX = 0x9E3779B97F4A7C15  # odd, 2^64 over the golden ratio: its products' high bits are spread evenly (Knuth 1973, 6.4)
COARSEST_INJECTED = 2.0**-10  # coarser noise than declared would leave the linear regime


def injection_scale(recipe: Recipe) -> float:
    """Factor by which noise is enlarged before it is injected, and its effect divided afterwards: it is linear."""
    return max(1.0, min(visible_scale(recipe), COARSEST_INJECTED / max(form.unit for form in recipe.used)))


def visible_scale(recipe: Recipe) -> float:
    """Factor that the noise of the finest format needs, so as not to drown in float64's own roundings."""
    return max(1.0, FINEST_INJECTED / min(form.unit for form in recipe.used))


@dataclass
class Noise:
    """One set of runs: the recipe, the generator, and how much the noise is enlarged.

    A rounding is a function of what is rounded: rows that are equal are rounded alike, and a sum over them averages
    nothing away. Values that are only nearly equal are rounded alike as well, or fall to two sides of a tie, a whole
    spacing apart: half the variance of their errors is in common.
    """

    recipe: Recipe
    generator: np.random.Generator
    runs: int = RUNS
    scale: float = 1.0
    row_errors: dict[int, Array] = field(default_factory=dict)  # see `mix_vjp`
    _calls: int = 0

    def __post_init__(self) -> None:
        self._drawn = [self.draw((1 << DRAWN_BITS,)).ravel() * math.sqrt(0.5) for _ in range(2)]

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Independent standard errors for each run: `[runs, *shape]`."""
        return self.generator.standard_normal((self.runs, *shape))

    def errors(self, value: Array, deviation: Array, rank: int, apart: bool = False) -> Array:
        """Standard errors `[runs, ..]` as a function of the value, whose last `rank` axes are those of one run.

        Nearly equal is what agrees to within the power of two below the standard deviation, a quarter to an eighth of
        a format's spacing; equal is what agrees to `EQUAL` of the value or `ALIKE` of the deviation. A value, its
        negative and its double have the same error, as in rounding. `apart`: but not those of different columns, whose
        weights differ.
        """
        size = np.abs(value, dtype=np.float64)
        self._calls += 1
        found = self._look_up(0, _cells(size, deviation), rank, apart)
        found = found + self._look_up(1, _cells(size, np.maximum(size * EQUAL, deviation * ALIKE)), rank, apart)
        drawn: Array = np.copysign(found, found * value)
        return drawn

    def _look_up(self, half: int, key: Array, rank: int, apart: bool) -> Array:
        """The errors drawn under a key `[.., *shape]`, for each run its own."""
        key = key + np.uint64(self._calls * MIX % 2**64)
        if apart:
            key = key + np.arange(key.shape[-1], dtype=np.uint64) * np.uint64(MIX // 3)
        place = (key * np.uint64(MIX) >> np.uint64(64 - DRAWN_BITS)).astype(np.intp)
        runs = np.arange(self.runs).reshape(-1, *[1] * rank) << DRAWN_BITS
        found: Array = self._drawn[half][place + runs]
        return found

    def spread(self, value: Array, deviation: Array, rank: int, apart: bool = False) -> Array:
        """`value` plus errors of the given standard deviation."""
        noisy: Array = value + self.errors(value, deviation, rank, apart) * deviation
        return noisy

    def deviation(self, form: Format) -> float:
        """Root mean square relative error of one rounding to that format, enlarged."""
        return RMS * form.unit * self.scale

    def store(self, value: Array, form: Format, rank: int, extra: Any = None, roundings: int = 1) -> Array:
        """A result with standard error `extra` inside and `roundings` roundings to its format; underflow is one."""
        if extra is not None:
            value = self.spread(value, extra, rank, apart=rank > 0)
        spacing = _power_of_two(np.abs(value)) * (2 * form.unit * self.scale)
        return self.spread(value, np.hypot(spacing * math.sqrt(roundings / 12), form.tiny * self.scale), rank)

    def summed(self, total: Array, length: Array, count: int, form: Format) -> Array:
        """Standard error of a sum of `count` products with this total; `length` is the root of their sum of squares.

        Each product is rounded, and so is each partial sum. Partial sums depend on the order of summation. Their mean
        over all sequential orders is `sum_k E s_k^2 = (n + 1) (Q / 6 + S^2 / 3)` with `Q` the sum of squares and `S`
        the total; it is taken twice, since all rows share one order, and one large term that always comes first stays
        in every partial sum rather than in half of them. No tree of sums exceeds it.
        """
        orders = np.hypot(length * math.sqrt(1 + (count + 1) / 3), total * math.sqrt((count + 1) / 1.5))
        rounded: Array = self.deviation(form) * orders
        return rounded

    def operands(self, a: Array, b: Array, held: Format, ranks: tuple[int, int]) -> Any:
        """The error of `a @ b` where operands held finer are rounded first, each once for all its products."""
        form = self.recipe.products
        if form.bits >= held.bits:
            return 0.0
        sizes = [self.deviation(form) * np.abs(each) for each in (a, b)]
        da, db = (self.errors(x, size, rank) * size for x, size, rank in zip((a, b), sizes, ranks, strict=True))
        if ranks[1] < ranks[0]:
            db = db.reshape(self.runs, *[1] * (ranks[0] - ranks[1]), *db.shape[1:])
        return da @ b + a @ db


def _cells(size: Array, width: Array) -> Array:
    """Which of the cells between here and 0 each value lies in; their width is the power of two below the one given."""
    with np.errstate(over="ignore"):
        return np.asarray(np.rint(size / _power_of_two(width)).view(np.uint64))


def _power_of_two(size: Array) -> Array:
    """The power of two at or below each number, of those that are not too small to matter."""
    found: Array = (np.maximum(size, 1e-300, dtype=np.float64).view(np.int64) & np.int64(0x7FF << 52)).view(np.float64)
    return found


def length(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """Root of the sum of squares along an axis, which is kept; the squares may be too small for float64."""
    largest = _largest(x, axis)
    root: Array = np.sqrt(np.sum(np.square(x / largest), axis=axis, keepdims=True)) * largest
    return root


def product_length(a: Array, b: Array) -> Array:
    """Root of the sum of squared products for each element of `a @ b`, as `length` has it."""
    row, column = _largest(a, -1), _largest(b, -2)
    root: Array = np.sqrt(np.square(a / row) @ np.square(b / column)) * row * column
    return root


def _largest(x: Array, axis: int | tuple[int, ...]) -> Array:
    """The largest size along an axis, or what is too small to matter."""
    size: Array = np.maximum(np.max(np.abs(x), axis=axis, keepdims=True), 1e-300)
    return size


@dataclass(frozen=True)
class Place:
    """The formats in force at one stage."""

    recipe: Recipe
    stage: str

    @property
    def stored(self) -> Format:
        """What the stage's result is rounded to."""
        return self.recipe.stored(self._suffix)

    @property
    def inner(self) -> Format:
        """What sums, statistics and exponentials inside the stage are rounded to."""
        return self.recipe.inner(self._suffix)

    @property
    def gradient(self) -> Format:
        """What a gradient that leaves the stage is rounded to."""
        return self.recipe.stages.get(self._suffix, self.recipe.gradients)

    @property
    def _suffix(self) -> str:
        return suffix(self.stage.partition("/")[0])
