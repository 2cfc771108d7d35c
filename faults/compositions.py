"""Decoders put together otherwise: the reference's composition with one of its functions exchanged.

Gradients follow by themselves, since a tape records whatever is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from decoderspec.faults.fault import Decoder, Weights
from decoderspec.reference import decoder as right
from decoderspec.reference.operations import Array, Operations
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, of_block

Block = Callable[[Operations, Config, Weights, Array, str], Array]
Order = Callable[[int], Iterable[int]]
Heads = Callable[[Operations, Config, Array, Array, Array, str], tuple[Array, Array, Array]]


def plain_block(ops: Operations, config: Config, weights: Weights, x: Array, at: str) -> Array:
    """The right block."""
    return right.block(ops, config, weights, x, 0, at)


def composed(block: Block = plain_block, order: Order = range) -> Decoder:
    """A decoder of other blocks, or of the same blocks in another order."""

    def decoder(ops: Operations, config: Config, weights: Weights, tokens: Array) -> Array:
        x = ops.embed("embedding", weights[TABLE], tokens)
        for place, layer in enumerate(order(config.layers)):
            x = block(ops, config, of_block(weights, layer), x, f"blocks.{place}.")
        return head(ops, config, weights, x)

    return decoder


def before_head(ops: Operations, config: Config, weights: Weights, tokens: Array) -> Array:
    """The right decoder up to the last norm: what the head projects."""
    x = ops.embed("embedding", weights[TABLE], tokens)
    for layer in range(config.layers):
        x = right.block(ops, config, of_block(weights, layer), x, 0, f"blocks.{layer}.")
    return ops.rms_norm("final_norm", x, weights[FINAL_GAIN], config.rms_epsilon)


def head(ops: Operations, config: Config, weights: Weights, x: Array) -> Array:
    """The right final norm and projection."""
    n = ops.rms_norm("final_norm", x, weights[FINAL_GAIN], config.rms_epsilon)
    return ops.project("logits", n, weights[TABLE])


def norm(ops: Operations, config: Config, weights: Weights, x: Array, at: str, which: str) -> Array:
    """The right norm of a block: `attention_norm` or `ffn_norm`."""
    return ops.rms_norm(at + which, x, weights[which + ".gain"], config.rms_epsilon)


def attention(ops: Operations, config: Config, weights: Weights, n: Array, at: str) -> Array:
    """The right attention of a block, on its normalized input."""
    return right.attention(ops, config, weights, n, 0, at + "attention.")


def feed_forward(ops: Operations, config: Config, weights: Weights, n: Array, at: str) -> Array:
    """The right feed-forward of a block, on its normalized input."""
    return right.feed_forward(ops, weights, n, at + "ffn.")


def branches(attend: Callable[..., Array] = attention, feed: Callable[..., Array] = feed_forward) -> Block:
    """A block with another branch: both take `(ops, config, weights, normalized, at)`."""

    def block(ops: Operations, config: Config, weights: Weights, x: Array, at: str) -> Array:
        n = norm(ops, config, weights, x, at, "attention_norm")
        x = ops.add(at + "after_attention", x, attend(ops, config, weights, n, at))
        n = norm(ops, config, weights, x, at, "ffn_norm")
        return ops.add(at + "output", x, feed(ops, config, weights, n, at))

    return block


def turned(ops: Operations, config: Config, q: Array, k: Array, v: Array, at: str) -> tuple[Array, Array, Array]:
    """The right heads: queries and keys rotated."""
    turn = table(ops, config, q, at)
    return ops.rotate(at + "rotated_query", q, turn), ops.rotate(at + "rotated_key", k, turn), v


def table(ops: Operations, config: Config, q: Array, at: str, positions: Any = None) -> Array:
    """The right rotary table, or that of other positions."""
    where = np.arange(q.shape[-2]) if positions is None else positions
    return ops.rotary(at + "rotated_query/table", where, config.head_width, config.rope_base)


def heads_of(heads: Heads) -> Decoder:
    """A decoder whose attention prepares its heads in another way."""

    def attend(ops: Operations, config: Config, weights: Weights, n: Array, at: str) -> Array:
        here = at + "attention."
        q, k, v = (projected(ops, config, weights, n, here, role) for role in ("query", "key", "value"))
        q, k, v = heads(ops, config, q, k, v, here)
        merged = ops.merge(here + "merged", right.attend(ops, q, k, v, here))
        return ops.linear(here + "output", merged, weights["attention.output.weight"])

    return composed(branches(attend))


def projected(ops: Operations, config: Config, weights: Weights, n: Array, here: str, role: str) -> Array:
    """Queries, keys or values by head."""
    flat = ops.linear(f"{here}{role}/flat", n, weights[f"attention.{role}.weight"])
    return ops.split(here + role, flat, config.heads)


def with_weights(change: Callable[[Config, Weights], Weights]) -> Decoder:
    """The right decoder on parameters that a loader has put elsewhere; each gradient goes where its array is from."""

    def decoder(ops: Operations, config: Config, weights: Weights, tokens: Array) -> Array:
        return right.decoder(ops, config, change(config, weights), tokens)

    return decoder


def exchanged(first: str, second: str) -> Decoder:
    """In every block two parameters in each other's place, where their shapes allow."""

    def change(config: Config, weights: Weights) -> Weights:
        moved = dict(weights)
        for layer in range(config.layers):
            a, b = f"blocks.{layer}.{first}", f"blocks.{layer}.{second}"
            moved[a], moved[b] = weights[b], weights[a]
        return moved

    return with_weights(change)


def always_from(layer_of: Callable[[int], int], *names: str) -> Decoder:
    """Some parameters (by the start of their names) of each block taken from another block."""

    def change(config: Config, weights: Weights) -> Weights:
        def source(name: str) -> str:
            parts = name.split(".", 2)
            elsewhere = parts[0] == "blocks" and parts[2].startswith(names)
            return f"blocks.{layer_of(int(parts[1]))}.{parts[2]}" if elsewhere else name

        return {name: weights[source(name)] for name in weights}

    return with_weights(change)
