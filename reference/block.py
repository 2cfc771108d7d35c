"""One pre-normalized decoder block on its own: `[B, T, d]` in and out, at any position offset, every stage kept.

A forward is recorded and can be pulled back once. An empty batch is legal here, an empty token axis is not. The
formulas are in `reference.decoder`, the refusals in `spec.components`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from decoderspec.reference import decoder
from decoderspec.reference.operations import OPERATIONS, Array, Operation, Operations
from decoderspec.reference.parts import MultiHeadAttention, NamedParameter, RmsNorm, SwiGlu, refusing_zero_energy
from decoderspec.reference.splitmix64 import SplitMix64, draw
from decoderspec.reference.tape import Tape, accumulate
from decoderspec.spec import components
from decoderspec.spec.components import DecoderBlockConfig
from decoderspec.spec.config import Config
from decoderspec.spec.errors import error, owned_by
from decoderspec.spec.parameters import BLOCK_PARAMETERS, block_shapes
from decoderspec.spec.stages import BLOCK_STAGES

__all__ = ["BlockGradients", "DecoderBlock", "DecoderBlockConfig", "DecoderBlockForward", "assemble"]

INPUT = "input"  # the leaf beside the parameters


@dataclass(frozen=True, eq=False)
class BlockGradients:
    """What a pullback returns: by the input `[B, T, d]`, and by each parameter in stable order."""

    input: Array
    parameters: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class DecoderBlockForward:
    """One recorded forward: every stage by its name, the leaves that it started from, and the tape."""

    stages: Mapping[str, Array]
    leaves: Mapping[str, Array]
    tape: Tape

    @property
    def output(self) -> Array:
        """The stream after the second residual, `[B, T, d]`."""
        return self.stages["output"]

    @property
    def released(self) -> bool:
        """Whether the record has been pulled back."""
        return not self.tape.steps

    def pullback(self, upstream: ArrayLike) -> BlockGradients:
        """Gradients from the gradient of the output `[B, T, d]`; once only, then `TensorAutodiffError.Released`."""
        if self.released:
            raise error("TensorAutodiffError.Released")
        seed = components.validate_upstream(self.output.shape, upstream)
        gradients = accumulate(self.tape, seed, self.leaves).leaves
        return BlockGradients(gradients.pop(INPUT), gradients)


@dataclass(frozen=True, eq=False)
class DecoderBlock:
    """RMSNorm, causal attention, residual; RMSNorm, SwiGLU, residual. Its two gains are separate parameters."""

    attention_norm: RmsNorm
    attention: MultiHeadAttention
    feed_forward_norm: RmsNorm
    feed_forward: SwiGlu
    operations: Operations = OPERATIONS  # what to compute with; `replace(block, operations=...)` substitutes

    @classmethod
    def new(cls, prefix: str, config: DecoderBlockConfig, generator: SplitMix64) -> DecoderBlock:
        """Initial parameters under `prefix`; the generator advances only when everything has been accepted."""
        config = components.validate_block_config(config)
        trial = SplitMix64(generator.state)
        shapes = block_shapes(config.decoder_config())
        drawn = [NamedParameter(f"{prefix}.{name}", draw(shape, trial)) for name, shape in shapes.items()]
        block = assemble(config, drawn)
        generator.state = trial.state
        return block

    @classmethod
    def from_parts(
        cls,
        attention_norm: RmsNorm,
        attention: MultiHeadAttention,
        feed_forward_norm: RmsNorm,
        feed_forward: SwiGlu,
    ) -> DecoderBlock:
        """Raises `DecoderBlockError.ComponentWidthMismatch`, or `.Initialization` for a name used twice."""
        widths = {
            "attention RMSNorm": attention_norm.feature_width,
            "feed-forward RMSNorm": feed_forward_norm.feature_width,
            "feed-forward input": feed_forward.input_width,
            "feed-forward output": feed_forward.output_width,
        }
        components.validate_block_widths(attention.model_width, widths)
        block = cls(attention_norm, attention, feed_forward_norm, feed_forward)
        with owned_by("DecoderBlockError.Initialization"):
            components.validate_distinct(named for part in block.parts for named in part.parameters.items())
        return block

    @property
    def parts(self) -> tuple[RmsNorm, MultiHeadAttention, RmsNorm, SwiGlu]:
        """The four components in the order of their parameters."""
        return self.attention_norm, self.attention, self.feed_forward_norm, self.feed_forward

    @property
    def config(self) -> DecoderBlockConfig:
        """Sizes and constants as the components hold them; the epsilon is that of the attention's norm."""
        return DecoderBlockConfig(
            self.attention.model_width,
            self.attention.heads,
            self.feed_forward.hidden_width,
            self.attention.max_positions,
            self.attention.rope_base,
            self.attention_norm.epsilon,
        )

    def parameters(self) -> dict[str, Array]:
        """The nine live arrays by name, in stable order."""
        return {name: value for part in self.parts for name, value in part.parameters.items()}

    def parameter_count(self) -> int:
        """Number of scalars: `4 d^2 + 3 d f + 2 d`."""
        return sum(value.size for value in self.parameters().values())

    def forward(self, given: ArrayLike | DecoderBlockForward, position_offset: int = 0) -> DecoderBlockForward:
        """Run on `[B, T, d]`, or on the output of a record not yet pulled back, at positions from the offset on.

        Raises in the order of `ORDER["block_forward"]`.
        """
        sizes = self.config.decoder_config()
        if isinstance(given, DecoderBlockForward):
            components.validate_not_released(given.released)
            given = given.output
        x = components.validate_block_input(sizes, given, position_offset)
        return self._record(sizes, x, int(position_offset))

    def _record(self, sizes: Config, x: Array, offset: int) -> DecoderBlockForward:
        # The record keeps its own copies: an update in place must not change what was recorded.
        parameters = {name: value.copy() for name, value in self.parameters().items()}
        weights = dict(zip(BLOCK_PARAMETERS, parameters.values(), strict=True))
        tape = Tape()
        decoder.block(tape.recording(self._operations()), sizes, weights, x, offset)
        stages = tape.stages()
        return DecoderBlockForward({name: stages[name] for name in BLOCK_STAGES}, {INPUT: x, **parameters}, tape)

    def _operations(self) -> Operations:
        """The operations with each norm's own epsilon, which may differ in a block from parts."""
        epsilons = {"attention_norm": self.attention_norm.epsilon, "ffn_norm": self.feed_forward_norm.epsilon}
        norm = refusing_zero_energy(self.operations).rms_norm

        def perform(stage: str, x: Array, gain: Array, _: float) -> Array:
            return norm(stage, x, gain, epsilons[stage])

        def vjp(stage: str, dy: Array, y: Array, x: Array, gain: Array, _: float) -> tuple[Array | None, ...]:
            return norm.vjp(stage, dy, y, x, gain, epsilons[stage])

        return replace(self.operations, rms_norm=Operation("rms_norm", perform, vjp))


def assemble(config: DecoderBlockConfig, parameters: list[NamedParameter]) -> DecoderBlock:
    """A block from nine parameters in stable order, each attributed to the component that refuses it."""
    first_gain, query, key, value, output, second_gain, gate, up, down = parameters
    with owned_by("DecoderBlockError.AttentionNorm"):
        attention_norm = RmsNorm.from_gain(first_gain, config.rms_epsilon)
    with owned_by("DecoderBlockError.Attention"):
        attention = MultiHeadAttention.from_parameters(
            query, key, value, output, config.heads, config.max_positions, config.rope_base
        )
    with owned_by("DecoderBlockError.FeedForwardNorm"):
        feed_forward_norm = RmsNorm.from_gain(second_gain, config.rms_epsilon)
    with owned_by("DecoderBlockError.FeedForward"):
        feed_forward = SwiGlu.from_parameters(gate, up, down)
    return DecoderBlock.from_parts(attention_norm, attention, feed_forward_norm, feed_forward)
