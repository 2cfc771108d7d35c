"""Faults of pullbacks in a block: norms, sums, matrices, the activation and the product. Forward passes are right."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.compositions import attention, composed, norm
from decoderspec.faults.compositions import feed_forward as feed
from decoderspec.faults.fault import Fault, Weights, at, swap
from decoderspec.faults.numbers import accumulated, rounded
from decoderspec.reference import operations as right
from decoderspec.reference.operations import Array, Operations, inverse_root, linear, rows, sigmoid
from decoderspec.spec.config import Config

SLOPES = ("GRA-1", "GRA-4")


backward = partial(Fault, family="gradients", level="gradient", breaks=SLOPES)


after = partial(Fault, family="gradients", level="gradient", stage="gradients", breaks=SLOPES)


def norm_pullback(
    dy: Array, x: Array, gain: Array, epsilon: float, inner: Array | None = None, outer: Array | None = None
) -> Array:
    """`r (dn - n mean(dn n))` with another `dn` outside or inside the mean."""
    r = inverse_root(x, epsilon)
    n = x * r
    outer = dy * gain if outer is None else outer
    inner = dy * gain if inner is None else inner
    return np.asarray(r * (outer - n * np.mean(inner * n, axis=-1, keepdims=True)))


def _gain_gradient(dy: Array, x: Array, epsilon: float) -> Array:
    return np.asarray(np.sum(dy * x * inverse_root(x, epsilon), axis=(-3, -2)))


def _norm_by_input(pullback: Any) -> Any:
    """A norm whose gradient by its input is another, that by its gain right."""
    return swap(
        rms_norm_vjp=lambda dy, y, x, gain, epsilon: (
            pullback(dy, x, gain, epsilon), _gain_gradient(dy, x, epsilon), None,
        )
    )  # fmt: skip


def _norm_by_gain(pullback: Any) -> Any:
    """A norm whose gradient by its gain is another, that by its input right."""
    return swap(
        rms_norm_vjp=lambda dy, y, x, gain, epsilon: (
            norm_pullback(dy, x, gain, epsilon), pullback(dy, x, gain, epsilon), None,
        )
    )  # fmt: skip


def _half_sum(dy: Array, x: Array, _gain: Array, epsilon: float) -> Array:
    return accumulated(rounded(rows(dy * x * inverse_root(x, epsilon)), "bfloat16"), "bfloat16", axis=-2)


def _carried(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
    """The stream's gradient joins that of the branch before the norm's pullback: `carry` passes it to the norm."""

    def carry(name: str, normed: Array, stream: Array) -> Array:
        return ops.add(f"{place}{name}/carry", normed, stream)

    n = norm(ops, config, weights, x, place, "attention_norm")
    x = ops.add(place + "after_attention", carry("attention", n, x), attention(ops, config, weights, n, place))
    n = norm(ops, config, weights, x, place, "ffn_norm")
    return ops.add(place + "output", carry("ffn", n, x), feed(ops, config, weights, n, place))


def _untransposed(dy: Array, y: Array, x: Array, weight: Array) -> Any:
    square = weight.shape[0] == weight.shape[1]
    return linear(dy, weight if square else weight.T), right.linear_vjp(dy, y, x, weight)[1]


def _naive_silu(dy: Array, _y: Array, x: Array) -> Any:
    e = np.exp(-x)
    return (dy * (1 / (1 + e) + x * e / (1 + e) ** 2),)


def _silu_slope(slope: Any) -> Any:
    return swap(silu_vjp=lambda dy, y, x: (dy * slope(x, sigmoid(x)),))


FAULTS = (
    backward(
        name="norm-pullback-without-gain",
        stage="gradient.rms_norm",
        sentence="the pullback of the norm forgets the gain, which does not show while gains are one",
        source="karpathy/llm.c PR 763 (a comment)",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, e, inner=dy, outer=dy)),
    ),
    backward(
        name="norm-pullback-with-gain-twice",
        stage="gradient.rms_norm",
        sentence="the variance term of the pullback carries the gain twice",
        source="NVIDIA/Megatron-LM PR 6859",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, e, inner=dy * gain * gain)),
    ),
    backward(
        name="norm-pullback-without-variance",
        stage="gradient.rms_norm",
        sentence="the statistic is treated as a constant",
        operations=_norm_by_input(lambda dy, x, gain, e: dy * gain * inverse_root(x, e)),
    ),
    backward(
        name="norm-pullback-with-sum",
        stage="gradient.rms_norm",
        sentence="the variance term is summed, not averaged",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, e, inner=dy * gain * x.shape[-1])),
    ),
    backward(
        name="norm-pullback-with-wrong-sign",
        stage="gradient.rms_norm",
        sentence="the variance term is added",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, e, inner=-dy * gain)),
    ),
    backward(
        name="norm-pullback-of-layer-norm",
        stage="gradient.rms_norm",
        sentence="the pullback is LayerNorm's: the mean of the gradient is subtracted",
        operations=_norm_by_input(
            lambda dy, x, gain, e: (lambda d: d - d.mean(-1, keepdims=True))(norm_pullback(dy, x, gain, e))
        ),
    ),
    backward(
        name="norm-pullback-without-epsilon",
        stage="gradient.rms_norm",
        sentence="the pullback recomputes the root without epsilon",
        operations=_norm_by_input(lambda dy, x, gain, e: norm_pullback(dy, x, gain, 0.0)),
    ),
    backward(
        name="gain-gradient-of-the-raw-row",
        stage="gradient.rms_norm",
        sentence="the gain's gradient uses the row before it is normalized",
        operations=_norm_by_gain(lambda dy, x, gain, e: np.sum(dy * x, axis=(-3, -2))),
    ),
    backward(
        name="gain-gradient-averaged",
        stage="gradient.rms_norm",
        sentence="the gain's gradient is averaged over positions, not summed",
        operations=_norm_by_gain(lambda dy, x, gain, e: np.mean(dy * x * inverse_root(x, e), axis=(-3, -2))),
    ),
    backward(
        name="gain-gradient-of-the-first-row",
        stage="gradient.rms_norm",
        sentence="the gain's gradient is summed over the positions of the first row of the batch alone",
        operations=_norm_by_gain(lambda dy, x, gain, e: np.sum((dy * x * inverse_root(x, e))[..., :1, :, :], (-3, -2))),
    ),
    backward(
        name="gain-gradient-with-gain",
        stage="gradient.rms_norm",
        sentence="the gain's gradient is multiplied by the gain",
        operations=_norm_by_gain(lambda dy, x, gain, e: gain * _gain_gradient(dy, x, e)),
    ),
    backward(
        name="gain-gradient-missing",
        stage="gradient.rms_norm",
        sentence="gains are taken for constants",
        operations=_norm_by_gain(lambda dy, x, gain, e: 0 * _gain_gradient(dy, x, e)),
    ),
    backward(
        name="gain-gradient-in-bfloat16",
        stage="gradient.rms_norm",
        sentence="the gain's gradient is summed in bfloat16 in a float32 model",
        source="linkedin/Liger-Kernel PR 950",
        precision="float32",
        operations=_norm_by_gain(_half_sum),
    ),
    backward(
        name="residual-gradient-before-the-norm",
        stage="gradient.add",
        sentence="the residual's gradient is added before the pullback of the norm instead of after it",
        source="Dao-AILab/quack PR 53",
        operations=at(
            ("attention/carry", "ffn/carry"),
            swap(add=lambda n, x: x * 1.0, add_vjp=lambda dy, y, n, x: (dy, None)),
        ),
        decoder=composed(_carried),
    ),
    backward(
        name="residual-gradient-missing",
        stage="gradient.add",
        sentence="the gradient flows through the branches alone",
        operations=swap(add_vjp=lambda dy, y, x, branch: (None, dy)),
    ),
    backward(
        name="residual-gradient-doubled",
        stage="gradient.add",
        sentence="the gradient of the stream is added twice",
        operations=swap(add_vjp=lambda dy, y, x, branch: (2 * dy, dy)),
    ),
    backward(
        name="attention-gradient-missing",
        stage="gradient.add",
        sentence="the attention branch is detached: a fused operation has no pullback",
        source="huggingface/candle PR 3612, #3569; paiml/aprender PR 2203",
        operations=at("after_attention", swap(add_vjp=lambda dy, y, x, branch: (dy, None))),
    ),
    backward(
        name="matrix-gradient-halved",
        stage="gradient.linear",
        sentence="weights' gradients are divided by the batch a second time",
        operations=swap(linear_vjp=lambda dy, y, x, w: (linear(dy, w.T), right.linear_vjp(dy, y, x, w)[1] / 2)),
    ),
    backward(
        name="matrix-gradient-of-the-last-row",
        stage="gradient.linear",
        sentence="the batch loop overwrites the weights' gradients instead of adding to them",
        operations=swap(
            linear_vjp=lambda dy, y, x, w: (linear(dy, w.T), x[..., -1, :, :].swapaxes(-1, -2) @ dy[..., -1, :, :])
        ),
    ),
    backward(
        name="square-matrix-pulled-back-untransposed",
        stage="gradient.linear",
        sentence="the gradient of the input is multiplied by W instead of its transpose, where that fits",
        operations=swap(linear_vjp=_untransposed),
    ),
    backward(
        name="silu-slope-is-sigmoid",
        stage="gradient.silu",
        sentence="the derivative of SiLU lacks its second term",
        operations=_silu_slope(lambda x, s: s),
    ),
    backward(
        name="silu-slope-is-that-of-sigmoid",
        stage="gradient.silu",
        sentence="the derivative of the sigmoid takes the place of SiLU's",
        operations=_silu_slope(lambda x, s: s * (1 - s)),
    ),
    backward(
        name="silu-slope-without-argument",
        stage="gradient.silu",
        sentence="the second term of the derivative lacks its factor x",
        operations=_silu_slope(lambda x, s: s + s * (1 - s)),
    ),
    backward(
        name="silu-slope-from-output",
        stage="gradient.silu",
        sentence="the derivative is written as s + y (1 - y) with the output for the sigmoid",
        operations=swap(silu_vjp=lambda dy, y, x: (dy * (sigmoid(x) + y * (1 - y)),)),
    ),
    backward(
        name="silu-slope-overflows",
        stage="gradient.silu",
        sentence="the derivative by composition is infinite over infinite for very negative gates",
        source="Lightning-AI/lightning-thunder PR 2624; pytorch/pytorch #68425",
        operations=swap(silu_vjp=_naive_silu),
    ),
    backward(
        name="relu-slope-for-silu",
        stage="gradient.silu",
        sentence="the pullback is ReLU's",
        operations=_silu_slope(lambda x, s: x > 0),
    ),
    backward(
        name="gate-and-up-gradients-exchanged",
        stage="gradient.multiply",
        sentence="gradients of gate and up are exchanged",
        source="unslothai/unsloth #3314",
        operations=swap(multiply_vjp=lambda dy, y, a, b: (dy * a, dy * b)),
    ),
    backward(
        name="up-gradient-missing",
        stage="gradient.multiply",
        sentence="the up projection is detached",
        operations=swap(multiply_vjp=lambda dy, y, a, b: (dy * b, None)),
    ),
)
