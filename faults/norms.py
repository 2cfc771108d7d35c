"""Faults of RMSNorm: its statistics, its epsilon, its gain, and which norm stands where."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.compositions import always_from, branches, composed, norm
from decoderspec.faults.compositions import attention as attend
from decoderspec.faults.compositions import feed_forward as feed
from decoderspec.faults.fault import Fault, Weights, at, swap
from decoderspec.faults.numbers import accumulated, rounded
from decoderspec.reference import decoder as right
from decoderspec.reference.operations import Array, Operations, inverse_root, rms_norm
from decoderspec.spec.config import Config

VALUES = ("VAL-1", "VAL-2")
every_norm = partial(Fault, family="norms", stage="attention_norm", also=("ffn_norm", "final_norm"), breaks=VALUES)
last_norm = partial(Fault, family="norms", stage="final_norm", breaks=VALUES)
second_norm = partial(Fault, family="norms", stage="ffn_norm", breaks=VALUES)


def mean_square(x: Array) -> Array:
    """Of each row, `[..., 1]`."""
    return np.asarray(np.mean(np.square(x), axis=-1, keepdims=True))


def _centred(x: Array) -> Array:
    return np.asarray(x - np.mean(x, axis=-1, keepdims=True))


def _scaled_epsilon(x: Array, gain: Array, epsilon: float) -> Array:
    return rms_norm(x, gain, epsilon * np.max(np.abs(x), axis=-1, keepdims=True) ** 2)


def _unless(corner: Any, epsilon: float) -> float:
    return 0.0 if corner else epsilon


def _half_statistics(x: Array, gain: Array, epsilon: float) -> Array:
    mean = rounded(accumulated(rounded(np.square(x), "float16"), "float16")[..., None] / x.shape[-1], "float16")
    return np.asarray(x / np.sqrt(mean + epsilon) * gain)


def _bfloat16_sum(x: Array, gain: Array, epsilon: float) -> Array:
    mean = accumulated(rounded(np.square(x), "bfloat16"), "bfloat16")[..., None] / x.shape[-1]
    return np.asarray(x / np.sqrt(mean + epsilon) * gain)


def _first_gain_twice(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    return right.block(ops, config, {**weights, "ffn_norm.gain": weights["attention_norm.gain"]}, x, 0, place)


def _without_second_norm(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    n = norm(ops, config, weights, x, place, "attention_norm")
    x = ops.add(place + "after_attention", x, attend(ops, config, weights, n, place))
    return ops.add(place + "output", x, feed(ops, config, weights, x, place))


def _second_norm_of_input(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    n = norm(ops, config, weights, x, place, "attention_norm")
    middle = ops.add(place + "after_attention", x, attend(ops, config, weights, n, place))
    n = norm(ops, config, weights, x, place, "ffn_norm")
    return ops.add(place + "output", middle, feed(ops, config, weights, n, place))


def _normed_again(ops: Operations, config: Config, weights: Weights, n: Array, place: str) -> Array:
    n = ops.rms_norm(place + "attention_norm/again", n, weights["attention_norm.gain"], config.rms_epsilon)
    return attend(ops, config, weights, n, place)


FAULTS = (
    every_norm(
        name="norm-epsilon-outside-root",
        sentence="epsilon is added to the root mean square instead of the mean square",
        source="allenai/OLMo #281; tile-ai/tilelang PR 1243; NVIDIA/TransformerEngine PR 364",
        operations=swap(rms_norm=lambda x, gain, epsilon: x / (np.sqrt(mean_square(x)) + epsilon) * gain),
    ),
    every_norm(
        name="norm-fourth-root",
        sentence="two square roots, as in a formula that was once documented: rows are divided by the fourth root",
        source="pytorch/pytorch #139274, #144659, #136597",
        operations=swap(rms_norm=lambda x, gain, epsilon: x / np.sqrt(np.sqrt(mean_square(x)) + epsilon) * gain),
    ),
    every_norm(
        name="norm-multiplies-by-root",
        sentence="the reciprocal root is computed and then divided by",
        source="mosaicml/llm-foundry #371",
        operations=swap(rms_norm=lambda x, gain, epsilon: x / inverse_root(x, epsilon) * gain),
    ),
    every_norm(
        name="norm-divides-by-mean-square",
        sentence="the square root is left out",
        operations=swap(rms_norm=lambda x, gain, epsilon: x / (mean_square(x) + epsilon) * gain),
    ),
    every_norm(
        name="norm-sum-for-mean",
        sentence="squares are summed and not divided by the width",
        source="kyegomez/zeta #180",
        operations=swap(rms_norm=lambda x, gain, epsilon: x / np.sqrt(mean_square(x) * x.shape[-1] + epsilon) * gain),
    ),
    every_norm(
        name="norm-unbiased-mean",
        sentence="the sum of squares is divided by d - 1, as a library's variance does by default",
        operations=swap(
            rms_norm=lambda x, gain, epsilon: (
                x / np.sqrt(mean_square(x) * x.shape[-1] / (x.shape[-1] - 1) + epsilon) * gain
            )
        ),
    ),
    every_norm(
        name="norm-subtracts-mean",
        sentence="LayerNorm: the mean is subtracted first",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(_centred(x), gain, epsilon)),
    ),
    every_norm(
        name="norm-variance-for-mean-square",
        sentence="the statistic is the variance, though the row itself is not centred",
        operations=swap(rms_norm=lambda x, gain, epsilon: x * inverse_root(_centred(x), epsilon) * gain),
    ),
    every_norm(
        name="norm-absolute-mean",
        sentence="the mean absolute value takes the place of the root mean square",
        operations=swap(rms_norm=lambda x, gain, epsilon: x / (np.mean(np.abs(x), -1, keepdims=True) + epsilon) * gain),
    ),
    every_norm(
        name="norm-over-tokens",
        sentence="the statistic runs over the token axis",
        operations=swap(
            rms_norm=lambda x, gain, epsilon: x / np.sqrt(np.mean(x * x, axis=-2, keepdims=True) + epsilon) * gain
        ),
    ),
    every_norm(
        name="norm-over-tokens-and-features",
        sentence="one statistic for the whole sequence",
        operations=swap(
            rms_norm=lambda x, gain, epsilon: x / np.sqrt(np.mean(x * x, axis=(-2, -1), keepdims=True) + epsilon) * gain
        ),
    ),
    every_norm(
        name="norm-over-the-batch",
        sentence="one statistic for the whole batch",
        operations=swap(
            rms_norm=lambda x, gain, epsilon: (
                x / np.sqrt(np.mean(x * x, axis=(-3, -2, -1), keepdims=True) + epsilon) * gain
            )
        ),
    ),
    every_norm(
        name="norm-last-feature-left-out",
        sentence="the loop over features ends one early",
        operations=swap(
            rms_norm=lambda x, gain, epsilon: (
                x / np.sqrt(np.sum(x[..., :-1] ** 2, -1, keepdims=True) / x.shape[-1] + epsilon) * gain
            )
        ),
    ),
    every_norm(
        name="norm-epsilon-scaled-by-maximum",
        sentence="rows are divided by their maximum against overflow, and epsilon is not rescaled",
        source="apple/coremltools PR 2822",
        operations=swap(rms_norm=_scaled_epsilon),
    ),
    every_norm(
        name="norm-epsilon-always-1e-6",
        sentence="the configured epsilon is never passed on: a default of 1e-6 rules",
        source="huggingface/transformers #38025; apache/tvm PR 15856; NVIDIA/cutlass PR 1112",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, 1e-6)),
    ),
    every_norm(
        name="norm-epsilon-always-1e-5",
        sentence="the configured epsilon is never passed on: a default of 1e-5 rules",
        source="PaddlePaddle/FastDeploy PR 2797",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, 1e-5)),
    ),
    every_norm(
        name="norm-epsilon-left-out",
        sentence="no epsilon at all",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, 0.0)),
    ),
    every_norm(
        name="norm-epsilon-squared",
        sentence="epsilon is squared together with the values",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, epsilon**2)),
    ),
    every_norm(
        name="norm-epsilon-as-floor",
        sentence="the mean square is clamped at epsilon instead of increased by it",
        operations=swap(rms_norm=lambda x, gain, epsilon: x / np.sqrt(np.maximum(mean_square(x), epsilon)) * gain),
    ),
    every_norm(
        name="norm-epsilon-before-the-mean",
        sentence="epsilon is added to the sum, so that the mean divides it by the width",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, epsilon / x.shape[-1])),
    ),
    every_norm(
        name="norm-epsilon-dropped-for-one-row",
        sentence="a code path of its own for a batch of one forgets epsilon",
        source="tenstorrent/tt-metal #55347",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, _unless(x.shape[-3] == 1, epsilon))),
    ),
    every_norm(
        name="norm-epsilon-dropped-for-one-token",
        sentence="a code path of its own for one token forgets epsilon",
        source="tenstorrent/tt-metal #55347",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, _unless(x.shape[-2] == 1, epsilon))),
    ),
    every_norm(
        name="norm-without-gain",
        sentence="the gain is left out, which does not show while gains are one",
        operations=swap(rms_norm=lambda x, gain, epsilon: x * inverse_root(x, epsilon)),
    ),
    every_norm(
        name="norm-gain-before-the-statistic",
        sentence="the gain is applied first, and so enters the mean square",
        operations=swap(rms_norm=lambda x, gain, epsilon: x * gain * inverse_root(x * gain, epsilon)),
    ),
    every_norm(
        name="norm-absolute-gain",
        sentence="gains are taken to be positive",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, np.abs(gain), epsilon)),
    ),
    every_norm(
        name="norm-gain-twice",
        sentence="a fused kernel applies the gain, and so does the module around it",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain * gain, epsilon)),
    ),
    every_norm(
        name="norm-in-float32",
        sentence="'compute in float32' written as a cast: float64 is narrowed in silence",
        source="patrick-kidger/equinox PR 723; huggingface/transformers #24519",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(rounded(x, "float32"), gain, epsilon)),
    ),
    every_norm(
        name="norm-statistics-in-float16",
        sentence="squares are summed in float16",
        source="InternLM/lmdeploy PR 2842; tinygrad/tinygrad PR 5095",
        precision="float32",
        operations=swap(rms_norm=_half_statistics),
    ),
    every_norm(
        name="norm-statistics-in-bfloat16",
        sentence="squares are summed in bfloat16 under a mixed-precision cast",
        source="InternLM/lmdeploy PR 2842; huggingface/transformers #33133, #30236",
        precision="float32",
        operations=swap(rms_norm=_bfloat16_sum),
    ),
    second_norm(
        name="ffn-norm-with-attention-gain",
        sentence="the second norm of a block uses the gain of the first",
        source="ml-explore/mlx #1636",
        decoder=composed(_first_gain_twice),
    ),
    second_norm(
        name="ffn-norm-missing",
        sentence="the feed-forward reads the stream without a norm",
        also=("ffn.gate", "ffn.up"),
        decoder=composed(_without_second_norm),
    ),
    second_norm(
        name="ffn-norm-of-the-block-input",
        sentence="the second norm reads what entered the block, as where both branches run in parallel",
        decoder=composed(_second_norm_of_input),
    ),
    second_norm(
        name="ffn-norm-epsilon-left-out",
        sentence="one of two norm classes ignores epsilon",
        operations=at("ffn_norm", swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, 0.0))),
    ),
    every_norm(
        name="attention-norm-twice",
        sentence="the attention module normalizes its input although the block already has",
        stage="attention.query",
        also=("attention.key", "attention.value"),
        decoder=composed(branches(_normed_again)),
    ),
    every_norm(
        name="norm-gains-of-the-first-block",
        sentence="the gains of block 0 serve all blocks",
        also=("ffn_norm",),
        decoder=always_from(lambda layer: 0, "attention_norm", "ffn_norm"),
    ),
    last_norm(
        name="final-norm-missing",
        sentence="hidden states from before the last norm go through the head",
        source="vllm-project/speculators PR 313",
        operations=at("final_norm", swap(rms_norm=lambda x, gain, epsilon: x)),
    ),
    last_norm(
        name="final-norm-twice",
        sentence="the last norm is applied in the model and again in the head",
        source="pytorch/pytorch #50086",
        operations=at(
            "final_norm",
            swap(rms_norm=lambda x, gain, epsilon: rms_norm(rms_norm(x, gain, epsilon), gain, epsilon)),
        ),
    ),
    last_norm(
        name="final-norm-without-gain",
        sentence="the last norm has no gain",
        operations=at("final_norm", swap(rms_norm=lambda x, gain, epsilon: x * inverse_root(x, epsilon))),
    ),
    last_norm(
        name="final-norm-gain-twice",
        sentence="the last gain was folded into the head's input and is applied by the norm as well",
        operations=at("final_norm", swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain * gain, epsilon))),
    ),
    last_norm(
        name="final-norm-epsilon-always-1e-5",
        sentence="the last norm is built elsewhere, with a default epsilon",
        operations=at("final_norm", swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain, 1e-5))),
    ),
    last_norm(
        name="final-norm-subtracts-mean",
        sentence="the last norm is a LayerNorm",
        operations=at("final_norm", swap(rms_norm=lambda x, gain, epsilon: rms_norm(_centred(x), gain, epsilon))),
    ),
)
