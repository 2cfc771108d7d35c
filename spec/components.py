"""What valid components, block configurations and block inputs are (section 9 of the text, for chapter 31).

Like `spec.validation` for the model: no computing, only refusals, in the order of `spec.errors.ORDER`.
"""

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decoderspec.spec.config import Config
from decoderspec.spec.errors import MAX_SCALARS, SpecError, error, owned_by
from decoderspec.spec.parameters import parameter_count
from decoderspec.spec.stages import BLOCK_STAGES, suffix
from decoderspec.spec.validation import plain_numbers, validate_stage_sizes

NORM_OWNERS = {
    "attention_norm": "DecoderBlockError.AttentionNorm",
    "ffn_norm": "DecoderBlockError.FeedForwardNorm",
    "final_norm": "DecoderModelError.FinalNorm",
}


@dataclass(frozen=True)
class DecoderBlockConfig:
    """Sizes and constants of one block: those of `Config` without vocabulary and layers."""

    model_width: int
    heads: int
    feed_forward_width: int
    max_positions: int
    rope_base: float = 10000.0
    rms_epsilon: float = 1e-6

    def decoder_config(self) -> Config:
        """The same numbers as those of a decoder with one layer and one token."""
        return Config(
            vocabulary_size=1,
            model_width=self.model_width,
            heads=self.heads,
            feed_forward_width=self.feed_forward_width,
            layers=1,
            max_positions=self.max_positions,
            rope_base=self.rope_base,
            rms_epsilon=self.rms_epsilon,
        )


# --- Sizes and constants ---


def validate_block_config(config: DecoderBlockConfig) -> DecoderBlockConfig:
    """The configuration in Python's own numbers; raises what the component would that meets the number first."""
    sizes = ("model_width", "heads", "feed_forward_width", "max_positions")
    config = plain_numbers(config, sizes, ("rope_base", "rms_epsilon"))
    with owned_by("DecoderBlockError.AttentionNorm"):
        validate_norm(config.model_width, config.rms_epsilon)
    with owned_by("DecoderBlockError.Attention"):
        validate_attention(config.model_width, config.heads, config.max_positions, config.rope_base)
    with owned_by("DecoderBlockError.FeedForward"):
        validate_swiglu(config.model_width, config.feed_forward_width, config.model_width)
    if parameter_count(config.decoder_config()) > MAX_SCALARS:
        raise error("DecoderModelError.LayerAllocationFailed", layers=1)
    return config


def validate_norm(width: int, epsilon: float) -> None:
    """What an RMSNorm needs of its width and epsilon."""
    if width == 0:
        raise error("RmsNormError.ZeroFeatureWidth")
    if not math.isfinite(epsilon) or epsilon < 0:
        raise error("RmsNormError.InvalidEpsilon", value=epsilon)


