"""Rounding noise: how far a right implementation of a declared precision strays (section 8 of the text).

Every operation is wrapped so that each rounding that some right formulation of it makes is replaced by an independent
random error of the same size, in its forward and in its pullback; a few runs at once give the root mean square
change of every output element, its *noise unit*. Stochastic arithmetic (La Porte and Vignes 1974; Parker 1997; Denis,
de Oliveira Castro and Petit 2016), used here as the acceptance limit of a conformance suite.

Runs lead all other axes. A rounding to nearest with unit roundoff `u` has relative error uniform in `[-u, u] / m`
for a significand `m` in [1, 2), log-uniform: its root mean square is `RMS * u`.
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
COARSEST_INJECTED = 2.0**-10  # coarser noise than declared would leave the linear regime


def injection_scale(recipe: Recipe) -> float:
    """Factor by which noise is enlarged before it is injected, and its effect divided afterwards: it is linear."""
    units = [form.unit for form in recipe.used]
    return max(1.0, min(FINEST_INJECTED / min(units), COARSEST_INJECTED / max(units)))


@dataclass
class Noise:
    """One set of runs: the recipe, the generator, and how much the noise is enlarged."""

    recipe: Recipe
    generator: np.random.Generator
    runs: int = RUNS
    scale: float = 1.0
    control: bool = False  # whether the first run is left without noise, so that equal rows can be told by it
    row_errors: dict[int, Array] = field(default_factory=dict)  # see `mix_vjp`

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Independent standard errors for each run: `[runs, *shape]`."""
        draws = self.generator.standard_normal((self.runs, *shape))
        if self.control:
            draws[0] = 0.0
        return draws

    def spread(self, value: Array, deviation: Array, rank: int) -> Array:
        """`value` plus errors of the given standard deviation, one for each of its last `rank` axes' elements.

        Rows that are equal are rounded alike, and have one error between them.
        """
        size = np.broadcast_shapes(value.shape[-rank:] if rank else (), deviation.shape[-rank:] if rank else ())
        draws = self.draw(size)
        if rank > 2 and math.prod(size[:-1]) > 1 and value.shape[-1:] == size[-1:]:
            draws = draws.reshape(self.runs, -1, size[-1])[:, rows_alike(value, rank)].reshape(draws.shape)
        noisy: Array = value + draws * deviation
        return noisy

    def deviation(self, form: Format) -> float:
        """Root mean square relative error of one rounding to that format, enlarged."""
        return RMS * form.unit * self.scale

    def store(self, value: Array, form: Format, rank: int, extra: Any = 0.0, roundings: int = 1) -> Array:
        """A result with standard error `extra` inside and `roundings` roundings to its format; underflow is one."""
        relative = np.abs(value) * (self.deviation(form) * math.sqrt(roundings))
        return self.spread(value, np.hypot(np.hypot(relative, extra), form.tiny * self.scale), rank)

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
        da, db = (self.spread(each, np.abs(each), rank) - each for each, rank in zip((a, b), ranks, strict=True))
        if ranks[1] < ranks[0]:
            db = db.reshape(self.runs, *[1] * (ranks[0] - ranks[1]), *db.shape[1:])
        return self.deviation(form) * (da @ b + a @ db)


def rows_alike(value: Array, rank: int) -> Array:
    """For each row of the last `rank` axes, those of the first run, the first row that is equal to it."""
    rows = (value[0] if value.ndim > rank else value).reshape(-1, value.shape[-1])
    marks = rows @ np.exp(1j * np.arange(1.0, rows.shape[-1] + 1))  # two sums of each row, as one number
    largest = float(np.max(np.abs(marks)))
    if not 1e-300 < largest < math.inf:
        return np.zeros(len(rows), int) if largest <= 1e-300 else np.arange(len(rows))
    _, first, group = np.unique(np.round(marks / largest, 12), return_index=True, return_inverse=True)
    return np.asarray(first[group.ravel()])


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
