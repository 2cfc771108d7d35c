"""Faults of the residual stream and of the order of things: what is added to what, and which block comes when."""

from __future__ import annotations

from functools import partial

import numpy as np

from decoderspec.faults.compositions import always_from, attention, branches, composed, norm
from decoderspec.faults.compositions import feed_forward as feed
from decoderspec.faults.fault import Fault, Weights, at, swap
from decoderspec.faults.numbers import rounded
from decoderspec.reference.operations import Array, Operations
from decoderspec.spec.config import Config

first = partial(Fault, family="residual", stage="after_attention", breaks=("VAL-1", "RES-1"))
second = partial(Fault, family="residual", stage="output", breaks=("VAL-1",))
both = partial(Fault, family="residual", stage="after_attention", also=("output",), breaks=("VAL-1",))
order = partial(Fault, family="residual", stage="attention_norm", breaks=("VAL-1",))


def _onto_normed(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    n = norm(ops, config, weights, x, place, "attention_norm")
    x = ops.add(place + "after_attention", n, attention(ops, config, weights, n, place))
    n = norm(ops, config, weights, x, place, "ffn_norm")
    return ops.add(place + "output", x, feed(ops, config, weights, n, place))


def _feed_onto_normed(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    n = norm(ops, config, weights, x, place, "attention_norm")
    x = ops.add(place + "after_attention", x, attention(ops, config, weights, n, place))
    n = norm(ops, config, weights, x, place, "ffn_norm")
    return ops.add(place + "output", n, feed(ops, config, weights, n, place))


def _onto_block_input(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    n = norm(ops, config, weights, x, place, "attention_norm")
    middle = ops.add(place + "after_attention", x, attention(ops, config, weights, n, place))
    n = norm(ops, config, weights, middle, place, "ffn_norm")
    return ops.add(place + "output", x, feed(ops, config, weights, n, place))


def _post_norm(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    x = ops.add(place + "after_attention", x, attention(ops, config, weights, x, place))
    x = norm(ops, config, weights, x, place, "attention_norm")
    x = ops.add(place + "output/sum", x, feed(ops, config, weights, x, place))
    return ops.rms_norm(place + "output", x, weights["ffn_norm.gain"], config.rms_epsilon)


def _feed_first(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    n = norm(ops, config, weights, x, place, "ffn_norm")
    x = ops.add(place + "output", x, feed(ops, config, weights, n, place))
    n = norm(ops, config, weights, x, place, "attention_norm")
    return ops.add(place + "after_attention", x, attention(ops, config, weights, n, place))


def _sandwich(ops: Operations, config: Config, weights: Weights, n: Array, place: str) -> Array:
    branch = attention(ops, config, weights, n, place)
    return ops.rms_norm(place + "after_attention/norm", branch, weights["attention_norm.gain"], config.rms_epsilon)


def _parallel(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    n = norm(ops, config, weights, x, place, "attention_norm")
    x = ops.add(place + "after_attention", x, attention(ops, config, weights, n, place))
    return ops.add(place + "output", x, feed(ops, config, weights, n, place))


def _onto_original_stream(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    """The norm is in place: it has overwritten the stream that both sums add to."""
    n = norm(ops, config, weights, x, place, "attention_norm")
    x = ops.add(place + "after_attention", n, attention(ops, config, weights, n, place))
    n = norm(ops, config, weights, x, place, "ffn_norm")
    return ops.add(place + "output", n, feed(ops, config, weights, n, place))


FAULTS = (
    first(
        name="attention-added-to-normed",
        sentence="attention is added to the normalized stream, because the variable was overwritten",
        source="pytorch/pytorch #61165; Howuhh/faster-trajectory-transformer #3",
        decoder=composed(_onto_normed),
    ),
    second(
        name="feed-forward-added-to-normed",
        sentence="the feed-forward is added to the normalized stream",
        source="pytorch/pytorch #61165",
        decoder=composed(_feed_onto_normed),
    ),
    first(
        name="both-added-to-normed",
        sentence="a norm that works in place overwrites the stream which both sums add to",
        decoder=composed(_onto_original_stream),
    ),
    first(
        name="attention-doubled",
        sentence="the attention result replaces the stream before the sum: it is added to itself",
        source="kyegomez/BitNet #32",
        operations=at(
            "after_attention",
            swap(add=lambda x, branch: branch + branch, add_vjp=lambda dy, y, x, branch: (None, 2 * dy)),
        ),
    ),
    second(
        name="feed-forward-added-to-block-input",
        sentence="the second sum starts from what entered the block",
        source="strutive07/transformer-tensorflow2.0 #14",
        decoder=composed(_onto_block_input),
    ),
    first(
        name="attention-residual-missing",
        sentence="attention replaces the stream",
        operations=at(
            "after_attention", swap(add=lambda x, branch: branch * 1.0, add_vjp=lambda dy, y, x, branch: (None, dy))
        ),
    ),
    second(
        name="feed-forward-residual-missing",
        sentence="the feed-forward replaces the stream",
        breaks=("VAL-1", "RES-1"),
        operations=at("output", swap(add=lambda x, branch: branch * 1.0, add_vjp=lambda dy, y, x, branch: (None, dy))),
    ),
    first(
        name="attention-not-added",
        sentence="the attention branch is dropped",
        breaks=("VAL-1",),
        operations=at("after_attention", swap(add=lambda x, b: x * 1.0, add_vjp=lambda dy, y, x, b: (dy, None))),
    ),
    second(
        name="feed-forward-not-added",
        sentence="the feed-forward branch is dropped",
        operations=at("output", swap(add=lambda x, b: x * 1.0, add_vjp=lambda dy, y, x, b: (dy, None))),
    ),
    first(
        name="attention-subtracted",
        sentence="a sign: the attention branch is subtracted",
        breaks=("VAL-1",),
        operations=at("after_attention", swap(add=lambda x, b: x - b, add_vjp=lambda dy, y, x, b: (dy, -dy))),
    ),
    both(
        name="branches-halved",
        sentence="branches are halved, as an initialization by depth does to their matrices",
        operations=swap(add=lambda x, b: x + b / 2, add_vjp=lambda dy, y, x, b: (dy, dy / 2)),
    ),
    both(
        name="sums-halved-in-energy",
        sentence="each sum is multiplied by the root of one half, to keep its variance",
        breaks=("VAL-1", "VAL-2"),
        operations=swap(add=lambda x, b: (x + b) * np.sqrt(0.5), add_vjp=lambda dy, y, x, b: (dy * np.sqrt(0.5),) * 2),
    ),
    both(
        name="stream-doubled",
        sentence="the stream is added in the branch and again outside",
        breaks=("VAL-1", "VAL-2"),
        operations=swap(add=lambda x, b: x + x + b, add_vjp=lambda dy, y, x, b: (2 * dy, dy)),
    ),
    first(
        name="post-norm",
        sentence="norms come after the sums, as in the first transformer",
        stage="attention_norm",
        also=("attention.query", "ffn.gate", "ffn.up", "output"),
        decoder=composed(_post_norm),
    ),
    first(
        name="branch-normed-again",
        sentence="the attention branch is normalized before it is added, as in a sandwich norm",
        breaks=("VAL-1",),
        decoder=composed(branches(_sandwich)),
    ),
    second(
        name="parallel-branches",
        sentence="attention and feed-forward read the same normalized stream",
        stage="ffn.gate",
        also=("ffn.up", "ffn_norm"),
        decoder=composed(_parallel),
    ),
    first(
        name="feed-forward-first",
        sentence="the feed-forward stands before the attention",
        stage="ffn_norm",
        also=("attention_norm",),
        breaks=("VAL-1",),
        decoder=composed(_feed_first),
    ),
    order(
        name="last-block-left-out",
        sentence="the loop over blocks ends one early",
        source="shiyu-coder/Kronos #219; AI-Hypercomputer/maxtext #1301",
        stage="output",
        also=("final_norm",),
        decoder=composed(order=lambda layers: range(layers - 1)),
    ),
    order(
        name="last-block-left-out-from-three-up",
        sentence="the depth is right for one and two blocks, and one short from three up",
        source="LukasHedegaard/continual-inference PR 70",
        stage="output",
        also=("final_norm",),
        decoder=composed(order=lambda layers: range(layers if layers < 3 else layers - 1)),
    ),
    order(
        name="last-block-twice",
        sentence="the last block is applied once more",
        stage="final_norm",
        decoder=composed(order=lambda layers: [*range(layers), *([layers - 1] if layers else [])]),
    ),
    order(
        name="first-block-left-out",
        sentence="the loop over blocks starts at one",
        also=("attention.query", "final_norm"),
        decoder=composed(order=lambda layers: range(1, layers)),
    ),
    order(
        name="blocks-sorted-as-text",
        sentence="blocks are sorted by name, so that 10 comes before 2",
        source="arcee-ai/mergekit #143; spring-media/TransformerTTS PR 104",
        also=("attention.query",),
        decoder=composed(order=lambda layers: sorted(range(layers), key=str)),
    ),
    order(
        name="one-block-for-all",
        sentence="every layer is the same object: `[block] * n`",
        source="FasterDecoding/Medusa PR 133; linkedin/Liger-Kernel PR 269; espnet/espnet #1278",
        also=("attention.query",),
        decoder=always_from(lambda layer: 0, ""),
    ),
    order(
        name="one-feed-forward-for-all",
        sentence="layers share the feed-forward of the first",
        source="habla-liaa/encodecmae #3",
        stage="ffn_norm",
        also=("ffn.gate",),
        decoder=always_from(lambda layer: 0, "ffn"),
    ),
    order(
        name="one-attention-for-all",
        sentence="layers share the attention of the first",
        also=("attention.query",),
        decoder=always_from(lambda layer: 0, "attention"),
    ),
    both(
        name="stream-in-float32",
        sentence="the residual stream is kept in float32",
        operations=swap(add=lambda x, b: rounded(x + b, "float32")),
    ),
    both(
        name="stream-in-bfloat16",
        sentence="the residual stream of a float32 model is kept in bfloat16",
        precision="float32",
        operations=swap(add=lambda x, b: rounded(x + b, "bfloat16")),
    ),
)
