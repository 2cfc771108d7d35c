"""Faults of the rotary positions: the pairs, the frequencies, the angles, the table, and what is rotated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.compositions import branches, composed, heads_of, table
from decoderspec.faults.fault import Fault, Substitution, Weights, at, swap
from decoderspec.faults.numbers import rounded
from decoderspec.reference import decoder as right
from decoderspec.reference.operations import Array, Operations, angles, rotary, rotate
from decoderspec.spec.config import Config

turning = partial(
    Fault, family="rotary", stage="attention.rotated_query", also=("attention.rotated_key",), breaks=("VAL-1", "VAL-2")
)


def adjacent(even: Array, odd: Array) -> Array:
    """Features 0, 2, 4, .. and 1, 3, 5, .. in one row."""
    pairs = np.stack([even, odd], axis=-1)
    return pairs.reshape(*pairs.shape[:-2], -1)


def halves(x: Array, turn: Array) -> Array:
    """Feature `i` is paired with `i + w/2`."""
    cos, sin = turn[..., None, None, 0, :, :], turn[..., None, None, 1, :, :]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _pairwise_table_by_halves(x: Array, turn: Array) -> Array:
    cos, sin = (np.repeat(turn[..., None, None, i, :, :], 2, axis=-1) for i in (0, 1))
    a, b = np.split(x, 2, axis=-1)
    return np.asarray(x * cos + np.concatenate([-b, a], axis=-1) * sin)


def _not_interleaved(x: Array, turn: Array) -> Array:
    y = rotate(x, turn)
    return np.concatenate([y[..., 0::2], y[..., 1::2]], axis=-1)


def _by_head(x: Array, turn: Array) -> Array:
    """The table of a token is indexed by the head."""
    count, tokens = x.shape[-3], x.shape[-2]
    place = np.minimum(np.arange(count), tokens - 1)
    cos, sin = (turn[..., i, place, :][..., None, :, None, :] for i in (0, 1))
    a, b = x[..., 0::2], x[..., 1::2]
    return adjacent(a * cos - b * sin, a * sin + b * cos)


def _first_pairs_only(x: Array, turn: Array, share: float) -> Array:
    kept = 2 * int(np.ceil(share * (x.shape[-1] // 2)))
    return np.where(np.arange(x.shape[-1]) < kept, rotate(x, turn), x)


def _without_last_pair(x: Array, turn: Array) -> Array:
    return np.where(np.arange(x.shape[-1]) < x.shape[-1] - 2, rotate(x, turn), x)


def _wrong_sign(x: Array, turn: Array) -> Array:
    cos, sin = turn[..., None, None, 0, :, :], turn[..., None, None, 1, :, :]
    a, b = x[..., 0::2], x[..., 1::2]
    return adjacent(a * cos + b * sin, a * sin + b * cos)


def _in_place(x: Array, turn: Array) -> Array:
    """The second line of the rotation reads what the first has already written."""
    cos, sin = turn[..., None, None, 0, :, :], turn[..., None, None, 1, :, :]
    a = x[..., 0::2] * cos - x[..., 1::2] * sin
    return adjacent(a, a * sin + x[..., 1::2] * cos)


def _back(x: Array, turn: Array) -> Array:
    return rotate(x, turn * np.array([1.0, -1.0])[:, None, None])


def by_frequency(frequency: Callable[[int, float], Any]) -> Substitution:
    """Another frequency for each pair, from width and base."""

    def table(positions: Array, width: int, base: float) -> Array:
        angle = positions[:, None] * frequency(width, base)
        return np.stack([np.cos(angle), np.sin(angle)])

    return swap(rotary=table)


def at_positions(change: Callable[[Array], Array]) -> Substitution:
    """Other positions."""
    return swap(rotary=lambda positions, width, base: rotary(change(positions), width, base))


def _shifted_query(ops: Operations, config: Config, q: Array, k: Array, v: Array, here: str) -> Any:
    moved = table(ops, config, q, here + "moved/", np.arange(q.shape[-2]) + 1)
    key = ops.rotate(here + "rotated_key", k, table(ops, config, q, here))
    return ops.rotate(here + "rotated_query", q, moved), key, v


def _values_too(ops: Operations, config: Config, q: Array, k: Array, v: Array, here: str) -> Any:
    turn = table(ops, config, q, here)
    rotated = ops.rotate(here + "rotated_query", q, turn), ops.rotate(here + "rotated_key", k, turn)
    return *rotated, ops.rotate(here + "heads/rotated_value", v, turn)


def _before_the_split(ops: Operations, config: Config, weights: Weights, n: Array, place: str) -> Array:
    """Rotation over the model width, then the split into heads."""
    here = place + "attention."
    flat = [ops.linear(f"{here}{r}/flat", n, weights[f"attention.{r}.weight"]) for r in ("query", "key", "value")]
    turn = ops.rotary(here + "rotated_query/table", np.arange(n.shape[-2]), config.model_width, config.rope_base)
    wide = [ops.split(f"{here}{r}/wide", x, 1) for r, x in zip(("query", "key"), flat, strict=False)]
    whole = [ops.merge(here + "rotated/flat", ops.rotate(here + "rotated/wide", x, turn)) for x in wide]
    q, k = (ops.split(here + r, x, config.heads) for r, x in zip(("rotated_query", "rotated_key"), whole, strict=True))
    merged = ops.merge(here + "merged", right.attend(ops, q, k, ops.split(here + "value", flat[2], config.heads), here))
    return ops.linear(here + "output", merged, weights["attention.output.weight"])


_identity = swap(rotate=lambda x, turn: x * 1.0, rotate_vjp=lambda dy, y, x, turn: (dy, None))


def _zero_sine_unless_power_of_two(positions: Array, width: int, base: float) -> Array:
    cos, sin = rotary(positions, width, base)
    return np.stack([cos, sin if width & (width - 1) == 0 else 0 * sin])


def _half_precision_frequency(width: int, base: float) -> Array:
    return rounded(base ** (-2.0 * np.arange(width // 2) / width), "float16")


def _reduced(positions: Array, width: int, base: float) -> Array:
    """Angles reduced by a short two pi before the cosine."""
    angle = np.mod(angles(positions, width, base), 6.2832)
    return np.stack([np.cos(angle), np.sin(angle)])


FAULTS = (
    turning(
        name="rotation-table-pairwise-by-halves",
        sentence="the angle table is laid out for adjacent pairs and used on halves: pairs get two frequencies",
        source="raiyanyahya/how-to-train-your-gpt #6",
        operations=swap(rotate=_pairwise_table_by_halves),
    ),
    turning(
        name="rotation-not-interleaved",
        sentence="even features come out in the first half: the scores do not notice, the stages do",
        breaks=("VAL-2",),
        operations=swap(rotate=_not_interleaved),
    ),
    turning(
        name="rotation-by-head",
        sentence="angles run over the head axis instead of the token axis, because the tensor was transposed",
        source="mlfoundations/open_lm #4; facebookresearch/xformers #841; tensorgi/TPA #4",
        operations=swap(rotate=_by_head),
    ),
    turning(
        name="rotation-missing",
        sentence="queries and keys are not rotated",
        operations=_identity,
    ),
    turning(
        name="rotation-of-queries-alone",
        sentence="keys are not rotated",
        stage="attention.rotated_key",
        also=(),
        operations=at("attention.rotated_key", _identity),
    ),
    turning(
        name="rotation-of-keys-alone",
        sentence="queries are not rotated",
        also=(),
        operations=at("attention.rotated_query", _identity),
    ),
    turning(
        name="rotation-of-values-too",
        sentence="values are rotated as well",
        source="labmlai/annotated_deep_learning_paper_implementations #251",
        stage="attention.heads",
        also=(),
        decoder=heads_of(_values_too),
    ),
    turning(
        name="rotation-twice",
        sentence="queries and keys are rotated in the projection and again in the attention",
        operations=swap(rotate=lambda x, turn: rotate(rotate(x, turn), turn)),
    ),
    turning(
        name="rotation-backwards",
        sentence="the sign of the sine is wrong for queries and keys alike: positions run backwards",
        operations=swap(rotate=_back),
    ),
    turning(
        name="rotation-of-keys-backwards",
        sentence="keys are turned the other way, so that angles add up instead of cancelling",
        stage="attention.rotated_key",
        also=(),
        operations=at("attention.rotated_key", swap(rotate=_back)),
    ),
    turning(
        name="rotation-with-one-wrong-sign",
        sentence="the first line of the rotation adds: it is no rotation any more",
        operations=swap(rotate=_wrong_sign),
    ),
    turning(
        name="rotation-in-place",
        sentence="the second line of the rotation reads what the first has written",
        operations=swap(rotate=_in_place),
    ),
    turning(
        name="rotation-of-half-the-features",
        sentence="only the first half of the pairs is rotated, as in another family of models",
        operations=swap(rotate=lambda x, turn: _first_pairs_only(x, turn, 0.5)),
    ),
    turning(
        name="rotation-without-the-last-pair",
        sentence="the loop over pairs ends one early",
        operations=swap(rotate=_without_last_pair),
    ),
    turning(
        name="rotation-before-the-split",
        sentence="the whole width is rotated, then split into heads",
        source="facebookresearch/blt #71",
        decoder=composed(branches(_before_the_split)),
    ),
    turning(
        name="cosine-and-sine-exchanged",
        sentence="the two halves of the table are exchanged",
        operations=swap(rotary=lambda positions, width, base: rotary(positions, width, base)[::-1]),
    ),
    turning(
        name="sine-zero-for-odd-widths",
        sentence="the sine is read from the wrong place for head widths that are no power of two",
        source="vllm-project/vllm-ascend #12723; vllm-project/vllm #55204",
        operations=swap(rotary=_zero_sine_unless_power_of_two),
    ),
    turning(
        name="frequency-index-from-one",
        sentence="the paper counts pairs from one, the code from zero: the index starts at minus one",
        source="bkitano/llama-from-scratch #8",
        operations=by_frequency(lambda w, base: base ** (-2.0 * (np.arange(w // 2) - 1) / w)),
    ),
    turning(
        name="frequency-exponent-halved",
        sentence="the exponent is i / w instead of 2 i / w",
        operations=by_frequency(lambda w, base: base ** (-1.0 * np.arange(w // 2) / w)),
    ),
    turning(
        name="frequency-exponent-doubled",
        sentence="the index already steps by two and is doubled again",
        operations=by_frequency(lambda w, base: base ** (-4.0 * np.arange(w // 2) / w)),
    ),
    turning(
        name="frequency-up-to-the-base",
        sentence="exponents run evenly from 0 to 1 with both ends",
        operations=by_frequency(lambda w, base: base ** -np.linspace(0, 1, w // 2)),
    ),
    turning(
        name="frequency-of-model-width",
        sentence="exponents are divided by the model width",
        decoder=lambda ops, config, weights, tokens: right.decoder(
            by_frequency(lambda w, base: base ** (-2.0 * np.arange(w // 2) / config.model_width))(ops),
            config,
            weights,
            tokens,
        ),
    ),
    turning(
        name="frequency-inverted",
        sentence="frequencies are multiplied where they should be divided",
        operations=by_frequency(lambda w, base: base ** (2.0 * np.arange(w // 2) / w)),
    ),
    turning(
        name="frequencies-reversed",
        sentence="the slowest pair comes first",
        operations=by_frequency(lambda w, base: base ** (-2.0 * np.arange(w // 2)[::-1] / w)),
    ),
    turning(
        name="frequency-of-two-pi",
        sentence="positions are counted in turns: angles are multiplied by two pi",
        operations=by_frequency(lambda w, base: 2 * np.pi * base ** (-2.0 * np.arange(w // 2) / w)),
    ),
    turning(
        name="one-frequency-for-all-pairs",
        sentence="every pair turns at the same rate",
        operations=by_frequency(lambda w, base: np.ones(w // 2)),
    ),
    turning(
        name="rope-base-always-10000",
        sentence="the configured base is never passed on",
        source="huggingface/transformers #38025 (the same kind)",
        operations=swap(rotary=lambda positions, width, base: rotary(positions, width, 10000.0)),
    ),
    turning(
        name="rope-base-always-500000",
        sentence="the base of a newer release is a default",
        operations=swap(rotary=lambda positions, width, base: rotary(positions, width, 500000.0)),
    ),
    turning(
        name="frequencies-in-float32",
        sentence="frequencies are computed in float32",
        operations=by_frequency(lambda w, base: rounded(base ** (-2.0 * np.arange(w // 2) / w), "float32")),
    ),
    turning(
        name="frequencies-in-float16",
        sentence="frequencies are held in half precision: the phase error grows with the position",
        source="EleutherAI/gpt-neox #1003; huggingface/transformers #25681, #29285; InternLM/InternLM #237",
        precision="float32",
        operations=by_frequency(_half_precision_frequency),
    ),
    turning(
        name="rotary-table-in-float32",
        sentence="cosines and sines are kept in float32",
        operations=swap(rotary=lambda positions, width, base: rounded(rotary(positions, width, base), "float32")),
    ),
    turning(
        name="rotary-table-in-float16",
        sentence="cosines and sines are kept in half precision",
        source="flashinfer-ai/flashinfer PR 585",
        precision="float32",
        operations=swap(rotary=lambda positions, width, base: rounded(rotary(positions, width, base), "float16")),
    ),
    turning(
        name="rotary-angles-in-bfloat16",
        sentence="angles are formed in bfloat16 under a mixed-precision cast",
        source="huggingface/transformers #29285; Modalities/modalities PR 462",
        precision="float32",
        operations=swap(
            rotary=lambda positions, width, base: (lambda a: np.stack([np.cos(a), np.sin(a)]))(
                rounded(angles(positions, width, base), "bfloat16")
            )
        ),
    ),
    turning(
        name="positions-in-bfloat16",
        breaks=("VAL-1",),
        sentence="positions are kept in bfloat16, which has no odd numbers past 256",
        source="huggingface/transformers #29496; EleutherAI/gpt-neox #1003",
        operations=at_positions(lambda p: rounded(p, "bfloat16")),
    ),
    turning(
        name="positions-clamped-at-seven",
        breaks=("VAL-1",),
        sentence="the table is shorter than the context, and positions past it use its last row",
        source="vllm-project/vllm-ascend PR 1266",
        operations=at_positions(lambda p: np.minimum(p, 7)),
    ),
    turning(
        name="positions-wrap-at-32",
        breaks=("VAL-1",),
        sentence="positions past the end of a table of 32 start again",
        operations=at_positions(lambda p: p % 32),
    ),
    turning(
        name="positions-halved",
        sentence="positions are interpolated as for a longer context",
        operations=at_positions(lambda p: p / 2),
    ),
    turning(
        name="positions-of-queries-shifted",
        sentence="queries stand one position further than keys, as after a miscounted cache",
        source="skyzh/tiny-llm PR 46; Blaizzy/mlx-vlm #1983; RobertCsordas/moeut PR 6; keras-team/keras-hub PR 1544",
        also=(),
        decoder=heads_of(_shifted_query),
    ),
    turning(
        name="positions-from-the-end",
        sentence="positions count down to the last token",
        operations=at_positions(lambda p: p[::-1]),
    ),
    turning(
        name="position-zero-twice",
        sentence="the second token is given the position of the first",
        operations=at_positions(lambda p: np.maximum(p - 1, 0)),
    ),
    turning(
        name="angles-reduced-by-short-pi",
        sentence="angles are reduced by a two pi of five digits",
        operations=swap(rotary=_reduced),
    ),
    turning(
        name="half-split-rotation",
        sentence="feature i is paired with i + w/2 though the weights are for adjacent pairs",
        source="NeuraLegion/shainet PR 111; karpathy/nanochat #264; huggingface/transformers #34741",
        family="adapter",
        operations=swap(rotate=halves),
    ),
)
