"""Acceptance limits in noise units, derived from the number of elements compared (section 8 of the text).

The noise unit of an element is estimated from a few runs, so that error over unit follows Student's t at worst
(an element that dominates its row) and is nearly normal at best (pooled). The limit is the t quantile at which a
correct implementation fails one comparison in a hundred million.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from decoderspec.reference.noise import RUNS
from decoderspec.reference.operations import Array

FALSE_ALARMS = 1e-8  # per comparison: a run makes some thousand, and is to be wrong once in ten thousand runs
GRADIENT_FALSE_ALARMS = 1e-12  # of a gradient by element, whose tail is longer than theory's: docs/calibration.md


@dataclass(frozen=True)
class Comparison:
    """How far some values are from the truth, in noise units: the worst element, and the root mean square over all."""

    worst: float
    allowed: float
    spread: float
    spread_allowed: float
    index: tuple[int, ...]  # of the worst element
    got: float
    error: float  # got minus truth
    unit: float
    count: int

    @property
    def conforms(self) -> bool:
        """Both statistics are within their limits."""
        return self.worst <= self.allowed and self.spread <= self.spread_allowed

    @property
    def excess(self) -> float:
        """The larger of the two statistics, each over its limit: above 1 is wrong."""
        return max(self.worst / self.allowed, self.spread / self.spread_allowed)

    def __str__(self) -> str:
        text = f"{self.worst:.3g} x noise ({self.allowed:.1f} allowed)"
        if self.worst <= self.allowed < math.inf and self.spread > self.spread_allowed:
            text = f"{self.spread:.3g} x noise in the mean ({self.spread_allowed:.2f} allowed)"
        return text


def compare(
    got: Array, error: Array, unit: Array, freedom: float | None = None, chance: float = FALSE_ALARMS
) -> Comparison:
    """Judge `error = got - truth` by the noise units, all of one shape; what is not finite is infinitely wrong.

    `freedom` is how many of the elements err independently (`units.freedom`), equal rows apart: they err alike and
    count once. Unsaid, it is one for each distinct row. `chance` is that of a right value beyond a limit, in theory.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(error == 0, 0.0, np.abs(error) / unit)
        ratio = np.where(np.isnan(ratio) | ~np.isfinite(got), np.inf, ratio)
        spread = float(np.sqrt(np.mean(np.square(ratio)))) if ratio.size else 0.0
        freedom = independent(got - error, unit, freedom)
    if not ratio.size:
        return Comparison(0.0, worst_allowed(1, chance), 0.0, spread_allowed(1, chance), (), 0.0, 0.0, 0.0, 0)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape))
    return Comparison(
        worst=float(ratio[index]),
        allowed=worst_allowed(ratio.size, chance),
        spread=spread,
        spread_allowed=spread_allowed(freedom, chance),
        index=index,
        got=float(got[index]),
        error=float(error[index]),
        unit=float(np.broadcast_to(unit, ratio.shape)[index]),
        count=ratio.size,
    )


def compare_gradient(got: Array, error: Array, unit: Array) -> Comparison:
    """Of the elements of one gradient: all can hang on one rounding, say of a probability near 1, and count as one."""
    return compare(got, error, unit, 1.0, GRADIENT_FALSE_ALARMS)


def independent(truth: Array, unit: Array, freedom: float | None = None) -> float:
    """How many elements err independently once rows that are alike count once; unsaid, one for each that is not."""
    distinct, rows = distinct_rows(truth, unit), math.prod(truth.shape[:-1])
    return max(1.0, float(distinct if freedom is None else freedom * distinct / max(1, rows)))


def distinct_rows(truth: Array, unit: Array) -> int:
    """Rows of the last axis that differ by more than noise from the others: what is alike is rounded alike."""
    if truth.ndim == 0:
        return 1
    if not truth.size:
        return 0
    rows = truth.reshape(-1, truth.shape[-1])
    step = max(1e-9 * np.max(np.abs(rows)), 2 * float(np.max(unit)))
    if not 0 < step < np.inf:
        return 1
    return len({row.tobytes() for row in np.round(rows / step) + 0.0})  # a zero has one sign


@lru_cache(maxsize=4096)
def worst_allowed(count: int, chance: float = FALSE_ALARMS, runs: int = RUNS) -> float:
    """The t quantile with `runs` degrees of freedom for that chance in `count` elements."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if count * student_tail(middle, runs) > chance else (low, middle)
    return high


def student_tail(t: float, freedom: int) -> float:
    """`P(|T| > t)`: `T^2` is distributed as F with one degree of freedom over as many."""
    return f_tail(t * t, 1, freedom)


@lru_cache(maxsize=4096)
def spread_allowed(freedom: float, chance: float = FALSE_ALARMS, runs: int = RUNS) -> float:
    """Limit of the root mean square of so many independent elements: that of Snedecor's F.

    Their mean square is that of a normal error over one estimated from `runs` times as many others. One element is
    held to what the worst of one is, `F(1, n) = t(n)^2`; very many to little more than 1.
    """
    low, high = 0.0, 32.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if f_tail(middle * middle, freedom, runs * freedom) > chance else (low, middle)
    return high


def f_tail(f: float, over: float, under: float) -> float:
    """`P(F > f)` with `over` and `under` degrees of freedom (Abramowitz and Stegun 1964, 26.6.2)."""
    if f <= 0:
        return 1.0
    a, b, x = under / 2, over / 2, under / (under + over * f)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):  # the body, where the other tail is the smaller one
        return 1.0 - front * _beta_fraction(1 - x, b, a) / b
    return front * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function (26.5.8), evaluated forward (Lentz 1976)."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 500):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1.0 / (1.0 + step * d), 1.0 + step / c
            value *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return value
