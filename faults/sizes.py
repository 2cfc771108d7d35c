"""Faults of size: what is right in small models and wrong in larger ones, where another code path takes over."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import Fault, swap
from decoderspec.faults.losses import mean, position_losses
from decoderspec.reference.operations import Array, linear, mix
from decoderspec.reference.splitmix64 import SplitMix64, initialize
from decoderspec.spec.config import Config

sized = partial(Fault, family="size")
BLOCK = 32  # keys of a tile
CHUNK = 128  # positions of the loss that are taken together
WIDE = 256  # features beyond which a product takes the faster path


def _tiled(weights: Array, values: Array) -> Array:
    """Tiles beyond the first read their values from the first row of the batch."""
    if values.shape[-2] > BLOCK and values.ndim > 3:
        values = values.copy()
        values[..., BLOCK:, :] = values[..., :1, :, BLOCK:, :]
    return mix(weights, values)


def _chunked(logits: Array, targets: Array) -> Array:
    """The mean of the means of chunks, of which the last is shorter."""
    losses = position_losses(logits, targets).reshape(*logits.shape[:-3], 1, -1)
    chunks = [losses[..., start : start + CHUNK] for start in range(0, losses.shape[-1], CHUNK)]
    return np.asarray(sum(mean(chunk) for chunk in chunks) / len(chunks))


def _wrapped(dx: Array, x: Array, table: Array, tokens: Array) -> tuple[Array, None]:
    """Rows are found by their low 15 bits."""
    gradient = np.zeros_like(table)
    np.add.at(gradient, tokens % 2**15, dx)
    return gradient, None


def _coarse_when_wide(x: Array, weight: Array) -> Array:
    """Long sums are taken in float32."""
    if x.shape[-1] <= WIDE:
        return linear(x, weight)
    return np.asarray(linear(x.astype(np.float32), weight.astype(np.float32)).astype(np.float64))


def _blocks_as_words(config: Config, seed: int) -> dict[str, Any]:
    """Blocks are drawn in the order of their names as words."""
    found, order = initialize(config, SplitMix64(seed)), sorted(range(config.layers), key=str)

    def source(name: str) -> str:
        _, block, rest = name.split(".", 2) if name.startswith("blocks.") else ("", "", "")
        return f"blocks.{order[int(block)]}.{rest}" if block else name

    return {name: found[source(name)] for name in found}


FAULTS = (
    sized(
        name="values-of-the-first-row-beyond-a-tile", stage="attention.heads", breaks=("VAL-1",),
        operations=swap(mix=_tiled),
        sentence="tiles of keys beyond the first read their values from the first row of the batch",
    ),
    sized(
        name="loss-of-chunks-of-128", stage="loss", level="loss", breaks=("LOS-1",), operations=swap(nll=_chunked),
        sentence="the loss is the mean of the means of chunks of 128 positions, of which the last is shorter",
    ),
    sized(
        name="lookup-gradient-in-15-bits", stage="gradient.embed", level="contract", breaks=("TIE-2",),
        operations=swap(embed_vjp=_wrapped),
        sentence="the lookup's gradient is added to the row of the low 15 bits of an id",
    ),
    sized(
        name="long-sums-in-float32", stage="ffn.output", breaks=("VAL-1",), operations=swap(linear=_coarse_when_wide),
        sentence="products over more than 256 features are taken in float32, where a faster path exists",
    ),
    sized(
        name="blocks-initialized-as-words", stage="initialization", level="contract", breaks=("INI-1",),
        initial=_blocks_as_words,
        sentence="blocks are drawn in the order of their names as words, so that 10 comes before 2",
    ),
)  # fmt: skip
