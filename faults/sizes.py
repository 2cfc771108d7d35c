"""Faults of size: what is right in small models and wrong in larger ones, where another code path takes over."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import Fault, FaultyModel, Weights, swap
from decoderspec.faults.losses import mean, position_losses
from decoderspec.reference.operations import Array, linear, mix, nll, rotary, scores, scores_vjp
from decoderspec.reference.splitmix64 import SplitMix64, initialize
from decoderspec.spec.config import Config

sized = partial(Fault, family="size")
BLOCK = 32  # keys of a tile
CHUNK = 128  # positions of the loss that are taken together
TILE = 16
TRAINED = 2048  # positions
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


def _open_last_tile(query: Array, key: Array) -> Array:
    """The rest of a division, 0, is taken for the length of the last tile, which then is not masked."""
    tokens = key.shape[-2]
    if tokens % TILE:
        return scores(query, key)
    products: Array = query / np.sqrt(query.shape[-1]) @ key.swapaxes(-1, -2)
    masked = scores(query, key)
    masked[..., tokens - TILE :, :] = products[..., tokens - TILE :, :]
    return masked


def _padded_scale(query: Array, key: Array) -> Array:
    """Heads beyond 64 are padded to a multiple of it, and scores divided by the root of that."""
    width = query.shape[-1]
    return scores(query, key) * (np.sqrt(width / (-width // 64 * -64)) if width > 64 else 1.0)


def _short_pullback(ds: Array, s: Array, query: Array, key: Array) -> tuple[Array, Array]:
    """Keys beyond the first block of the pullback get no gradient."""
    dq, dk = scores_vjp(ds, s, query, key)
    dk[..., CHUNK:, :] = 0.0
    return dq, dk


class Interpolated(FaultyModel):
    """Positions of long contexts are squeezed into those that the model was trained on."""

    def __init__(self, fault: Fault, config: Config, weights: Weights) -> None:
        super().__init__(fault, config, weights)
        squeezed = min(1.0, TRAINED / config.max_positions)
        self.operations = swap(rotary=lambda positions, *rest: rotary(positions * squeezed, *rest))(self.operations)


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
        name="last-tile-of-16-not-masked", stage="attention.weights", breaks=("VAL-1", "CAU-1"),
        operations=swap(scores=_open_last_tile),
        sentence="where the length is a multiple of 16, the last tile is taken to have no rows and is not masked",
    ),
    sized(
        name="scale-of-the-padded-width", stage="attention.weights", breaks=("VAL-1",),
        operations=swap(scores=_padded_scale),
        sentence="heads wider than 64 are padded to a multiple of 64, and scores scaled by the padded width",
    ),
    sized(
        name="base-in-float32", stage="attention.rotated_query", also=("attention.rotated_key",), breaks=("VAL-1",),
        operations=swap(rotary=lambda positions, width, base: rotary(positions, width, float(np.float32(base)))),
        sentence="the base is kept in float32, which holds 10,000 but not every base",
    ),
    sized(
        name="loss-target-in-16-bits", stage="loss", level="loss", breaks=("LOS-1",),
        operations=swap(nll=lambda logits, targets: nll(logits, targets % 2**16)),
        sentence="targets are stored in 16 bits",
    ),
    sized(
        name="key-gradient-beyond-128", stage="gradient.scores", level="gradient", breaks=("GRA-1",),
        operations=swap(scores_vjp=_short_pullback),
        sentence="the pullback of attention stops after its first block of 128 keys",
    ),
    sized(
        name="positions-interpolated", stage="attention.rotated_query", level="contract", breaks=("VAL-1",),
        model=Interpolated, sentence="positions are squeezed where the context is longer than 2,048",
    ),
    sized(
        name="blocks-initialized-as-words", stage="initialization", level="contract", breaks=("INI-1",),
        initial=_blocks_as_words,
        sentence="blocks are drawn in the order of their names as words, so that 10 comes before 2",
    ),
)  # fmt: skip
