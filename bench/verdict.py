"""Faster, same, slower, or too noisy to tell: what two runs say about each other.

A run measures in several processes, and what it knows of a figure is one log ratio (call over yardstick) for each of
them. Processes of one run differ as runs do: by where the memory happens to lie and by what the hour brings. Visits
within a process do not show that: in a trial, intervals from their ranks called identical code slower in 1 of 7
comparisons. So the process is the unit, and the intervals are Student's over process values (Kalibera and Jones,
Rigorous benchmarking in reasonable time, 2013, section 9), with one variance for both runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log, sqrt
from statistics import fmean, median

from decoderspec.reference.limits import student_tail

SAME = 0.03  # a change within 3 percent is none
RISK = 0.05  # that a comparison has any interval beside the truth, over all its figures
SPREAD = 0.95  # of the interval that is shown for one run


@dataclass(frozen=True)
class Interval:
    """A ratio with its ends."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Change:
    """How the time changed, as a ratio; `seen` is the smallest slowdown that would have been called one."""

    interval: Interval
    seen: float

    @property
    def verdict(self) -> str:
        """In words: certain only where the whole interval is."""
        if self.interval.low > 1 + SAME:
            return "slower"
        if self.interval.high < 1 - SAME:
            return "faster"
        if self.interval.low >= 1 - SAME and self.interval.high <= 1 + SAME:
            return "same"
        return "too noisy to tell"

    def exceeds(self, percent: float) -> bool:
        """Whether it is certainly slower by more than so many percent."""
        return self.interval.low > 1 + percent / 100


def of_run(values: Sequence[float], level: float = SPREAD) -> Interval:
    """The mean of process values with its interval, as a ratio; unbounded where there is one process."""
    reach = quantile(1 - level, len(values) - 1) * _deviation(values) / sqrt(len(values))
    return _interval(fmean(values), reach)


def change(before: Sequence[float], now: Sequence[float], figures: int = 1) -> Change:
    """The change from process values before to those of now, with the risk shared among so many figures."""
    freedom = len(before) + len(now) - 2
    squares = sum((len(values) - 1) * _deviation(values) ** 2 for values in (before, now))
    error = sqrt(squares / max(1, freedom) * (1 / len(before) + 1 / len(now)))
    reach = quantile(RISK / figures, freedom) * error if freedom else inf
    seen = exp(reach + log(1 + SAME)) - 1 if reach < log(1e6) else inf
    return Change(_interval(fmean(now) - fmean(before), reach), seen)


def _interval(middle: float, reach: float) -> Interval:
    high = exp(middle + reach) if middle + reach < log(1e300) else inf
    return Interval(exp(middle - reach), exp(middle), high)


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of single values; that of one value is not known, and counts as infinite."""
    if len(values) < 2:
        return inf
    middle = fmean(values)
    return sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


@lru_cache
def quantile(risk: float, freedom: int) -> float:
    """What Student's t exceeds in size with that chance; odd degrees of freedom count as one fewer."""
    even = freedom - freedom % 2
    if not even:
        return inf
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, even) > risk else (low, middle)
    return high


@dataclass(frozen=True)
class Slope:
    """An exponent with its ends."""

    low: float
    middle: float
    high: float


def slope(sizes: Sequence[float], sweeps: Sequence[Sequence[float]]) -> Slope:
    """The exponent of growth: the median over sweeps of each sweep's least-squares slope in log-log, and its range.

    `sweeps` holds one row of positive values per sweep, one value per size.
    """
    x = [log(size) for size in sizes]
    centre = sum(x) / len(x)
    weights = [(each - centre) / sum((other - centre) ** 2 for other in x) for each in x]
    found = sorted(sum(w * log(value) for w, value in zip(weights, row, strict=True)) for row in sweeps)
    return Slope(found[0], median(found), found[-1])
