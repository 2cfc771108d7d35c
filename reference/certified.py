"""Truth with a stated error: every value with a radius, and digits doubled until the radii are small enough.

With python-flint the radius is proven (`ball`). Without it, it is agreement and no proof: the value at twice the
digits, with its distance from the value at the digits before. So for derivatives in either arithmetic, since no radius
covers what a difference truncates: two runs then differ in digits and step.

    >>> from decoderspec.reference import certified, oracle
    >>> found = certified.certify(lambda digits, arithmetic: {
    ...     "silu": oracle.silu([1.0, 30.0], digits=digits, arithmetic=arithmetic)})["silu"]
    >>> bool(found.radius.max() < 1e-28)
    True
    >>> certified.compare([0.7310585786300049, 30.0], found, allowed=1e-11).value
    'inside'
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from mpmath.libmp import from_float, mpf_abs, mpf_add, mpf_gt, mpf_le, mpf_sub

from decoderspec.reference import oracle, sampled
from decoderspec.reference.arithmetic import Exact, Floats, Precision, multiprecision, whole_digits
from decoderspec.reference.formulas import Parameters
from decoderspec.reference.slopes import Role
from decoderspec.spec.config import Config

Compute = Callable[[int, Precision], Mapping[str, Any]]  # digits and arithmetic -> exact arrays by name

RELATIVE = 1e-30  # float64 has 16 digits, and its noise is judged to a hundredth
SMALLEST = 5e-324  # the least number above zero that any of the formats holds
LIMIT = 1000  # digits: what will not settle by then is a zero that no digits can show, or no number
SPARE = 24  # digits more than the target at the first try, which for a few layers is then the last
DISTANCE_BITS = 128  # of a distance and its bounds, each rounded to its own side


class Outcome(Enum):
    """Whether a value lies within what is allowed of the truth."""

    INSIDE = "inside"  # wherever in the enclosure the truth is
    OUTSIDE = "outside"  # likewise
    UNDECIDED = "undecided"  # the enclosure reaches across the limit: more digits decide


class DigitsExhausted(ArithmeticError):
    """The stated limit of digits was reached before every radius was small enough."""


@dataclass(frozen=True)
class Enclosure:
    """True values, each within `radius` of `middle`: proven, or on the strength of two runs that agree."""

    values: Exact  # as they were computed: balls, or mpmath numbers
    radius: Floats  # rounded up
    proven: bool
    digits: int  # of the computation

    @cached_property
    def middle(self) -> Exact:
        """The values as mpmath numbers, not rounded again."""
        return multiprecision(self.digits).exact(self.values)

    def too_wide(self, relative: float, absolute: float) -> tuple[int, ...] | None:
        """Where a radius exceeds both `absolute` and `relative` times the largest of its row; None if nowhere."""
        size = np.abs(oracle.to_float(self.values))
        largest = size.max(axis=-1, keepdims=True, initial=0.0) if size.ndim else size
        narrow = np.isfinite(self.radius) & (self.radius <= np.maximum(absolute, relative * largest))
        return None if narrow.all() else tuple(np.argwhere(~narrow)[0].tolist())


def attempts(
    compute: Compute, digits: int, limit: int, arithmetic: Precision, agreement: bool = False
) -> Iterator[dict[str, Enclosure]]:
    """Enclosures by name at `digits`, twice that, and so on up to the limit; agreement takes two runs for its first."""
    before: dict[str, Exact] = {}
    while digits <= limit:
        radius = arithmetic(digits).radius
        values = {name: np.asarray(value, object) for name, value in compute(digits, arithmetic).items()}
        if radius and not agreement:
            yield {name: Enclosure(value, radius(value), True, digits) for name, value in values.items()}
        elif before:
            yield {name: _agreed(before[name], value, digits) for name, value in values.items()}
        before, digits = values, 2 * digits


def _agreed(coarse: Exact, fine: Exact, digits: int) -> Enclosure:
    exact = multiprecision(digits).exact
    distance = np.abs(oracle.to_float(exact(fine) - exact(coarse)))
    radius = np.where(fine == coarse, 0.0, np.nextafter(distance, np.inf))
    return Enclosure(fine, np.where(np.isfinite(oracle.to_float(fine)), radius, np.inf), False, digits)


def certify(
    compute: Compute,
    *,
    relative: float = RELATIVE,
    absolute: float = SMALLEST,
    limit: int = LIMIT,
    arithmetic: Precision | None = None,
    agreement: bool = False,
) -> dict[str, Enclosure]:
    """Every value with a radius of at most `absolute`, or `relative` times the largest of its row (the last axis).

    Digits are doubled until that holds; `DigitsExhausted` at the limit. A row that cancels to zero meets the absolute
    target alone. `arithmetic` is the fastest there is, unless said; `agreement` asks for two runs in any.
    """
    arithmetic, worst = arithmetic or oracle.fastest(), "no run was possible"
    target = relative or absolute
    start = SPARE + math.ceil(-math.log10(target)) if 0 < target < 1 else SPARE
    for found in attempts(compute, start, limit, arithmetic, agreement):
        wide = {name: at for name, e in found.items() if (at := e.too_wide(relative, absolute)) is not None}
        if not wide:
            return found
        name, at = next(iter(wide.items()))
        worst = f"{name}{list(at)} is {float(found[name].values[at]):.6g} with a radius of {found[name].radius[at]:.3g}"
    raise DigitsExhausted(f"{worst}; wanted {relative:g} relative or {absolute:g} absolute, up to {limit} digits")


def values(compute: Compute, *, digits: int = 36) -> dict[str, Exact]:
    """Values alone, as fast as there are: balls with radii of 12 digits less, or one run of mpmath at these digits.

    So too where balls say nothing at eight times the digits, as of infinite inputs: mpmath computes as IEEE does.
    """
    digits = whole_digits(digits)
    if oracle.fastest() is not multiprecision:
        with suppress(DigitsExhausted):
            found = certify(compute, relative=10.0 ** (12 - digits), limit=8 * digits)
            return {name: enclosure.values for name, enclosure in found.items()}
    return {name: np.asarray(value, object) for name, value in compute(digits, multiprecision).items()}


# --- Three outcomes ---


def compare(values: Any, truth: Enclosure, allowed: Any) -> Outcome:
    """Whether every element lies within `allowed` of the truth; one that surely does not is enough for outside."""
    got = multiprecision(truth.digits).exact(values)
    if got.shape != truth.middle.shape:
        raise ValueError(f"shapes differ: values {got.shape}, truth {truth.middle.shape}")
    limits = np.broadcast_to(np.asarray(allowed, np.float64), got.shape)
    elements = zip(got.flat, truth.middle.flat, truth.radius.flat, limits.flat, strict=True)
    outcomes = {_outcome(*element) for element in elements}
    worst_first = (Outcome.OUTSIDE, Outcome.UNDECIDED, Outcome.INSIDE)
    return next((outcome for outcome in worst_first if outcome in outcomes), Outcome.INSIDE)


def _outcome(value: Any, middle: Any, radius: float, allowed: float) -> Outcome:
    """The distance and both its bounds are rounded to their own sides, so the answer is as sure as the radius."""
    if not math.isfinite(radius):
        return Outcome.UNDECIDED
    if not math.isfinite(value):
        return Outcome.OUTSIDE
    bits, reach, limit = DISTANCE_BITS, from_float(float(radius)), from_float(float(allowed))
    far = mpf_abs(mpf_sub(value._mpf_, middle._mpf_, bits, "u"))
    near = mpf_abs(mpf_sub(value._mpf_, middle._mpf_, bits, "d"))
    if mpf_gt(mpf_sub(near, reach, bits, "d"), limit):
        return Outcome.OUTSIDE
    return Outcome.INSIDE if mpf_le(mpf_add(far, reach, bits, "u"), limit) else Outcome.UNDECIDED


def decide(
    values: Mapping[str, Any],
    compute: Compute,
    allowed: Mapping[str, Any],
    *,
    digits: int = 30,
    limit: int = LIMIT,
    arithmetic: Precision | None = None,
) -> dict[str, Outcome]:
    """`compare` by name, with the digits doubled while one is undecided; what still is at the limit stays so."""
    outcomes = dict.fromkeys(values, Outcome.UNDECIDED)
    for found in attempts(compute, digits, limit, arithmetic or oracle.fastest()):
        outcomes = {name: compare(value, found[name], allowed[name]) for name, value in values.items()}
        if Outcome.UNDECIDED not in outcomes.values():
            break
    return outcomes


# --- The oracle's values with their radii; options as `certify` has them ---


def forward(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    *,
    given: Parameters | None = None,
    head: Any = None,
    keep: Collection[str] | None = None,
    **options: Any,
) -> dict[str, Enclosure]:
    """The stages of `oracle.forward`, or those that `keep` names."""
    _refuse_infinite(parameters, given or {}, {} if head is None else {"head": head})

    def compute(digits: int, arithmetic: Precision) -> dict[str, Exact]:
        how: Any = {"given": given, "head": head, "keep": keep}
        return oracle.forward(config, parameters, tokens, digits=digits, arithmetic=arithmetic, **how)

    return certify(compute, **options)


def loss(
    config: Config, parameters: Parameters, tokens: Any, targets: Any, *, head: Any = None, **options: Any
) -> Enclosure:
    """The mean negative log likelihood of the targets, in nats."""
    _refuse_infinite(parameters, {} if head is None else {"head": head})

    def compute(digits: int, arithmetic: Precision) -> dict[str, Any]:
        at = config, parameters, tokens, targets
        return {"loss": oracle.loss(*at, head=head, digits=digits, arithmetic=arithmetic)}

    return certify(compute, **options)["loss"]


def derivatives(
    config: Config,
    parameters: Parameters,
    tokens: Any,
    targets: Any,
    directions: Iterable[Parameters],
    *,
    role: Role = "both",
    agreement: bool = True,
    **options: Any,
) -> list[Enclosure]:
    """Directional derivatives of the loss, never proven: a difference truncates what no radius covers (see `slopes`).

    By agreement of two steps; without it the radius is that of the rounding alone, and the truncation is left to the
    argument that it is 40 decades smaller. Each is a row of its own.
    """
    _refuse_infinite(parameters)
    at = config, parameters, tokens, targets, list(directions)

    def compute(digits: int, arithmetic: Precision) -> dict[str, Any]:
        slopes = oracle.derivatives(*at, role=role, digits=digits, arithmetic=arithmetic)
        return {f"direction {index}": slope for index, slope in enumerate(slopes)}

    found = certify(compute, agreement=agreement, **options)
    return [replace(enclosure, proven=False) for enclosure in found.values()]


def stage(
    config: Config,
    parameters: Parameters,
    name: str,
    inputs: Mapping[str, Any],
    rows: Sequence[tuple[int, ...]],
    columns: Any = None,
    *,
    offset: int = 0,
    **options: Any,
) -> Enclosure:
    """The sample of `sampled.stage`."""

    def compute(digits: int, arithmetic: Precision) -> dict[str, Exact]:
        how: Any = {"offset": offset, "digits": digits, "arithmetic": arithmetic}
        return {name: sampled.stage(config, parameters, name, inputs, rows, columns, **how)}

    return certify(compute, **options)[name]


def _refuse_infinite(*arrays: Mapping[str, Any]) -> None:
    """No number of digits makes something of infinities; the check is for arrays of floats."""
    for name, array in (item for mapping in arrays for item in mapping.items()):
        if np.asarray(array).dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite")
