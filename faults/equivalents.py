"""Equivalent mutants: changes that look like faults and are none, with the proof that nothing outside can see them.

They are run as correct implementations, which must pass. What shows in the bits alone is not here: a requirement on
bits sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from decoderspec.faults.fault import Fault, swap
from decoderspec.faults.numbers import rounded
from decoderspec.reference.operations import (
    Array,
    Gradients,
    causal,
    inverse_root,
    rms_norm,
    rotary,
    rotate,
    rows,
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


def _scattered_in_random_order(dx: Array, _x: Array, table: Array, tokens: Array) -> Gradients:
    """Rows are added one by one, in another order in each call."""
    dtable = np.zeros((*dx.shape[:-3], *table.shape[-2:]))
    flat = rows(dx)
    for place in np.random.default_rng().permutation(tokens.size):
        dtable[..., tokens.flat[place], :] += flat[..., place, :]
    return dtable, None


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
    same(
        name="lookup-gradient-in-random-order",
        stage="gradient.embed",
        sentence="atomic additions: rows of a repeated id are added in another order in each call",
        source="apache/mxnet #11899; pytorch/pytorch PR 187682 and PR 12217; tinygrad/tinygrad PR 16052",
        operations=swap(embed_vjp=_scattered_in_random_order),
        proof="Addition commutes, and every order of the sum has roundings of the same size. That a second call gives"
        " the same gradients is required within the noise (GRA-3), not to the bit.",
    ),
    same(
        name="bfloat16-scores",
        stage="attention.weights",
        precision="bfloat16",
        sentence="scores are rounded to bfloat16 before the softmax of a bfloat16 model",
        operations=swap(scores=lambda q, k: rounded(scores(q, k), "bfloat16")),
        proof="A score's operands are rounded to bfloat16 by declaration, which moves it by as much as its own rounding"
        " does. In a model that declares float32 it is a fault (scores-in-bfloat16).",
    ),
    same(
        name="bfloat16-norm-cast-early",
        stage="attention_norm",
        precision="bfloat16",
        sentence="rows of a bfloat16 model are rounded before the gain and again after it",
        source="huggingface/transformers #33133, #30236",
        operations=swap(rms_norm=lambda x, gain, epsilon: rounded(x * inverse_root(x, epsilon), "bfloat16") * gain),
        proof="The second rounding is as large as the one that is declared, so that the sum is at most twice, in the"
        " mean 1.4 times, the noise, and limits lie above. Where the norm declares float32 it is a fault.",
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

OUT_OF_REACH: tuple[tuple[str, str], ...] = (
    ("ids, targets, parameters or upstream gradients that are strided views are read as if contiguous",
     "what the suite hands over is contiguous: no requirement says that anything else must be taken"),
    ("a mask for fewer queries than keys is aligned at the wrong corner; padding keys are seen in decoding",
     "in a whole forward pass queries and keys are as many; it needs the contract of a cache"),
    ("a construction that fails has already drawn from the caller's generator",
     "the protocol hands over a seed, not a generator; the reference's own tests see to it"),
    ("the optimizer steps or decays a table twice that is listed under two names",
     "the suite takes no step; a table that is listed twice fails WGT-1"),
)  # fmt: skip
