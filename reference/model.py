"""The validated decoder: parameters, logits, loss, gradients and stages behind one public boundary.

Everything that can be wrong with an input is refused before it reaches `reference.decoder` (`spec.validation`), so
that the formulas stand alone. It is written for reading; nothing here is made for training or for speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from decoderspec.reference import decoder
from decoderspec.reference.block import DecoderBlock
from decoderspec.reference.operations import OPERATIONS, Array, Operations
from decoderspec.reference.parts import Embedding, NamedParameter, RmsNorm, refusing_zero_energy
from decoderspec.reference.splitmix64 import SplitMix64, initialize
from decoderspec.spec import components, validation
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError, owned_by
from decoderspec.spec.parameters import parameter_count
from decoderspec.spec.stages import stage_names

CHECKED = refusing_zero_energy(OPERATIONS)


@dataclass(frozen=True, eq=False)
class DecoderModel:
    """A decoder with one live float64 array per canonical name; the one table serves as lookup and as head."""

    config: Config
    weights: Mapping[str, Array]
    operations: Operations = CHECKED  # what to compute with; `replace(model, operations=...)` substitutes

    @classmethod
    def new(cls, config: Config, generator: SplitMix64) -> DecoderModel:
        """Initial parameters; the generator advances only when everything has been accepted."""
        config = validation.validate_config(config)
        trial = SplitMix64(generator.state)
        model = cls(config, initialize(config, trial))
        generator.state = trial.state
        return model

    @classmethod
    def from_parameters(cls, config: Config, parameters: Sequence[NamedParameter]) -> DecoderModel:
        """Bind exactly these arrays, listed in canonical order: an update in place reaches the model.

        Raises in the order of `ORDER["from_parameters"]`.
        """
        validation.validate_parameter_layout(config, [(each.name, each.value) for each in parameters])
        bound = {each.name: np.asarray(each.value, dtype=np.float64) for each in parameters}
        with owned_by("DecoderModelError.Initialization"):
            components.validate_distinct(bound.items())
        return cls(validation.validate_config(config), bound)

    @classmethod
    def from_parts(
        cls, config: Config, embedding: Embedding, blocks: Sequence[DecoderBlock], final_norm: RmsNorm
    ) -> DecoderModel:
        """Bind the arrays of components that agree with the configuration in everything, constants to the bit.

        Raises in the order of `ORDER["from_parts"]`.
        """
        config = validation.validate_config(config)
        components.validate_model_table(config, embedding.table.shape, len(blocks))
        for layer, block in enumerate(blocks):
            components.validate_model_block(config, layer, block.config, block.feed_forward_norm.epsilon)
        components.validate_model_norm(config, final_norm.feature_width, final_norm.epsilon)
        parts = [embedding, *(part for block in blocks for part in block.parts), final_norm]
        listed = [named for part in parts for named in part.parameters.items()]
        validation.validate_parameter_names(config, [name for name, _ in listed])
        with owned_by("DecoderModelError.Initialization"):
            components.validate_distinct(listed)
        return cls(config, dict(listed))

    def parameters(self) -> dict[str, Array]:
        """The live arrays by canonical name, in canonical order."""
        return dict(self.weights)

    def parameter_count(self) -> int:
        """Number of scalars, the table counted once."""
        return parameter_count(self.config)

    def assign(self, name: str, value: ArrayLike) -> None:
        """Write one parameter in place. Raises `ParameterError` for its name, dtype, shape or a value not finite."""
        self.weights[name][...] = validation.validate_parameter(self.config, name, value)

    def logits(self, tokens: ArrayLike) -> Array:
        """Token ids `[B, T]` to logits `[B, T, V]`."""
        ids = validation.validate_tokens(self.config, tokens)
        return decoder.decoder(self.operations, self.config, self.weights, ids)

    def stages(self, tokens: ArrayLike) -> dict[str, Array]:
        """The value of every stage of `spec.stages`, in forward order."""
        ids = validation.validate_tokens(self.config, tokens)
        values = decoder.stages(self.config, self.weights, ids, self.operations)
        return {name: values[name] for name in stage_names(self.config.layers)}

    def loss(self, tokens: ArrayLike, targets: ArrayLike) -> float:
        """Mean negative log likelihood of the targets `[B, T]` or flat, in nats."""
        ids, wanted = validation.validate_loss(self.config, tokens, targets)
        return float(decoder.loss(self.config, self.weights, ids, wanted, self.operations))

    def gradients(self, tokens: ArrayLike, targets: ArrayLike) -> dict[str, Array]:
        """Gradient of the loss by each parameter, in canonical order."""
        ids, wanted = validation.validate_loss(self.config, tokens, targets)
        return decoder.gradients(self.config, self.weights, ids, wanted, self.operations)

    def role_gradients(self, tokens: ArrayLike, targets: ArrayLike) -> tuple[Array, Array]:
        """The table's gradient as the lookup and as the head, `[V, d]` each; they add up to the whole."""
        ids, wanted = validation.validate_loss(self.config, tokens, targets)
        return decoder.role_gradients(self.config, self.weights, ids, wanted, self.operations)


class Reference:
    """The NumPy reference as an implementation under test."""

    name = "reference"

    def build(self, config: Config, parameters: Mapping[str, ArrayLike]) -> DecoderModel:
        """A model on copies of the parameters, which may come in any order."""
        config = validation.validate_config(config)
        return DecoderModel(config, validation.validate_parameters(config, parameters))

    def initialize(self, config: Config, seed: int) -> DecoderModel:
        """A model with initial parameters drawn from the seed."""
        return DecoderModel.new(config, SplitMix64(validation.validate_seed(seed)))

    def classify(self, error: BaseException) -> str | None:
        """The category of a refusal; what does not fit into memory is `resource` too."""
        if isinstance(error, MemoryError):
            return "resource"
        return error.category if isinstance(error, SpecError) else None
