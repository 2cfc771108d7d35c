"""What the test vectors keep of a true result: thirty digits, what a float64 leaves over, noise units and limits.

Truth comes from the oracle, with radii for forward values and by differences for slopes; noise from the runs of
`reference.units`. Here both become text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import numpy as np

from decoderspec.reference import certified, units
from decoderspec.reference.arithmetic import Exact, multiprecision
from decoderspec.reference.certified import Compute
from decoderspec.reference.limits import FALSE_ALARMS, GRADIENT_FALSE_ALARMS, independent, spread_allowed, worst_allowed
from decoderspec.reference.operations import Array, Operations
from decoderspec.spec.precision import FORMATS, recipe

PRECISIONS = ("float64", "float32", "bfloat16", "float16")
DIGITS = 30
ROW_RADIUS = 1e-50  # of forward values, relative to the largest of their row
SLOPE_DIGITS = 70
SLOPE_RADIUS = 1e-60  # `slopes` promises 10^-(digits + 10) of the larger of value and slope, which are of order 1
NARROW = 1e-31  # a radius that leaves the digits that are written
ROUNDINGS = 4  # unit roundoffs within which an initial value must lie (INI-1)

Json = dict[str, Any]
Moved = Mapping[str, Array]  # precision -> deviations [runs, *shape]


# --- Truth ---


def forward(compute: Compute) -> dict[str, Array]:
    """Forward values by name as text, `0` where the true value is zero. Raises where digits are missing."""
    found = certified.certify(compute, relative=ROW_RADIUS)
    return {name: texts(each.middle, each.radius) for name, each in found.items()}


def forward_exactly(compute: Callable[[int], Mapping[str, Any]]) -> dict[str, Array]:
    """The same of what computes in mpmath alone."""
    found = certified.certify(lambda digits, _: compute(digits), relative=ROW_RADIUS, arithmetic=multiprecision)
    return {name: texts(each.middle, each.radius) for name, each in found.items()}


def slopes(values: Any) -> Array:
    """Derivatives that were computed with `SLOPE_DIGITS`, as text."""
    values = np.asarray(values, object)
    exact = multiprecision(SLOPE_DIGITS).exact(values)
    return texts(exact, np.full(values.shape, SLOPE_RADIUS))


def texts(values: Exact, radius: Array) -> Array:
    """Each value with `DIGITS` digits. Raises `ArithmeticError` where the radius reaches into them."""
    pairs = zip(values.flat, radius.flat, strict=True)
    return np.array([_text(value, float(width)) for value, width in pairs], object).reshape(values.shape)


def _text(value: Any, radius: float) -> str:
    if abs(value) <= radius:
        return "0"
    if radius > abs(value) * NARROW:
        raise ArithmeticError(f"{float(value):.6g} is known to {radius:.3g} alone, which is not {DIGITS} digits")
    return str(mpmath.nstr(value, DIGITS, strip_zeros=False))


def sign_pattern(shape: tuple[int, ...]) -> Array:
    """1, -1, 1, -1, .. in row-major order: the direction along which slopes are given."""
    signs: Array = np.where(np.arange(int(np.prod(shape, dtype=int))) % 2, -1.0, 1.0)
    return signs.reshape(shape)


# --- Noise ---


def deviations(compute: Callable[[Operations], dict[str, Array]], precisions: tuple[str, ...], seed: int) -> Any:
    """What the noise of each precision does to each named value: `{name: {precision: [runs, *shape]}}`."""
    found = {precision: units.deviations(compute, recipe(precision), seed) for precision in precisions}
    return {name: {precision: found[precision][name] for precision in precisions} for name in found[precisions[0]]}


def along(moved: Moved, signs: Array) -> dict[str, Array]:
    """What the noise does to a sum of elements with these signs."""
    return {name: np.sum((each * signs).reshape(len(each), -1), axis=1) for name, each in moved.items()}


# --- The whole ---


def gradient(exact: Exact, moved: Moved, exact_zeros: bool = False) -> Json:
    """The elements of one gradient, which count as one and have limits of their own (`limits.compare_gradient`)."""
    return result(slopes(exact), moved, 1.0, GRADIENT_FALSE_ALARMS, exact_zeros=exact_zeros)


def result(
    truth: Array,
    moved: Moved,
    freedom: float | None = None,
    chance: float = FALSE_ALARMS,
    *,
    exact_zeros: bool = False,
) -> Json:
    """A true result with its limits; `freedom` is how many elements err independently, where that is known before.

    With `exact_zeros` a true value of zero has no noise: it must be met exactly.
    """
    values = truth.astype(np.float64)
    noise, mean = {}, {}
    for precision, deviation in moved.items():
        unit, own = units.noise(deviation)
        unit = np.where(truth == "0", 0.0, unit) if exact_zeros else unit
        noise[precision] = numbers(unit)
        mean[precision] = short(spread_allowed(independent(values, unit, freedom or own), chance))
    return _entry(truth, short(worst_allowed(truth.size, chance)), mean, noise)


def within_roundings(truth: Array) -> Json:
    """A true result that may be off by some unit roundoffs, each element by itself."""
    size = np.abs(truth.astype(np.float64))
    noise = {name: numbers(size * FORMATS[name].unit) for name in PRECISIONS}
    return _entry(truth, ROUNDINGS, dict.fromkeys(PRECISIONS, ROUNDINGS), noise)


def _entry(truth: Array, worst: float, mean: Mapping[str, float], noise: Mapping[str, list[float]]) -> Json:
    written = [str(text) for text in truth.flat]
    return {
        "shape": list(truth.shape),
        "values": written,
        "rest": [rest(text) for text in written],
        "worst": worst,
        "mean": dict(mean),
        "noise": dict(noise),
    }


def rest(text: str) -> float:
    """What the nearest float64 leaves over of a number in decimal."""
    with mpmath.workdps(2 * DIGITS):
        return short(float(mpmath.mpf(text) - mpmath.mpf(float(text))))


def numbers(values: Array) -> list[float]:
    """Three digits of each."""
    return [short(float(value)) for value in np.ravel(values)]


def short(value: float) -> float:
    """A number to three digits; an integer where it is one, which is shorter."""
    return plain(float(f"{value:.3g}"))


def plain(value: float) -> float:
    """The same number, as an integer where it is a small one."""
    return int(value) if value == int(value) and abs(value) < 2**53 else value
