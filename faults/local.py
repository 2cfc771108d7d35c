"""Each stage judged on its own inputs: the oracle's operation on what was given before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from decoderspec.faults.case import Case
from decoderspec.reference.limits import Comparison, compare
from decoderspec.reference.operations import Array
from decoderspec.spec.precision import recipe
from decoderspec.spec.stages import stage_names

FINEST = recipe("float64")


@dataclass(frozen=True)
class StageReport:
    """One stage: its local error and limit in noise units, and how many bits of it are right.

    The worst element has its limit, and so has the root mean square over all of them: see `comparison`.
    """

    name: str
    noise: float
    allowed: float
    bits: float
    conforms: bool
    comparison: Comparison

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "name": self.name, "noise": self.noise, "allowed": self.allowed, "mean_noise": self.comparison.spread,
            "mean_allowed": self.comparison.spread_allowed, "bits": self.bits, "conforms": self.conforms,
            "index": list(self.comparison.index), "got": self.comparison.got,
            "expected": self.comparison.got - self.comparison.error,
        }  # fmt: skip


def local_reports(
    case: Case, given: Mapping[str, Array], judged: Collection[str] | None = None
) -> tuple[StageReport, ...]:
    """Every given stage, or those to be judged, in forward order.

    What is not finite is wrong, and nothing after it is judged by it.
    """
    before = {name: value for name, value in given.items() if name != "logits" and np.isfinite(value).all()}
    truth = case.truth_given(before) if before else case.truth
    noise, finest = case.stage_noise(before, case.recipe), case.stage_units(before, FINEST)
    names = [name for name in stage_names(case.config.layers) if name in (given if judged is None else judged)]
    return tuple(_report(name, given[name], truth[name], noise[name], finest[name]) for name in names)


def _report(name: str, got: Array, truth: Array, noise_of: tuple[Array, float], finest: Array) -> StageReport:
    with np.errstate(invalid="ignore", over="ignore"):
        error = difference(got, truth)
    comparison = compare(got, error, *noise_of)
    worst = np.isfinite(got).all()
    noise = comparison.worst if worst else np.inf
    return StageReport(
        name, float(noise), comparison.allowed, right_bits(error, finest), comparison.conforms, comparison
    )


def difference(got: Array, truth: Array) -> Array:
    """`got - truth` with the truth as a sum of two float64: right where both agree in all but their last bits."""
    high = np.asarray(truth, object).astype(np.float64)
    low = np.asarray(truth - high, object).astype(np.float64)
    return np.asarray((got - high) - low)


def right_bits(error: Array, unit: Array) -> float:
    """Effective bits of a result: 53 less the logarithm of how much larger its error is than float64's noise.

    The root mean square over all elements, so that it says what the result is worth and not what its worst element
    is; float32 gives about 24, bfloat16 about 8, and a wrong result about as many as it shares with the right one.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(error == 0, 0.0, np.abs(error) / unit)
    if not np.isfinite(ratio).all():
        return 0.0
    largest = max(1.0, float(np.max(ratio, initial=0.0)))
    spread = largest * float(np.sqrt(np.mean(np.square(ratio / largest)))) if ratio.size else 0.0
    return float(np.clip(53 - np.log2(max(spread, 1.0)), 0.0, 53.0))
