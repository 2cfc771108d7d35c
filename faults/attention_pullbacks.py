"""Faults of pullbacks in attention: rotation, scores, softmax and mixing. Forward passes are right."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoderspec.faults.fault import swap
from decoderspec.faults.pullbacks import backward
from decoderspec.reference import operations as right
from decoderspec.reference.operations import Array


def _overflowing(query: Array, key: Array) -> Array:
    """One, but not a number where a masked score lies beyond what an exponential can bear above those that are seen."""
    products = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    top = np.max(right.scores(query, key), axis=-1, keepdims=True)
    return np.where(np.exp(products - top) < np.inf, 1.0, np.nan)


def _without_sum(dp: Array, p: Array, _s: Array) -> Any:
    return (p * dp,)


def _sum_over_queries(dp: Array, p: Array, _s: Array) -> Any:
    return (p * (dp - np.sum(p * dp, axis=-2, keepdims=True)),)


def _of_one_block(gradients: Any, size: int) -> Any:
    dq, dk = gradients
    return dq, dk * (np.arange(dk.shape[-2]) < size)[:, None]


FAULTS = (
    backward(
        name="rotation-pulled-forward",
        stage="gradient.rotate",
        sentence="the pullback of the rotation turns the same way again",
        operations=swap(rotate_vjp=lambda dy, y, x, table: (right.rotate(dy, table), None)),
    ),
    backward(
        name="rotation-without-pullback",
        stage="gradient.rotate",
        sentence="the gradient passes the rotation unchanged",
        operations=swap(rotate_vjp=lambda dy, y, x, table: (dy * 1.0, None)),
    ),
    backward(
        name="scale-missing-in-pullback",
        stage="gradient.scores",
        sentence="the pullback of the scores forgets the scale",
        operations=swap(scores_vjp=lambda ds, s, q, k: (ds @ k, ds.swapaxes(-1, -2) @ q)),
    ),
    backward(
        name="key-gradient-missing",
        stage="gradient.scores",
        sentence="keys are detached, as from a cache",
        operations=swap(scores_vjp=lambda ds, s, q, k: (right.scores_vjp(ds, s, q, k)[0], None)),
    ),
    backward(
        name="query-and-key-gradients-missing",
        stage="gradient.scores",
        sentence="a fused attention gives no gradient to queries and keys",
        source="huggingface/candle PR 3612, #3569; candle-org/candle PR 95",
        operations=swap(scores_vjp=lambda ds, s, q, k: (None, None)),
    ),
    backward(
        name="key-gradient-not-transposed",
        stage="gradient.scores",
        sentence="the gradient of the keys is summed over keys instead of queries",
        operations=swap(scores_vjp=lambda ds, s, q, k: (ds @ k / np.sqrt(q.shape[-1]), ds @ q / np.sqrt(q.shape[-1]))),
    ),
    backward(
        name="softmax-pullback-without-sum",
        stage="gradient.softmax",
        sentence="the row sum of the softmax pullback is left out",
        operations=swap(softmax_vjp=_without_sum),
    ),
    backward(
        name="softmax-pullback-over-queries",
        stage="gradient.softmax",
        sentence="the sum of the softmax pullback runs over queries",
        operations=swap(softmax_vjp=_sum_over_queries),
    ),
    backward(
        name="softmax-pullback-diagonal",
        stage="gradient.softmax",
        sentence="only the diagonal p (1 - p) of the softmax's derivative is used",
        operations=swap(softmax_vjp=lambda dp, p, s: (dp * p * (1 - p),)),
    ),
    backward(
        name="masked-branch-overflows",
        stage="gradient.softmax",
        sentence="a masked exponential that overflows is discarded forward, and is zero times infinity backward",
        source="jax-ml/jax #17117, #17070; pytorch/pytorch #41508, PR 196170",
        operations=swap(
            scores=lambda q, k: right.scores(q, k),
            scores_vjp=lambda ds, s, q, k: right.scores_vjp(ds * _overflowing(q, k), s, q, k),
        ),
    ),
    backward(
        name="key-gradient-of-one-block",
        stage="gradient.scores",
        breaks=("GRA-1",),
        sentence="the pullback covers one block of 32 keys",
        operations=swap(scores_vjp=lambda ds, s, q, k: _of_one_block(right.scores_vjp(ds, s, q, k), 32)),
    ),
    backward(
        name="value-gradient-missing",
        stage="gradient.mix",
        sentence="values are detached, as from a cache",
        operations=swap(mix_vjp=lambda do, o, p, v: (right.mix_vjp(do, o, p, v)[0], None)),
    ),
    backward(
        name="value-gradient-not-transposed",
        stage="gradient.mix",
        sentence="the gradient of the values is averaged by the weights themselves, not transposed",
        operations=swap(mix_vjp=lambda do, o, p, v: (right.mix_vjp(do, o, p, v)[0], p @ do)),
    ),
    backward(
        name="weight-gradient-missing",
        stage="gradient.mix",
        sentence="attention weights are detached",
        operations=swap(mix_vjp=lambda do, o, p, v: (None, right.mix_vjp(do, o, p, v)[1])),
    ),
)
