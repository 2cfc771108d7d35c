"""Right decoders by name, one for each formulation and precision of the calibration: what a soak runs over.

    decoderspec check decoderspec.bench.right:blocked_bfloat16

`python -m decoderspec.bench.right` prints every name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoderspec.bench.calibration import PRECISIONS
from decoderspec.bench.formulations import FORMULATIONS, Formulation, Kernels, number_type
from decoderspec.reference import units
from decoderspec.reference.operations import Array, Operations
from decoderspec.spec.config import Config
from decoderspec.spec.precision import Recipe, recipe
from decoderspec.spec.stages import suffix


@dataclass(frozen=True)
class Right:
    """One formulation at one precision. It validates nothing and keeps no parameters, so it claims two contracts."""

    how: Formulation
    precision: str
    claims: tuple[str, ...] = ("forward", "training")

    @property
    def name(self) -> str:
        """Of the formulation alone."""
        return self.how.name

    def build(self, config: Config, parameters: Mapping[str, Array]) -> RightModel:
        """Parameters in the number type that the formulation computes in."""
        declared = recipe(self.precision)
        weights = {name: value.astype(number_type(declared)) for name, value in parameters.items()}
        return RightModel(self.how, declared, config, weights)


@dataclass(frozen=True)
class RightModel:
    """A decoder whose operations are those of the formulation."""

    how: Formulation
    declared: Recipe
    config: Config
    weights: Mapping[str, Array]

    def logits(self, tokens: Array) -> Array:
        """`[B, T]` to `[B, T, V]`."""
        return self.stages(tokens)["logits"]

    def stages(self, tokens: Array) -> dict[str, Array]:
        """All but the attention weights of a kernel that never stores them."""
        found: dict[str, Array] = units.stage_values(self.config, self.weights, tokens, {})(self._operations())
        return {name: x for name, x in found.items() if not (self.how.blocked and suffix(name) == "attention.weights")}

    def loss(self, tokens: Array, targets: Array) -> float:
        """Mean over all positions."""
        return float(self._training(tokens, targets)["loss"])

    def gradients(self, tokens: Array, targets: Array) -> dict[str, Array]:
        """Of every parameter."""
        found = self._training(tokens, targets)
        return {name: found[f"gradient.{name}"] for name in self.weights}

    def role_gradients(self, tokens: Array, targets: Array) -> tuple[Array, Array]:
        """Of the table as lookup and as head."""
        found = self._training(tokens, targets)
        return found[units.LOOKUP], found[units.HEAD]

    def _training(self, tokens: Array, targets: Array) -> dict[str, Any]:
        found: dict[str, Any] = units.training_values(self.config, self.weights, tokens, targets)(self._operations())
        return found

    def _operations(self) -> Operations:
        return Kernels(self.how, self.declared, number_type(self.declared), self.weights).operations()


def _named(how: Formulation, precision: str) -> str:
    return f"{how.name.partition(',')[0]}_{precision}".replace("-", "_")


RIGHT = {_named(how, precision): Right(how, precision) for precision in PRECISIONS for how in FORMULATIONS}


def __getattr__(name: str) -> Right:
    if name not in RIGHT:
        raise AttributeError(f"no formulation {name!r}; there are {', '.join(RIGHT)}")
    return RIGHT[name]


if __name__ == "__main__":
    print("\n".join(f"decoderspec.bench.right:{name}" for name in RIGHT))
