"""The truth and the noise units of a case, computed once and shared by every property that asks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case, arrays
from decoderspec.properties.findings import Absent
from decoderspec.reference import certified, oracle, units
from decoderspec.reference.arithmetic import Precision
from decoderspec.reference.limits import Comparison, compare, compare_gradient
from decoderspec.reference.noise import RUNS
from decoderspec.spec.parameters import TABLE
from decoderspec.spec.precision import Recipe

DIGITS = 36  # float64 has 16, and its noise is judged to a hundredth


def projected(values: Mapping[str, Array], directions: Mapping[str, Array]) -> Array:
    """The sum of all values times those of their directions, which are powers of two: nothing is rounded on the way."""
    terms = np.concatenate([(values[name] * direction).ravel() for name, direction in directions.items()])
    return np.asarray(math.fsum(terms) if np.isfinite(terms).all() else np.nan)


@dataclass(frozen=True)
class Exact:
    """True values as an unevaluated sum of two float64: 32 digits, and differences cost two subtractions."""

    high: Array
    low: Array

    @classmethod
    def of(cls, values: Any) -> Exact:
        """From the oracle's numbers."""
        values = np.asarray(values, object)
        high = values.astype(np.float64)
        with np.errstate(invalid="ignore"):
            low = np.asarray(values - high, object).astype(np.float64)
        return cls(high, low)

    def error(self, got: Array) -> Array:
        """`got - truth`."""
        with np.errstate(invalid="ignore", over="ignore"):
            difference: Array = (got - self.high) - self.low
        return difference

    def judge(self, got: Array, unit: Array, freedom: float | None = None) -> Comparison:
        """The error in noise units, against its limits."""
        return compare(got, self.error(got), unit, freedom)

    def judge_gradient(self, got: Array, unit: Array) -> Comparison:
        """The same of the elements of one gradient."""
        return compare_gradient(got, self.error(got), unit)


