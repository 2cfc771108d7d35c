"""Names, order, shapes and number of the parameters (WGT-1 to WGT-3). Matrices are `[in, out]`, applied as `x @ W`."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from decoderspec.spec.config import Config

Value = TypeVar("Value")

TABLE = "token_embedding.weight"
FINAL_GAIN = "final_norm.gain"
BLOCK_PARAMETERS = (
    "attention_norm.gain",
    "attention.query.weight",
    "attention.key.weight",
    "attention.value.weight",
    "attention.output.weight",
    "ffn_norm.gain",
    "ffn.gate.weight",
    "ffn.up.weight",
    "ffn.down.weight",
)


def block_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter of one block by its name within the block, in canonical order."""
    d, f = config.model_width, config.feed_forward_width
    shapes = [(d,), (d, d), (d, d), (d, d), (d, d), (d,), (d, f), (d, f), (f, d)]
    return dict(zip(BLOCK_PARAMETERS, shapes, strict=True))


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter by its full name, in canonical order. There is no head parameter."""
    return dict(iterate_parameters(config))


def iterate_parameters(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape one by one, so that a configuration with too many layers costs nothing."""
    yield TABLE, (config.vocabulary_size, config.model_width)
    for layer in range(config.layers):
        for name, shape in block_shapes(config).items():
            yield f"blocks.{layer}.{name}", shape
    yield FINAL_GAIN, (config.model_width,)


def parameter_count(config: Config) -> int:
    """Number of scalars: `V d + N (4 d^2 + 3 d f + 2 d) + d`."""
    v, d, f, n = config.vocabulary_size, config.model_width, config.feed_forward_width, config.layers
    return v * d + n * (4 * d * d + 3 * d * f + 2 * d) + d


def of_block(parameters: Mapping[str, Value], layer: int) -> dict[str, Value]:
    """The nine parameters of one block by their names within the block."""
    return {name: parameters[f"blocks.{layer}.{name}"] for name in BLOCK_PARAMETERS}
