"""Equivalent mutants: changes that look like faults and are none, with the proof that nothing outside can see them.

They are run as correct implementations, which must pass. What shows in the bits alone is not here: a requirement on
bits sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from decoderspec.faults.fault import Fault, swap
from decoderspec.reference.operations import (
    Array,
    causal,
    inverse_root,
    rms_norm,
    rotary,
    rotate,
    scores,
    silu,
    softmax,
)


@dataclass(frozen=True, kw_only=True)
class Equivalent(Fault):
    """A fault that is none, and why."""

    proof: str


same = partial(Equivalent, family="equivalent", breaks=())


def _finite_mask(query: Array, key: Array) -> Array:
    return np.where(causal(query.shape[-2]), scores(query, key), -1e300)


def _mask_after(query: Array, key: Array) -> Array:
    return np.asarray(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]))


def _renormalized(s: Array) -> Array:
    visible = causal(s.shape[-1])
    top = np.max(np.where(visible, s, -np.inf), axis=-1, keepdims=True)
    e = np.where(visible, np.exp(np.minimum(s - top, 0.0)), 0.0)
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def _padded_to_block(s: Array) -> Array:
    """Keys padded to a multiple of 8, the padding masked as every key after the query is."""
    wide = np.concatenate([s, np.full((*s.shape[:-1], -s.shape[-1] % 8), -np.inf)], axis=-1)
    return softmax(wide)[..., : s.shape[-1]]


def _turned_back_twice(x: Array, table: Array) -> Array:
    cos, sin = table[..., :1, :, :], table[..., 1:, :, :]
    back = np.concatenate([cos, -sin], axis=-3)
    return rotate(rotate(rotate(x, table), table), back)


EQUIVALENT: tuple[Equivalent, ...] = (
    same(
        name="mask-fills-minus-1e300",
        stage="attention.weights",
        sentence="masked scores are set to a finite number",
        operations=swap(scores=_finite_mask),
        proof="A visible score of every row is the maximum m, and |m| < 1e299 for every finite case, so that the masked"
        " exponential is exp(-1e300 - m), which underflows to exactly 0. With a smaller stand-in it is a fault.",
    ),
    same(
        name="mask-after-the-exponential",
        stage="attention.weights",
        sentence="the mask is applied to the exponentials and rows are normalized afterwards",
        operations=swap(scores=_mask_after, softmax=_renormalized),
        proof="The row's sum runs over the visible exponentials alone, which is the softmax over the visible keys; the"
        " maximum is taken over the visible ones, so that no bit depends on the future.",
    ),
    same(
        name="padding-keys-masked",
        stage="attention.weights",
        sentence="keys are padded to a whole block",
        source="flashinfer-ai/flashinfer PR 5090 (where the padding is not masked)",
        operations=swap(softmax=_padded_to_block),
        proof="A padding key stands after every query, so the causal mask gives it the exponential exp(-inf) = 0;"
        " adding zeros to a sum changes no bit of it. It shows where queries are fewer than keys, in a cache.",
    ),
    same(
        name="rotation-there-and-back",
        stage="attention.rotated_query",
        sentence="a rotation is applied twice and undone once",
        operations=swap(rotate=_turned_back_twice),
        proof="R(t) R(t) R(-t) = R(t); rotations are orthogonal, so rounding stays of the same size.",
    ),
    same(
        name="gain-applied-first",
        stage="attention_norm",
        sentence="the gain is multiplied to the row before its root is",
        operations=swap(rms_norm=lambda x, gain, epsilon: (x * gain) * inverse_root(x, epsilon)),
        proof="Multiplication commutes: (x g) r = (x r) g. The statistic is of x itself. Only roundings differ.",
    ),
    same(
        name="silu-by-tanh",
        stage="ffn.silu",
        sentence="the sigmoid is half of one plus the hyperbolic tangent of half the argument",
        operations=swap(silu=lambda x: np.where(x > -1, x * (0.5 + 0.5 * np.tanh(x / 2)), silu(x))),
        proof="sigmoid(x) = (1 + tanh(x / 2)) / 2 for every real x. (Below -1 the form cancels, and is not used.)",
    ),
    same(
        name="norm-scaled-by-a-power-of-two",
        stage="attention_norm",
        sentence="rows are divided by 4 against overflow and epsilon by 16",
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x / 4, gain, epsilon / 16)),
        proof="Numerator and root scale alike, x / 4 over sqrt(m / 16 + e / 16), and powers of two are exact.",
    ),
)

UNSEEN_IN_LOGITS: tuple[Equivalent, ...] = (
    same(
        name="positions-from-one",
        stage="attention.rotated_query",
        sentence="queries and keys both stand one position too far",
        source="skyzh/tiny-llm PR 46; Blaizzy/mlx-vlm #1983 (with a cache)",
        operations=swap(rotary=lambda positions, width, base: rotary(positions + 1, width, base)),
        proof="R(p + 1)q . R(s + 1)k = q . R(s - p)k: scores depend on differences of positions alone. The rotated"
        " stages differ, so that it is a fault where stages are handed out (VAL-2).",
    ),
)
