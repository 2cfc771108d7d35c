"""The case that a diagnosis is about, and what is computed of it once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from decoderspec.faults.fault import Weights
from decoderspec.reference import units
from decoderspec.reference.operations import OPERATIONS, Array
from decoderspec.spec.config import Config
from decoderspec.spec.precision import Recipe


@dataclass
class Case:
    """Configuration, parameters, token and target ids, and the declared precision."""

    config: Config
    parameters: Weights
    tokens: Array
    targets: Array | None
    recipe: Recipe
    seed: int = 0
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

    def _compute(self) -> units.Any:
        if self.targets is None:
            raise ValueError("without targets there is neither loss nor gradient")
        return units.training_values(self.config, self.parameters, self.tokens, self.targets)
