"""Faults of the projections to queries, keys and values, of splitting into heads, and of merging them again."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.compositions import always_from, branches, composed, exchanged, heads_of, projected, turned
from decoderspec.faults.fault import Fault, Weights, at, swap
from decoderspec.reference import decoder as right
from decoderspec.reference.operations import Array, Operations, inverse_root, linear, merge, rotate, rows, split
from decoderspec.spec.config import Config

ROLES = ("attention.query", "attention.key", "attention.value")
FLAT = tuple(role + "/flat" for role in ROLES)
VALUES = ("VAL-1", "VAL-2")
three = partial(Fault, family="heads", stage=ROLES[0], also=ROLES[1:], breaks=VALUES)
query = partial(Fault, family="heads", stage=ROLES[0], breaks=VALUES)
key = partial(Fault, family="heads", stage=ROLES[1], breaks=VALUES)
value = partial(Fault, family="heads", stage=ROLES[2], breaks=VALUES)
merging = partial(Fault, family="heads", stage="attention.merged", breaks=VALUES)
output = partial(Fault, family="heads", stage="attention.output", breaks=VALUES)


def _reshaped(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-2], heads, x.shape[-2], x.shape[-1] // heads)


def _interleaved(x: Array, heads: int) -> Array:
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -3)


def _batch_for_heads(y: Array) -> Array:
    return np.ascontiguousarray(y.swapaxes(-4, -3)).reshape(y.shape)


def _shared(heads: Array, groups: Array) -> Array:
    return np.asarray(heads[..., groups, :, :])


def _of_groups(y: Array, tiled: bool) -> Array:
    """Every second head serves two: the pairs that belong together, or the pattern repeated."""
    count = y.shape[-3]
    kept = np.arange(count) // 2 * 2 if not tiled else np.arange(count) % max(1, count // 2)
    return _shared(y, kept)


def _normed(x: Array) -> Array:
    return np.asarray(x * inverse_root(x, 1e-6))


def _untied_input(role: str) -> Any:
    """One of the three projections reads the stream before its norm."""

    def block(ops: Operations, config: Config, weights: Weights, x: Array, place: str) -> Array:
        def attend(ops: Operations, config: Config, weights: Weights, n: Array, place: str) -> Array:
            here = place + "attention."
            inputs = {"query": n, "key": n, "value": n, role: x}
            q, k, v = (projected(ops, config, weights, inputs[r], here, r) for r in ("query", "key", "value"))
            merged = ops.merge(here + "merged", right.attend(ops, *turned(ops, config, q, k, v, here), here))
            return ops.linear(here + "output", merged, weights["attention.output.weight"])

        return branches(attend)(ops, config, weights, x, place)

    return composed(block)


def _fused_by_head(ops: Operations, config: Config, weights: Weights, n: Array, place: str) -> Array:
    """One product for all three, whose columns are read head by head as query, key and value."""
    here = place + "attention."
    flat = [ops.linear(f"{here}{r}/flat", n, weights[f"attention.{r}.weight"]) for r in ("query", "key", "value")]
    fused = np.concatenate(flat, axis=-1)
    packed = fused.reshape(*fused.shape[:-1], config.heads, 3, config.head_width)
    q, k, v = (np.moveaxis(packed[..., i, :], -2, -3) for i in range(3))
    merged = ops.merge(here + "merged", right.attend(ops, *turned(ops, config, q, k, v, here), here))
    return ops.linear(here + "output", merged, weights["attention.output.weight"])


def _key_for_value(ops: Operations, config: Config, q: Array, k: Array, v: Array, here: str) -> Any:
    query, key, _ = turned(ops, config, q, k, v, here)
    return query, key, key


def _only_even_heads(y: Array) -> Array:
    y = y.copy()
    if y.shape[-3] % 2:
        y[..., -1, :, :] = 0.0
    return y


FAULTS = (
    three(
        name="heads-without-transpose",
        sentence="`[B, T, d]` is reshaped straight to `[B, h, T, w]`: positions and features are scrambled",
        source="reczoo/FuxiCTR #30; rish-16/tokenlearner-pytorch #1",
        breaks=(*VALUES, "CAU-1"),
        operations=swap(split=_reshaped, split_vjp=lambda dy, y, x, heads: (dy.reshape(x.shape), None)),
    ),
    three(
        name="heads-interleaved",
        sentence="features are dealt out to heads in turn instead of in slices",
        source="Lightning-AI/litgpt #891; vllm-project/vllm #42803; awslabs/slapo PR 46",
        operations=swap(split=_interleaved),
    ),
    three(
        name="heads-and-batch-exchanged",
        sentence="batch and head axes are exchanged when unflattening",
        source="gazelle93/Transformer-Various-Positional-Encoding #1",
        breaks=(*VALUES, "BAT-2", "BAT-3"),
        operations=swap(split=lambda x, heads: _batch_for_heads(split(x, heads))),
    ),
    three(
        name="fused-projection-read-by-head",
        sentence="one fused matrix is read head by head though queries, keys and values lie one after the other",
        source="Lightning-AI/litgpt PR 1013; vllm-project/vllm PR 53114",
        stage="attention.rotated_query",
        also=("attention.rotated_key", "attention.heads"),
        decoder=composed(branches(_fused_by_head)),
    ),
    three(
        name="heads-reversed-in-queries",
        sentence="the heads of the queries stand in the other order than those of the keys",
        also=(),
        operations=at(ROLES[0], swap(split=lambda x, heads: split(x, heads)[..., ::-1, :, :])),
    ),
    three(
        name="projections-transposed",
        sentence="the three square matrices are applied as they are stored elsewhere, `[out, in]`",
        operations=at(
            FLAT,
            swap(
                linear=lambda x, weight: linear(x, weight.T),
                linear_vjp=lambda dy, y, x, weight: (linear(dy, weight), rows(dy).swapaxes(-1, -2) @ rows(x)),
            ),
        ),
    ),
    three(
        name="odd-last-head-empty",
        sentence="a loop over pairs of heads leaves the last of an odd number empty",
        operations=swap(split=lambda x, heads: _only_even_heads(split(x, heads))),
    ),
    key(
        name="keys-shared-by-all-heads",
        sentence="keys of the first head serve all heads, as with a single key head",
        operations=at(ROLES[1], swap(split=lambda x, heads: _shared(split(x, heads), np.zeros(heads, int)))),
    ),
    value(
        name="values-shared-by-all-heads",
        sentence="values of the first head serve all heads",
        operations=at(ROLES[2], swap(split=lambda x, heads: _shared(split(x, heads), np.zeros(heads, int)))),
    ),
    key(
        name="keys-grouped-in-pairs",
        sentence="two heads share keys and values, as with grouped queries",
        also=ROLES[2:],
        operations=at(ROLES[1:], swap(split=lambda x, heads: _of_groups(split(x, heads), tiled=False))),
    ),
    key(
        name="keys-grouped-and-tiled",
        sentence="keys and values of half the heads are tiled instead of repeated",
        also=ROLES[2:],
        operations=at(ROLES[1:], swap(split=lambda x, heads: _of_groups(split(x, heads), tiled=True))),
    ),
    query(
        name="query-of-the-stream",
        sentence="queries are projected from the stream before its norm",
        decoder=_untied_input("query"),
    ),
    key(
        name="key-of-the-stream",
        sentence="keys are projected from the stream before its norm",
        decoder=_untied_input("key"),
    ),
    value(
        name="value-of-the-stream",
        sentence="values are projected from the stream before its norm",
        decoder=_untied_input("value"),
    ),
    query(
        name="queries-and-keys-normalized",
        sentence="queries and keys are normalized by head before they are rotated",
        also=ROLES[1:2],
        operations=at(ROLES[:2], swap(split=lambda x, heads: _normed(split(x, heads)))),
    ),
    query(
        name="queries-and-keys-normalized-after-rotation",
        sentence="queries and keys are normalized by head after they were rotated",
        stage="attention.rotated_query",
        also=("attention.rotated_key",),
        operations=swap(rotate=lambda x, table: _normed(rotate(x, table))),
    ),
    query(
        name="query-scaled-twice",
        sentence="queries are scaled by the root of the head width, and so are the scores",
        operations=at(ROLES[0], swap(split=lambda x, heads: split(x, heads) / np.sqrt(x.shape[-1] // heads))),
    ),
    query(
        name="query-weight-of-the-first-block",
        sentence="the query matrix of block 0 is used in all blocks",
        decoder=always_from(lambda layer: 0, "attention.query"),
    ),
    key(
        name="key-weight-is-query-weight",
        sentence="keys are projected with the query's matrix",
        decoder=composed(
            lambda ops, config, weights, x, place: right.block(
                ops, config, {**weights, "attention.key.weight": weights["attention.query.weight"]}, x, 0, place
            )
        ),
    ),
    value(
        name="value-weight-is-key-weight",
        sentence="values are projected with the key's matrix",
        decoder=composed(
            lambda ops, config, weights, x, place: right.block(
                ops, config, {**weights, "attention.value.weight": weights["attention.key.weight"]}, x, 0, place
            )
        ),
    ),
    value(
        name="value-is-key",
        sentence="the keys, not yet rotated, are averaged instead of the values",
        stage="attention.heads",
        decoder=heads_of(lambda ops, config, q, k, v, here: (*turned(ops, config, q, k, v, here)[:2], k)),
    ),
    value(
        name="value-is-rotated-key",
        sentence="the rotated keys are averaged instead of the values",
        stage="attention.heads",
        decoder=heads_of(_key_for_value),
    ),
    merging(
        name="merged-without-transpose",
        sentence="heads are merged without moving their axis back: tokens get pieces of other tokens",
        source="jsbaan/transformer-from-scratch PR 6; ajhalthor/Transformer-Neural-Network PR 4",
        breaks=(*VALUES, "CAU-1"),
        operations=swap(merge=lambda x: x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3] * x.shape[-1])),
    ),
    merging(
        name="merged-interleaved",
        sentence="features of the heads alternate in the merged row",
        operations=swap(merge=lambda x: np.moveaxis(x, -3, -1).reshape(*x.shape[:-3], x.shape[-2], -1)),
    ),
    merging(
        name="merged-in-reverse",
        sentence="heads are merged in the reverse order",
        operations=swap(merge=lambda x: merge(x[..., ::-1, :, :])),
    ),
    output(
        name="output-projection-missing",
        sentence="merged heads are added to the stream as they are",
        operations=at(
            "attention.output", swap(linear=lambda x, weight: x * 1.0, linear_vjp=lambda dy, y, x, w: (dy, None))
        ),
    ),
    output(
        name="output-projection-transposed",
        sentence="the output matrix is applied as it is stored elsewhere, `[out, in]`",
        operations=at("attention.output", swap(linear=lambda x, weight: linear(x, weight.T))),
    ),
    merging(
        name="merged-of-eight-heads",
        breaks=("VAL-1", "VAL-2"),
        sentence="a kernel has registers for eight heads, and further ones are not written",
        operations=swap(merge=lambda x: merge(x * (np.arange(x.shape[-3]) < 8)[:, None, None])),
    ),
    output(
        name="output-halved",
        sentence="the output projection is scaled by a constant of another model",
        operations=at("attention.output", swap(linear=lambda x, weight: linear(x, weight) / 2)),
    ),
    three(
        name="query-and-key-exchanged",
        sentence="a loader puts the query's matrix where the key's belongs, and the reverse",
        family="adapter",
        decoder=exchanged("attention.query.weight", "attention.key.weight"),
    ),
    key(
        name="key-and-value-exchanged",
        sentence="a loader puts the key's matrix where the value's belongs, and the reverse",
        family="adapter",
        also=ROLES[2:],
        decoder=exchanged("attention.key.weight", "attention.value.weight"),
    ),
    value(
        name="value-and-output-exchanged",
        sentence="a loader puts the value's matrix where the output's belongs, and the reverse",
        family="adapter",
        decoder=exchanged("attention.value.weight", "attention.output.weight"),
    ),
)
