"""Faults of the gated feed-forward."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from decoderspec.faults.compositions import branches, composed
from decoderspec.faults.fault import Fault, Weights, at, swap
from decoderspec.faults.numbers import rounded
from decoderspec.reference.operations import Array, Operations, linear, sigmoid, silu
from decoderspec.spec.config import Config

activation = partial(Fault, family="feed_forward", stage="ffn.silu", breaks=("VAL-1", "VAL-2"))
product = partial(Fault, family="feed_forward", stage="ffn.product", breaks=("VAL-1", "VAL-2"))
matrices = partial(
    Fault, family="feed_forward", stage="ffn.gate", also=("ffn.up", "ffn.output"), breaks=("VAL-1", "VAL-2")
)

_erf = np.frompyfunc(math.erf, 1, 1)


def _gelu(x: Array) -> Array:
    return np.asarray(x * (1 + _erf(x / np.sqrt(2)).astype(float)) / 2)


def _tanh_gelu(x: Array) -> Array:
    return np.asarray(x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2)


def _interleaved_halves(ops: Operations, config: Config, weights: Weights, n: Array, place: str) -> Array:
    """Gate and up in one product, whose columns are then read alternately."""
    both = [ops.linear(f"{place}ffn.{role}/flat", n, weights[f"ffn.{role}.weight"]) for role in ("gate", "up")]
    fused = np.concatenate(both, axis=-1)
    hidden = ops.multiply(place + "ffn.product", ops.silu(place + "ffn.silu", fused[..., 0::2]), fused[..., 1::2])
    return ops.linear(place + "ffn.output", hidden, weights["ffn.down.weight"])


def _activated_product(ops: Operations, config: Config, weights: Weights, n: Array, place: str) -> Array:
    """The product first, then its activation."""
    gate = ops.linear(place + "ffn.gate", n, weights["ffn.gate.weight"])
    up = ops.linear(place + "ffn.up", n, weights["ffn.up.weight"])
    hidden = ops.silu(place + "ffn.product", ops.multiply(place + "ffn.product/gated", gate, up))
    return ops.linear(place + "ffn.output", hidden, weights["ffn.down.weight"])


def _without_tail(x: Array, weight: Array, step: int = 4) -> Array:
    """The last features of a width that is no multiple of the step are left out."""
    whole = x.shape[-1] // step * step or x.shape[-1]
    return linear(x[..., :whole], weight[:whole])


FAULTS = (
    Fault(
        name="product-of-64-columns",
        family="feed_forward",
        stage="ffn.product",
        breaks=("VAL-1", "VAL-2"),
        sentence="a tile is 64 columns wide, and the columns after it are not written",
        operations=swap(multiply=lambda a, b: a * b * (np.arange(a.shape[-1]) < 64)),
    ),
    matrices(
        name="gate-and-up-exchanged",
        sentence="gate and up are exchanged, by argument order or by packed halves",
        source="ml-explore/mlx-lm PR 767; nntrainer/nntrainer PR 4194; flashinfer-ai/flashinfer PR 4130",
        stage="ffn.silu",
        also=("ffn.gate", "ffn.up"),
        decoder=composed(
            branches(
                feed=lambda ops, config, weights, n, place: ops.linear(
                    place + "ffn.output",
                    ops.multiply(
                        place + "ffn.product",
                        ops.linear(place + "ffn.gate", n, weights["ffn.gate.weight"]),
                        ops.silu(place + "ffn.silu", ops.linear(place + "ffn.up", n, weights["ffn.up.weight"])),
                    ),
                    weights["ffn.down.weight"],
                )
            )
        ),
    ),
    activation(
        name="gelu-for-silu",
        sentence="the activation is the exact GELU",
        source="huggingface/candle #3745; NVIDIA-NeMo/Megatron-Bridge PR 4661; ml-explore/mlx-examples #1057",
        operations=swap(silu=_gelu),
    ),
    activation(
        name="tanh-gelu-for-silu",
        sentence="the activation is the approximate GELU, through tanh",
        source="huggingface/candle #3745",
        operations=swap(silu=_tanh_gelu),
    ),
    activation(
        name="quick-gelu-for-silu",
        sentence="the argument of the sigmoid is multiplied by 1.702",
        operations=swap(silu=lambda x: x * sigmoid(1.702 * x)),
    ),
    activation(
        name="relu-for-silu",
        sentence="the activation is ReLU",
        operations=swap(silu=lambda x: np.maximum(x, 0.0), silu_vjp=lambda dy, y, x: (dy * (x > 0),)),
    ),
    activation(
        name="sigmoid-for-silu",
        sentence="the gate is a bare sigmoid, as in the first gated linear unit",
        operations=swap(silu=sigmoid, silu_vjp=lambda dy, y, x: (dy * y * (1 - y),)),
    ),
    activation(
        name="tanh-for-silu",
        sentence="the activation is tanh",
        operations=swap(silu=np.tanh, silu_vjp=lambda dy, y, x: (dy * (1 - y * y),)),
    ),
    activation(
        name="hard-swish-for-silu",
        sentence="a piecewise linear sigmoid, made for phones",
        operations=swap(silu=lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    ),
    activation(
        name="activation-missing",
        sentence="the gate is not activated: a bilinear unit",
        operations=swap(silu=lambda x: x * 1.0, silu_vjp=lambda dy, y, x: (dy,)),
    ),
    activation(
        name="silu-overflows",
        sentence="the sigmoid as exp(x) / (1 + exp(x)), which is infinite over infinite for large gates",
        source="Lightning-AI/lightning-thunder PR 2624 (its derivative)",
        operations=swap(silu=lambda x: x * (np.exp(x) / (1 + np.exp(x)))),
        breaks=("SHP-1",),
    ),
    activation(
        name="silu-clamped-at-seven",
        sentence="gates are clamped at 7, as in one released model",
        operations=swap(silu=lambda x: silu(np.minimum(x, 7.0))),
    ),
    activation(
        name="silu-in-float32",
        sentence="the activation is computed in float32 inside float64",
        source="patrick-kidger/equinox PR 723",
        operations=swap(silu=lambda x: rounded(silu(rounded(x, "float32")), "float32")),
    ),
    activation(
        name="silu-of-bfloat16",
        sentence="a mixed-precision cast reaches the activation of a float32 model",
        precision="float32",
        operations=swap(silu=lambda x: silu(rounded(x, "bfloat16"))),
    ),
    activation(
        name="silu-by-table",
        sentence="the sigmoid is a rational approximation good to three digits",
        operations=swap(silu=lambda x: x * (0.5 + 0.5 * (x / 2) / (1 + np.abs(x / 2)))),
    ),
    product(
        name="gate-added",
        sentence="gate and up are added instead of multiplied",
        operations=swap(multiply=lambda a, b: a + b, multiply_vjp=lambda dy, y, a, b: (dy, dy)),
    ),
    product(
        name="up-left-out",
        sentence="the activated gate goes down alone",
        operations=swap(multiply=lambda a, b: a * 1.0, multiply_vjp=lambda dy, y, a, b: (dy, None)),
    ),
    product(
        name="gate-left-out",
        sentence="the up projection goes down alone",
        operations=swap(multiply=lambda a, b: b * 1.0, multiply_vjp=lambda dy, y, a, b: (None, dy)),
    ),
    product(
        name="up-plus-one",
        sentence="one is added to the up projection, as in one released model",
        operations=swap(multiply=lambda a, b: a * (b + 1), multiply_vjp=lambda dy, y, a, b: (dy * (b + 1), dy * a)),
    ),
    product(
        name="up-activated-too",
        sentence="both projections are activated",
        operations=swap(multiply=lambda a, b: a * silu(b)),
    ),
    product(
        name="product-activated",
        sentence="gate and up are multiplied first, then activated",
        decoder=composed(branches(feed=_activated_product)),
    ),
    product(
        name="gate-and-up-interleaved",
        sentence="one fused product whose columns are read alternately though they lie in halves",
        stage="ffn.silu",
        decoder=composed(branches(feed=_interleaved_halves)),
    ),
    matrices(
        name="down-scaled-by-two",
        sentence="a residual scale of the initialization is applied in the forward pass",
        stage="ffn.output",
        also=(),
        operations=at("ffn.output", swap(linear=lambda x, weight: 2 * linear(x, weight))),
    ),
    matrices(
        name="gate-weight-for-up",
        sentence="the up projection is computed with the gate's matrix",
        stage="ffn.up",
        also=(),
        decoder=composed(
            lambda ops, config, weights, x, place: branches()(
                ops, config, {**weights, "ffn.up.weight": weights["ffn.gate.weight"]}, x, place
            )
        ),
    ),
    matrices(
        name="product-without-its-tail",
        sentence="a loop in steps of four leaves out the features beyond the last whole step",
        stage="attention.query",
        also=("attention.key", "attention.value", "attention.output", "ffn.gate", "ffn.up", "ffn.output"),
        operations=swap(linear=_without_tail),
    ),
    matrices(
        name="products-in-float32",
        sentence="operands of matrix products are cast to float32",
        source="huggingface/transformers #24519",
        stage="attention.query",
        also=("attention.key", "attention.value", "attention.output", "ffn.gate", "ffn.up", "ffn.output"),
        operations=swap(linear=lambda x, weight: linear(rounded(x, "float32"), rounded(weight, "float32"))),
    ),
    matrices(
        name="products-in-bfloat16",
        sentence="operands of matrix products are bfloat16 in a model that says float32",
        stage="attention.query",
        also=("attention.key", "attention.value", "attention.output", "ffn.gate", "ffn.up", "ffn.output"),
        precision="float32",
        operations=swap(linear=lambda x, weight: linear(rounded(x, "bfloat16"), rounded(weight, "bfloat16"))),
    ),
)
