"""Faults that only a model of fewer bits can have: rounded too often or too early, or beyond a narrow format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import Fault, swap
from decoderspec.faults.norms import mean_square
from decoderspec.faults.numbers import accumulated, rounded
from decoderspec.faults.pullbacks import backward
from decoderspec.reference import operations as right
from decoderspec.reference.operations import Array, angles, inverse_root, rotary, rows, silu

bfloat = partial(Fault, precision="bfloat16", breaks=("VAL-1", "VAL-2"))
half = partial(Fault, precision="float16", breaks=("VAL-1", "VAL-2"))
NORMS_IN_FLOAT32 = {
    "weights": "bfloat16", "results": "bfloat16",
    "attention_norm": "float32", "ffn_norm": "float32", "final_norm": "float32",
}  # fmt: skip


def _sum_of_squares(x: Array, gain: Array, epsilon: float, form: str) -> Array:
    mean = accumulated(rounded(np.square(x), form), form)[..., None] / x.shape[-1]
    return np.asarray(x / np.sqrt(mean + epsilon) * gain)


def _product(x: Array, weight: Array, form: str) -> Array:
    """`x @ W`, every partial sum rounded."""
    return accumulated(x[..., :, None] * weight, form, axis=-2)


def _summed(p: Callable[[Array], Array], s: Array, form: str) -> Array:
    e = p(s)
    return np.asarray(e / accumulated(e, form)[..., None])


def _exponentials(s: Array) -> Array:
    return np.asarray(np.exp(s - np.max(s, axis=-1, keepdims=True)))


def _turned(angle: Array) -> Array:
    return np.stack([np.cos(angle), np.sin(angle)])


def _scattered(dx: Array, _x: Array, table: Array, tokens: Array) -> Any:
    dtable = np.zeros((*dx.shape[:-3], *table.shape[-2:]))
    for row, token in zip(np.moveaxis(rows(dx), -2, 0), tokens.ravel(), strict=True):
        dtable[..., token, :] = rounded(dtable[..., token, :] + row, "bfloat16")
    return dtable, None


def _fast_root(mean: Array) -> Array:
    """The inverse root from the bits of a float32 and one step of Newton's: 0.2 percent off at most."""
    bits = mean.astype(np.float32).view(np.int32)
    guess = (np.int32(0x5F3759DF) - (bits >> 1)).view(np.float32).astype(np.float64)
    return np.asarray(guess * (1.5 - 0.5 * mean * guess * guess))


FAULTS = (
    bfloat(
        name="bfloat16-norm-sum",
        family="norms",
        stage="attention_norm",
        also=("ffn_norm", "final_norm"),
        sentence="squares are summed in bfloat16, not in float32",
        source="InternLM/lmdeploy PR 2842; tinygrad/tinygrad PR 5095",
        operations=swap(rms_norm=partial(_sum_of_squares, form="bfloat16")),
    ),
    bfloat(
        name="bfloat16-norm-cast-before-the-gain",
        family="norms",
        stage="attention_norm",
        also=("ffn_norm", "final_norm"),
        breaks=("VAL-2",),
        sentence="rows are cast to bfloat16 before the gain, though the result is said to be float32",
        source="huggingface/transformers #33133, #30236",
        precision=NORMS_IN_FLOAT32,
        operations=swap(rms_norm=lambda x, gain, epsilon: rounded(x * inverse_root(x, epsilon), "bfloat16") * gain),
    ),
    bfloat(
        name="bfloat16-rotary-angles",
        family="rotary",
        stage="attention.rotated_query",
        also=("attention.rotated_key",),
        breaks=("VAL-2",),
        sentence="angles are formed in bfloat16, as the rest of the model is",
        source="huggingface/transformers #29285; Modalities/modalities PR 462",
        operations=swap(
            rotary=lambda positions, width, base: _turned(rounded(angles(positions, width, base), "bfloat16"))
        ),
    ),
    bfloat(
        name="bfloat16-positions",
        family="rotary",
        stage="attention.rotated_query",
        also=("attention.rotated_key",),
        breaks=("VAL-2",),
        sentence="positions are kept in bfloat16, which has no odd numbers past 256",
        source="huggingface/transformers #29496; EleutherAI/gpt-neox #1003",
        operations=swap(
            rotary=lambda positions, width, base: rotary(rounded(np.asarray(positions), "bfloat16"), width, base)
        ),
    ),
    bfloat(
        name="bfloat16-head-sums",
        family="head",
        stage="logits",
        sentence="the partial sums of the head's products are bfloat16",
        operations=swap(project=lambda x, table: _product(x, table.swapaxes(-1, -2), "bfloat16")),
    ),
    bfloat(
        name="bfloat16-softmax-sum",
        family="attention",
        stage="attention.weights",
        breaks=("VAL-2",),
        sentence="the sum of exponentials is accumulated in bfloat16",
        operations=swap(softmax=lambda s: _summed(_exponentials, s, "bfloat16")),
    ),
    backward(
        name="lookup-gradient-in-bfloat16",
        stage="gradient.embed",
        precision="float32",
        sentence="rows of the lookup's gradient are added up in bfloat16 in a float32 model",
        operations=swap(embed_vjp=_scattered),
    ),
    half(
        name="float16-norm-sum",
        family="norms",
        stage="attention_norm",
        also=("ffn_norm", "final_norm"),
        sentence="squares are formed and summed in float16, where a value above 256 overflows",
        source="InternLM/lmdeploy PR 2842",
        operations=swap(rms_norm=partial(_sum_of_squares, form="float16")),
    ),
    half(
        name="float16-exponentials-overflow",
        family="attention",
        stage="attention.weights",
        sentence="exponentials are float16 and no maximum is subtracted: scores above 11 overflow",
        operations=swap(softmax=lambda s: _summed(lambda t: rounded(np.exp(t), "float16"), s, "float64")),
    ),
    Fault(
        name="products-in-tensorfloat32",
        family="feed_forward",
        stage="attention.query",
        also=("attention.key", "attention.value", "attention.output", "ffn.gate", "ffn.up", "ffn.output"),
        precision="float32",
        breaks=("VAL-1", "VAL-2"),
        sentence="a switch of the device lets float32 products drop to ten bits",
        operations=swap(
            linear=lambda x, weight: right.linear(rounded(x, "tensorfloat32"), rounded(weight, "tensorfloat32"))
        ),
    ),
    Fault(
        name="silu-of-fast-exponential",
        family="feed_forward",
        stage="ffn.silu",
        precision="float32",
        breaks=("VAL-1", "VAL-2"),
        sentence="a fast exponential has a relative error of 1e-5",
        operations=swap(silu=lambda x: silu(x) * (1 + 1e-5 * np.sin(40 * x))),
    ),
    Fault(
        name="norm-by-fast-root",
        family="norms",
        stage="attention_norm",
        also=("ffn_norm", "final_norm"),
        precision="float32",
        breaks=("VAL-1", "VAL-2"),
        sentence="a fast inverse root is refined once, not twice",
        operations=swap(rms_norm=lambda x, gain, epsilon: x * _fast_root(mean_square(x) + epsilon) * gain),
    ),
)
