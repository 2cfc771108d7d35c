"""Faults of the softmax, and of averaging the values."""

from __future__ import annotations

from functools import partial

import numpy as np

from decoderspec.faults.attention import VALUES, masked, normalized, raw, weights
from decoderspec.faults.fault import Fault, swap
from decoderspec.faults.numbers import accumulated, rounded
from decoderspec.reference.operations import Array, mix, softmax

mixing = partial(Fault, family="attention", stage="attention.heads", breaks=VALUES)


def highest(s: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """The maximum along an axis, kept."""
    return np.asarray(np.max(s, axis=axis, keepdims=True))


def _before_the_mask(query: Array, key: Array) -> Array:
    """Scores less the maximum over all keys, the future's included; only then masked."""
    s = raw(query, key)
    return masked(s - highest(s))


def _maximum_taken(s: Array) -> Array:
    return normalized(s, 0.0)


def _streamed(s: Array, size: int = 4) -> Array:
    """The maximum of the first block of keys is kept unless it rises by more than one."""
    top = highest(s[..., :size])
    shift = []
    for start in range(0, s.shape[-1], size):
        block = highest(s[..., start : start + size])
        top = np.where(block - top > 8, block, top)
        shift.append(np.broadcast_to(top, (*s.shape[:-1], min(size, s.shape[-1] - start))))
    e = np.exp(s - np.concatenate(shift, axis=-1))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def _with_padding_keys(s: Array) -> Array:
    """Keys are padded with zeros to a whole block, and their score of 0 enters the sum."""
    padding = -s.shape[-1] % 8
    top = np.maximum(highest(s), 0.0)
    e = np.exp(s - top)
    return np.asarray(e / (np.sum(e, axis=-1, keepdims=True) + padding * np.exp(-top)))


def _previous_value(value: Array) -> Array:
    return np.concatenate([value[..., :1, :], value[..., :-1, :]], axis=-2)


def _first_row_left(o: Array) -> Array:
    o = o.copy()
    o[..., -1, :] = 0.0
    return o


def _top(s: Array, count: int) -> Array:
    kept = np.sort(s, axis=-1)[..., -min(count, s.shape[-1])][..., None]
    return softmax(np.where(s >= kept, s, -np.inf))


FAULTS = (
    weights(
        name="softmax-over-queries",
        sentence="normalized over queries instead of keys",
        source="labmlai/annotated_deep_learning_paper_implementations #146; nerdai/llms-from-scratch-rs PR 30",
        breaks=(*VALUES, "CAU-1"),
        operations=swap(softmax=lambda s: normalized(s, highest(s, -2), -2)),
    ),
    weights(
        name="softmax-over-heads",
        sentence="normalized over heads",
        source="facebookresearch/detr #247",
        operations=swap(softmax=lambda s: np.nan_to_num(normalized(s, highest(s, -3), -3))),
    ),
    weights(
        name="softmax-over-heads-and-keys",
        sentence="normalized over heads and keys together",
        source="facebookresearch/detr #247",
        operations=swap(softmax=lambda s: normalized(s, highest(s, (-3, -1)), (-3, -1))),
    ),
    weights(
        name="softmax-with-one-maximum",
        sentence="one maximum for the whole array: rows far below it underflow, and bits depend on other rows",
        source="manassharma07/crysx_nn #7",
        breaks=("CAU-2", "BAT-1"),
        operations=swap(softmax=lambda s: normalized(s, highest(s, (-4, -3, -2, -1)))),
    ),
    weights(
        name="softmax-without-maximum",
        sentence="no maximum is subtracted: large scores overflow",
        source="HabanaAI/vllm-fork #275",
        breaks=("SHP-1",),
        operations=swap(softmax=_maximum_taken),
    ),
    weights(
        name="softmax-less-ten",
        sentence="a constant takes the place of the maximum",
        source="HabanaAI/vllm-fork #275",
        breaks=("SHP-1",),
        operations=swap(softmax=lambda s: normalized(s, 10.0)),
    ),
    weights(
        name="softmax-maximum-clamped",
        sentence="the maximum is clamped at -64 from below: rows of very small scores vanish",
        source="PaddlePaddle/Paddle PR 21165",
        operations=swap(softmax=lambda s: normalized(s, np.maximum(highest(s), -64.0))),
    ),
    weights(
        name="softmax-maximum-over-the-future",
        sentence="the row maximum includes scores that are masked afterwards",
        source="jax-ml/jax #17117 (the mirror image)",
        breaks=("CAU-2",),
        operations=swap(scores=_before_the_mask, softmax=_maximum_taken),
    ),
    weights(
        name="softmax-not-rescaled",
        sentence="a streaming softmax keeps its old maximum while it rises a little: exponentials overflow their block",
        source="ROCm/rocm-libraries PR 7194; Dao-AILab/flash-attention #2082",
        operations=swap(softmax=_streamed),
    ),
    weights(
        name="softmax-plus-one",
        sentence="one is added to the denominator, so that a head may attend to nothing",
        operations=swap(softmax=lambda s: normalized(s, highest(s), extra=np.exp(-highest(s)))),
    ),
    weights(
        name="softmax-with-epsilon",
        sentence="1e-6 is added to the denominator against division by zero",
        operations=swap(softmax=lambda s: normalized(s, highest(s), extra=1e-6)),
    ),
    weights(
        name="softmax-of-base-two",
        sentence="powers of two without the factor that makes them exponentials",
        operations=swap(softmax=lambda s: softmax(s * np.log(2.0))),
    ),
    weights(
        name="softmax-of-padding-keys",
        sentence="keys padded with zeros to a block of 8 take weight exp(0)",
        source="flashinfer-ai/flashinfer PR 5090; pytorch/pytorch PR 169222",
        operations=swap(softmax=_with_padding_keys),
    ),
    weights(
        name="softmax-of-the-top-four",
        sentence="only the four largest scores of each row are kept",
        breaks=("VAL-1",),
        operations=swap(softmax=lambda s: _top(s, 4)),
    ),
    weights(
        name="softmax-in-float32",
        sentence="the softmax casts to float32",
        source="patrick-kidger/equinox PR 723; huggingface/transformers #24519",
        operations=swap(softmax=lambda s: rounded(softmax(rounded(s, "float32")), "float32")),
    ),
    weights(
        name="softmax-sum-in-bfloat16",
        sentence="the sum of exponentials is accumulated in bfloat16 under a mixed-precision cast",
        precision="float32",
        operations=swap(
            softmax=lambda s: np.exp(s - highest(s)) / accumulated(np.exp(s - highest(s)), "bfloat16")[..., None]
        ),
    ),
    mixing(
        name="weights-transposed",
        sentence="values are averaged with the transposed weights",
        breaks=(*VALUES, "CAU-1"),
        operations=swap(mix=lambda p, v: p.swapaxes(-1, -2) @ v),
    ),
    mixing(
        name="values-of-the-previous-token",
        sentence="values are read one position too early",
        operations=swap(mix=lambda p, v: mix(p, _previous_value(v))),
    ),
    mixing(
        name="values-of-reversed-heads",
        sentence="the heads of the values stand in the reverse order",
        operations=swap(mix=lambda p, v: mix(p, v[..., ::-1, :, :])),
    ),
    mixing(
        name="weights-of-the-first-head",
        sentence="the weights of the first head serve all heads",
        operations=swap(mix=lambda p, v: mix(np.broadcast_to(p[..., :1, :, :], p.shape), v)),
    ),
    mixing(
        name="values-of-the-first-row",
        sentence="the values of the first row of the batch serve all rows",
        breaks=(*VALUES, "BAT-1", "BAT-2", "BAT-3"),
        operations=swap(mix=lambda p, v: mix(p, np.broadcast_to(v[..., :1, :, :, :], v.shape))),
    ),
    mixing(
        name="last-query-not-written",
        sentence="the output of the last query is never written",
        source="vllm-project/vllm #940, PR 19784; pytorch/executorch PR 6478",
        operations=swap(mix=lambda p, v: _first_row_left(mix(p, v))),
    ),
    mixing(
        name="weights-in-bfloat16",
        sentence="attention weights of a float32 model are rounded to bfloat16 before they meet the values",
        precision="float32",
        operations=swap(mix=lambda p, v: mix(rounded(p, "bfloat16"), v)),
    ),
)