def validate_attention(width: int, heads: int, max_positions: int, rope_base: float) -> None:
    """What attention needs of its sizes, and then RoPE of its own."""
    if width == 0:
        raise error("MultiHeadAttentionError.ZeroModelWidth")
    if heads == 0:
        raise error("MultiHeadAttentionError.ZeroHeadCount")
    if width % heads:
        raise error("MultiHeadAttentionError.ModelWidthNotDivisible", model_width=width, heads=heads)
    with owned_by("MultiHeadAttentionError.Rope"):
        validate_rope(width // heads, max_positions, rope_base)


def validate_rope(width: int, max_positions: int, base: float) -> None:
    """What RoPE needs of the head width and its constants."""
    if width % 2:
        raise error("RopeError.OddFeatureWidth", width=width)
    if max_positions == 0:
        raise error("RopeError.ZeroPositionCapacity")
    if not math.isfinite(base) or base <= 0:
        raise error("RopeError.InvalidBase", value=base)


def validate_swiglu(width: int, hidden: int, output: int) -> None:
    """What SwiGLU needs of its widths."""
    if width == 0:
        raise error("SwiGluError.ZeroInputWidth")
    if hidden == 0:
        raise error("SwiGluError.ZeroHiddenWidth")
    if output == 0:
        raise error("SwiGluError.ZeroOutputWidth")


# --- Assembly ---


def validate_block_widths(model_width: int, component_widths: dict[str, int]) -> None:
    """Every component of a block has the width of its attention."""
    for component, actual in component_widths.items():
        if actual != model_width:
            raise error(
                "DecoderBlockError.ComponentWidthMismatch", component=component, expected=model_width, actual=actual
            )


def validate_distinct(parameters: Iterable[tuple[str, NDArray[np.float64]]]) -> None:
    """No name is used twice, and no memory: two parameters on one array would share their updates and gradients."""
    listed = list(parameters)
    names: set[str] = set()
    for name, _ in listed:
        if name in names:
            raise error("InitializationError.DuplicateName", name=name)
        names.add(name)
    owners: dict[int, str] = {}
    for name, value in listed:
        other = owners.setdefault(value.__array_interface__["data"][0], name)
        if other != name:
            raise error("InitializationError.SharedArray", name=name, other=other)


# --- Block input ---


def validate_not_released(released: bool) -> None:
    """A record is fed on only before it has been pulled back."""
    if released:
        with owned_by("DecoderBlockError.AttentionNorm"), owned_by("RmsNormError.Autodiff"):
            raise error("TensorAutodiffError.Released")


def validate_block_input(config: Config, given: ArrayLike, position_offset: object) -> NDArray[np.float64]:
    """A fresh float64 copy of the input `[B, T, d]`, B = 0 included; the norm's checks come before attention's."""
    array = _real(given)
    # A broadcast view claims any size without holding it, so sizes come before values.
    if array.size > MAX_SCALARS:
        raise error("ResourceError.StageTooLarge", stage="input", scalars=array.size, allowed=MAX_SCALARS)
    if array.ndim == 3:
        validate_stage_sizes(config, array.shape[0], array.shape[1], BLOCK_STAGES)
    x = _finite(array)
    with owned_by("DecoderBlockError.AttentionNorm"):
        _validate_rows(config, x)
    validate_energy("attention_norm", x, config.rms_epsilon)
    with owned_by("DecoderBlockError.Attention"):
        _validate_positions(config, x, position_offset)
    return x


def validate_upstream(shape: tuple[int, ...], given: ArrayLike) -> NDArray[np.float64]:
    """A fresh float64 copy of the gradient of the output, in the output's shape."""
    upstream = _real(given)
    if upstream.shape != shape:
        raise error("InputError.UpstreamShape", expected=shape, actual=upstream.shape)
    return _finite(upstream)


def _real(given: ArrayLike) -> NDArray[Any]:
    try:
        array = np.asarray(given)
    except ValueError:
        raise error("InputError.NotReal", dtype="ragged lists") from None
    if array.dtype.kind not in "fiu":
        raise error("InputError.NotReal", dtype=str(array.dtype))
    return array


def _finite(array: NDArray[Any]) -> NDArray[np.float64]:
    copy = np.array(array, dtype=np.float64, order="C")
    if not np.isfinite(copy).all():
        raise error("InputError.NotFinite")
    return copy


def _validate_rows(config: Config, x: NDArray[np.float64]) -> None:
    if x.ndim == 0:
        raise error("RmsNormError.InputRank", rank=0)
    if x.shape[-1] != config.model_width:
        raise error("RmsNormError.InputWidth", expected=config.model_width, actual=x.shape[-1])


def _validate_positions(config: Config, x: NDArray[np.float64], offset: object) -> None:
    if x.ndim != 3:
        raise error("MultiHeadAttentionError.InputRank", rank=x.ndim)
    if x.shape[1] == 0:
        raise error("MultiHeadAttentionError.EmptyTokens")
    with owned_by("MultiHeadAttentionError.Rope"):
        if isinstance(offset, (bool, np.bool_)) or not isinstance(offset, numbers.Integral) or offset < 0:
            raise error("RopeError.InvalidOffset", value=offset)
        if int(offset) + x.shape[1] > config.max_positions:
            raise error(
                "RopeError.PositionOutOfRange",
                offset=int(offset),
                tokens=x.shape[1],
                max_positions=config.max_positions,
            )


def validate_energy(stage: str, x: NDArray[np.float64], epsilon: float) -> None:
    """Every row of `[..., d]` has a positive mean square, or epsilon is positive; the norm is told by its stage."""
    if epsilon > 0:
        return
    for row in np.flatnonzero(np.mean(np.square(x), axis=-1) == 0)[:1]:
        raise _owned_by_norm(stage, error("RmsNormError.ZeroEnergyRow", row=int(row)))


def _owned_by_norm(stage: str, cause: SpecError) -> SpecError:
    failure = error(NORM_OWNERS[suffix(stage)], cause)
    if not stage.startswith("blocks."):
        return failure
    return error("DecoderModelError.Block", failure, layer=int(stage.split(".")[1]))


# --- Model from parts ---


def validate_model_table(config: Config, table: tuple[int, ...], blocks: int) -> None:
    """The table is `[V, d]`, and there are N blocks."""
    _expect("EmbeddingVocabularyMismatch", config.vocabulary_size, table[0])
    _expect("EmbeddingWidthMismatch", config.model_width, table[1])
    _expect("LayerCountMismatch", config.layers, blocks)


def validate_model_block(config: Config, layer: int, block: DecoderBlockConfig, feed_forward_epsilon: float) -> None:
    """A block agrees with the model in every size and constant; its second norm has an epsilon of its own."""
    _expect("BlockModelWidthMismatch", config.model_width, block.model_width, layer=layer)
    _expect("BlockHeadCountMismatch", config.heads, block.heads, layer=layer)
    _expect("BlockFeedForwardWidthMismatch", config.feed_forward_width, block.feed_forward_width, layer=layer)
    _expect("BlockPositionCapacityMismatch", config.max_positions, block.max_positions, layer=layer)
    _expect("BlockRopeBaseMismatch", config.rope_base, block.rope_base, layer=layer)
    for norm, actual in (("attention", block.rms_epsilon), ("feed-forward", feed_forward_epsilon)):
        _expect("BlockRmsEpsilonMismatch", config.rms_epsilon, actual, layer=layer, norm=norm)


def validate_model_norm(config: Config, width: int, epsilon: float) -> None:
    """The final norm has the model's width and epsilon."""
    _expect("FinalNormWidthMismatch", config.model_width, width)
    _expect("FinalNormEpsilonMismatch", config.rms_epsilon, epsilon)


def _expect(variant: str, expected: float, actual: float, **place: Any) -> None:
    """Equal to the bit: an epsilon of -0.0 is not 0.0."""
    if actual != expected or math.copysign(1.0, actual) != math.copysign(1.0, expected):
        raise error(f"DecoderModelError.{variant}", expected=expected, actual=actual, **place)
