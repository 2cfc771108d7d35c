"""The case that a diagnosis is about, and what is computed of it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from decoderspec.faults.fault import Weights
from decoderspec.reference import certified, oracle, units
from decoderspec.reference.operations import OPERATIONS, Array, Operations
from decoderspec.spec.config import Config
from decoderspec.spec.precision import Recipe

DIGITS = 36  # float64 has 16, and its noise is judged to a hundredth


@dataclass
class Case:
    """Configuration, parameters, token and target ids, and the declared precision."""

    config: Config
    parameters: Weights
    tokens: Array
    targets: Array | None
    recipe: Recipe
    seed: int = 0
    units: dict[str, dict[str, Array]] = field(default_factory=dict)  # of all stages, by precision
    spoiled: dict[Any, set[str]] = field(default_factory=dict)  # see `derivatives.suspects`
    predicted: dict[tuple[str, str], dict[str, Array]] = field(default_factory=dict)  # by hypothesis and place

    @cached_property
    def training(self) -> dict[str, Array]:
        """The reference's own loss and gradients, by the names of `units.training_values`."""
        return dict(self._compute()(OPERATIONS))

    @cached_property
    def training_units(self) -> dict[str, Array]:
        """Noise units of the loss and the gradients."""
        moved = units.deviations(self._compute(), self.recipe, self.seed)
        return {name: units.unit(deviation) for name, deviation in moved.items()}

    @cached_property
    def truth(self) -> dict[str, Any]:
        """Every stage by the oracle, from the tokens on."""
        return self.truth_given({})

    def truth_given(self, given: Mapping[str, Array]) -> dict[str, Any]:
        """Every stage by the oracle in the fastest arithmetic that is installed, each from the given values before."""
        at = self.config, self.parameters, self.tokens
        return certified.values(
            lambda digits, arithmetic: oracle.forward(*at, digits=digits, arithmetic=arithmetic, given=given),
            digits=DIGITS,
        )

    def stage_units(self, given: Mapping[str, Array], rule: Recipe) -> dict[str, Array]:
        """Noise units of every stage, each from the given values before it."""
        key = str(rule.declared)
        if not given and key in self.units:
            return self.units[key]
        found = {name: unit for name, (unit, _) in self.stage_noise(given, rule).items()}
        if not given:
            self.units[key] = found
        return found

    def stage_noise(self, given: Mapping[str, Array], rule: Recipe) -> dict[str, tuple[Array, float]]:
        """Of every stage the noise units, and how many elements err independently."""
        return units.stage_noise(self.config, self.parameters, self.tokens, given, rule, self.seed)

    def _compute(self) -> Callable[[Operations], dict[str, Array]]:
        if self.targets is None:
            raise ValueError("without targets there is neither loss nor gradient")
        batch = self.tokens, self.targets
        compute: Callable[[Operations], dict[str, Array]] = units.training_values(self.config, self.parameters, *batch)
        return compute