@dataclass(repr=False)
class Truth:
    """What is true of one case, for parameters exactly as the implementation got them."""

    case: Case
    parameters: Mapping[str, Array]
    recipe: Recipe
    slopes: dict[tuple[str, ...], Exact] = field(default_factory=dict)  # that were asked for
    beyond: str = ""  # why the whole of it costs too much; empty where it does not

    @cached_property
    def size(self) -> int:
        """Bytes that it may come to, about: most is what each run of the noise does to each gradient."""
        return RUNS * sum(value.nbytes for value in self.parameters.values())

    @cached_property
    def batch(self) -> tuple[Array, Array]:
        """Token and target ids."""
        return arrays(self.case)

    @cached_property
    def _exact(self) -> dict[str, Any]:
        return self._forward(keep=("logits",))

    def require_whole(self) -> None:
        """Raise `Absent` where the whole truth is not computed."""
        if self.beyond:
            raise Absent(self.beyond)

    def _forward(self, **options: Any) -> dict[str, Any]:
        """The oracle's stages, in the fastest arithmetic that is installed."""
        self.require_whole()
        given = self.case.config, self.parameters, self.batch[0]
        return certified.values(
            lambda digits, arithmetic: oracle.forward(*given, digits=digits, arithmetic=arithmetic, **options),
            digits=DIGITS,
        )

    @cached_property
    def logits(self) -> Exact:
        """Of every position."""
        return Exact.of(self._exact["logits"])

    @cached_property
    def loss(self) -> Exact:
        """Of the targets."""
        given = self._exact["logits"], self.batch[1]
        found = certified.values(
            lambda digits, arithmetic: {
                "loss": oracle.loss_of_logits(*given, digits=digits, arithmetic=arithmetic),
            },
            digits=DIGITS,
        )
        return Exact.of(found["loss"])

    def stages(self, given: Mapping[str, Array]) -> dict[str, Exact]:
        """Every stage, each computed from the given values before it."""
        return {name: Exact.of(value) for name, value in self._forward(given=given).items()}

    def stage_units(self, given: Mapping[str, Array], recipe: Recipe | None = None) -> dict[str, Array]:
        """Noise units of every stage, each from the given values before it."""
        return {name: unit for name, (unit, _) in self._stage_noise(given, recipe).items()}

    def _stage_noise(self, given: Mapping[str, Array], recipe: Recipe | None = None) -> dict[str, tuple[Array, float]]:
        """Of every stage the noise units, and how many elements err independently."""
        self.require_whole()
        at = self.case.config, self.parameters, self.batch[0]
        return units.stage_noise(*at, given, recipe or self.recipe, self.case.seed)

    @cached_property
    def _noise(self) -> dict[str, tuple[Array, float]]:
        return self._stage_noise({})

    @cached_property
    def units(self) -> dict[str, Array]:
        """Noise units of every stage, from the tokens on."""
        return {name: unit for name, (unit, _) in self._noise.items()}

    def judge_logits(self, got: Array) -> Comparison:
        """The logits, from the tokens on."""
        return self.logits.judge(got, *self._noise["logits"])

    def judge_stages(self, given: Mapping[str, Array], recipe: Recipe | None = None) -> dict[str, Comparison]:
        """Every given stage, each on the given values before it."""
        expected, noise = self.stages(given), self._stage_noise(given, recipe)
        return {name: expected[name].judge(value, *noise[name]) for name, value in given.items()}

    @cached_property
    def deviations(self) -> dict[str, Array]:
        """What the noise does to the loss and to each gradient, run by run."""
        self.require_whole()
        compute = units.training_values(self.case.config, self.parameters, *self.batch)
        return units.deviations(compute, self.recipe, self.case.seed)

    def loss_unit(self) -> Array:
        """Noise unit of the loss."""
        return units.unit(self.deviations["loss"])

    def direction(self, name: str) -> Array:
        """A direction in which one gradient (`NAME`, or a role of the table) is probed, of representable entries.

        Every element is weighed by its noise unit, so that small gradients count as much as large ones.
        """
        unit = units.unit(self.deviations[f"gradient.{name}"])
        return units.direction(unit, np.random.default_rng((self.case.seed, len(name))))

    def slope(self, names: tuple[str, ...]) -> Exact:
        """The true derivative of the loss along the directions of several gradients together."""
        if names not in self.slopes:
            self.know_slopes([names])
        return self.slopes[names]

    def know_slopes(self, wanted: Sequence[tuple[str, ...]]) -> None:
        """Compute several slopes at once, which share what no direction moves; all are of one role."""
        roles: dict[str, Any] = {"lookup": "lookup", "head": "head"}
        role = roles.get(wanted[0][0], "both")
        directions = [{TABLE if name in roles else name: self.direction(name) for name in names} for names in wanted]
        at = self.case.config, self.parameters, *self.batch, directions

        def compute(digits: int, arithmetic: Precision) -> dict[str, Any]:
            slopes = oracle.derivatives(*at, digits=digits, role=role, arithmetic=arithmetic)
            return dict(zip(map(str, wanted), slopes, strict=True))

        found = certified.values(compute, digits=DIGITS)
        self.slopes |= {names: Exact.of(found[str(names)]) for names in wanted}

    def judge_slope(self, names: tuple[str, ...], gradients: Mapping[str, Array]) -> Comparison:
        """The gradients, projected on their directions, against the true slope."""
        directions = {name: self.direction(name) for name in names}
        unit = units.along({name: self.deviations[f"gradient.{name}"] for name in names}, directions)
        return self.slope(names).judge(projected(gradients, directions), unit)

    def judge_elements(self, gradients: Mapping[str, Array]) -> dict[str, Comparison]:
        """Every element of every gradient: one forward difference each, so for the smallest cases only."""
        at = self.case.config, self.parameters, *self.batch
        true = certified.values(
            lambda digits, arithmetic: oracle.gradients(*at, digits=digits, arithmetic=arithmetic), digits=DIGITS
        )
        return {
            name: Exact.of(value).judge_gradient(gradients[name], units.unit(self.deviations[f"gradient.{name}"]))
            for name, value in true.items()
        }
