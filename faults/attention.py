"""Faults of the attention scores: the scale and the mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import Fault, Substitution, swap
from decoderspec.faults.numbers import rounded
from decoderspec.reference.operations import Array, causal, scores, softmax

VALUES = ("VAL-1", "VAL-2")


weights = partial(Fault, family="attention", stage="attention.weights", breaks=VALUES)


def products(query: Array, key: Array) -> Array:
    """`q . k`, not scaled and not masked: `[B, h, T, S]`."""
    return np.asarray(query @ key.swapaxes(-1, -2))


def raw(query: Array, key: Array) -> Array:
    """`q . k / sqrt(w)`, not masked."""
    return np.asarray(products(query, key) / np.sqrt(query.shape[-1]))


def masked(s: Array, visible: Any = None, fill: float = -np.inf) -> Array:
    """Scores where they are visible, causally if nothing else is said."""
    return np.where(causal(s.shape[-1]) if visible is None else visible, s, fill)


def scaled_by(scale: Callable[[Array], Any]) -> Substitution:
    """Scores multiplied by a function of the queries `[B, h, T, w]` in place of `1 / sqrt(w)`."""
    return swap(scores=lambda q, k: masked(products(q, k) * scale(q)))


def seen(visible: Callable[[int], Array]) -> Substitution:
    """Another mask, true where a key is seen, of a number of tokens."""
    return swap(scores=lambda q, k: masked(raw(q, k), visible(q.shape[-2])))


def normalized(s: Array, top: Any, axis: int | tuple[int, ...] = -1, extra: Any = 0.0) -> Array:
    """`exp(s - top)` over its sum along an axis."""
    e = np.exp(s - top)
    return np.asarray(e / (np.sum(e, axis=axis, keepdims=True) + extra))


def _strict(tokens: int) -> Array:
    visible = np.tri(tokens, k=-1, dtype=bool)
    visible[0, 0] = True
    return visible


def _blocks(tokens: int, size: int) -> Array:
    """Complete blocks see all of themselves."""
    block = np.arange(tokens) // size
    complete = block < tokens // size
    return np.asarray(causal(tokens) | ((block[:, None] == block) & complete[:, None] & complete))


def _window(tokens: int, size: int) -> Array:
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    return np.asarray((distance >= 0) & (distance < size))


def _prefix(tokens: int) -> Array:
    return np.asarray(causal(tokens) | (np.arange(tokens) < 2))


def _first_hidden(tokens: int) -> Array:
    visible = causal(tokens)
    visible[1:, 0] = False
    return visible


def _alibi(s: Array) -> Array:
    heads, tokens = s.shape[-3], s.shape[-1]
    slope = 2.0 ** (-8 * (np.arange(heads) + 1) / heads)
    return np.asarray(s - slope[:, None, None] * (np.arange(tokens)[:, None] - np.arange(tokens)))


def _by_batch(query: Array, key: Array) -> Array:
    s = raw(query, key)
    visible = np.ones((1, 1), bool) if s.shape[-4] == 1 else causal(s.shape[-1])
    return masked(s, visible)


def _across_rows(query: Array, key: Array) -> Array:
    """The keys of the first row of the batch are used for all rows."""
    return scores(query, np.broadcast_to(key[..., :1, :, :, :], key.shape))


def _with_mask_after(p: Array) -> Array:
    return np.asarray(p * causal(p.shape[-1]))


FAULTS = (
    weights(
        name="scale-of-model-width",
        sentence="scores are divided by the root of the model width",
        source="lucidrains/vit-pytorch #65; omihub777/ViT-CIFAR PR 12; juho-lee/set_transformer #18",
        operations=scaled_by(lambda q: (q.shape[-1] * q.shape[-3]) ** -0.5),
    ),
    weights(
        name="scale-missing",
        sentence="scores are not scaled",
        source="mlc-ai/mlc-llm PR 3426; ethen8181/machine-learning #13",
        operations=scaled_by(lambda q: 1.0),
    ),
    weights(
        name="scale-squared",
        sentence="scores are divided by the head width, or twice by its root",
        source="charliezchen/scaling-matrix-preconditioning #2",
        operations=scaled_by(lambda q: 1 / q.shape[-1]),
    ),
    weights(
        name="scale-multiplied",
        sentence="scores are multiplied by the root of the head width",
        operations=scaled_by(lambda q: q.shape[-1] ** 0.5),
    ),
    weights(
        name="scale-of-heads",
        sentence="scores are divided by the root of the number of heads",
        operations=scaled_by(lambda q: q.shape[-3] ** -0.5),
    ),
    weights(
        name="scale-of-tokens",
        sentence="scores are divided by the root of the sequence length",
        operations=scaled_by(lambda q: q.shape[-2] ** -0.5),
    ),
    weights(
        name="scale-in-bfloat16",
        sentence="the scale is rounded to the storage format",
        source="huggingface/transformers PR 29402, PR 37109; Lightning-AI/litgpt #1031",
        operations=scaled_by(lambda q: rounded(np.asarray(q.shape[-1] ** -0.5), "bfloat16")),
    ),
    weights(
        name="scores-capped",
        sentence="scores pass through 50 tanh(s / 50), as in another family of models",
        operations=swap(scores=lambda q, k: masked(50 * np.tanh(raw(q, k) / 50))),
    ),
    weights(
        name="scores-with-linear-bias",
        sentence="a bias grows with the distance although positions are rotary",
        operations=swap(scores=lambda q, k: masked(_alibi(raw(q, k)))),
    ),
    weights(
        name="scores-in-float32",
        sentence="scores are formed in float32",
        source="huggingface/transformers #24519",
        operations=swap(scores=lambda q, k: rounded(scores(q, k), "float32")),
    ),
    weights(
        name="scores-in-bfloat16",
        sentence="scores of a float32 model are stored in bfloat16",
        precision="float32",
        operations=swap(scores=lambda q, k: rounded(scores(q, k), "bfloat16")),
    ),
    weights(
        name="mask-shows-the-next-token",
        sentence="the triangle is off by one: the next token is visible",
        source="RVC-Boss/GPT-SoVITS #965; pytorch/pytorch #143287",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=seen(lambda t: np.tri(t, k=1, dtype=bool)),
    ),
    weights(
        name="mask-hides-the-own-token",
        sentence="the triangle is off by one the other way: a token does not see itself",
        source="pytorch/pytorch #143287",
        operations=seen(_strict),
    ),
    weights(
        name="mask-missing",
        sentence="every token sees all tokens",
        source="hyunwoongko/transformer #10; opendilab/DI-engine #333",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=seen(lambda t: np.ones((t, t), bool)),
    ),
    weights(
        name="mask-inverted",
        sentence="the boolean convention of another library: the past is hidden and the future is seen",
        source="neuro-galaxy/torch_brain PR 74; InseeFrLab/torchTextClassifiers PR 92",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=seen(lambda t: np.tri(t, dtype=bool).T),
    ),
    weights(
        name="mask-of-batch-size",
        sentence="the size of the mask is taken from the batch axis: one row is not masked at all",
        source="sonos/torch-to-nnef PR 217",
        breaks=(*VALUES, "CAU-1", "ATT-1", "BAT-2"),
        operations=swap(scores=_by_batch),
    ),
    weights(
        name="mask-fills-zero",
        sentence="masked scores are set to zero",
        source="hyunwoongko/transformer #10",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=swap(scores=lambda q, k: masked(raw(q, k), fill=0.0)),
    ),
    weights(
        name="mask-fills-tiny",
        sentence="masked scores are set to the smallest positive number, meant as the most negative",
        source="hyunwoongko/transformer #10",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=swap(scores=lambda q, k: masked(raw(q, k), fill=float(np.finfo(float).tiny))),
    ),
    weights(
        name="mask-fills-minus-ten",
        sentence="a finite stand-in for minus infinity that is too small",
        source="tatp22/linformer-pytorch PR 19; bentrevett/pytorch-seq2seq #191; microsoft/onnxruntime PR 16369",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=swap(scores=lambda q, k: masked(raw(q, k), fill=-10.0)),
    ),
    weights(
        name="mask-adds-minus-thirty",
        sentence="a finite stand-in is added to the masked scores: a trace of the future remains",
        source="ahrefs/ocannl #548",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=swap(scores=lambda q, k: raw(q, k) - 30.0 * ~causal(q.shape[-2])),
    ),
    weights(
        name="mask-adds-minus-hundred",
        sentence="a stand-in of -100 is added: the trace of the future lies below rounding, but not below bits",
        source="ahrefs/ocannl #548",
        breaks=("ATT-1",),
        operations=swap(scores=lambda q, k: raw(q, k) - 100.0 * ~causal(q.shape[-2])),
    ),
    weights(
        name="mask-open-in-blocks-of-8",
        sentence="complete blocks of 8 positions see all of themselves",
        source="karpathy/nanochat #844, PR 845",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=seen(lambda t: _blocks(t, 8)),
    ),
    weights(
        name="mask-open-in-blocks-of-64",
        sentence="complete blocks of 64 positions see all of themselves",
        source="karpathy/nanochat #844, PR 845",
        breaks=("VAL-1", "CAU-1"),
        operations=seen(lambda t: _blocks(t, 64)),
    ),
    weights(
        name="mask-window-of-four",
        sentence="only the last four keys are seen: a sliding window of another model",
        operations=seen(lambda t: _window(t, 4)),
    ),
    weights(
        name="mask-window-of-32",
        sentence="only the last 32 keys are seen",
        breaks=("VAL-1",),
        operations=seen(lambda t: _window(t, 32)),
    ),
    weights(
        name="mask-open-prefix",
        sentence="the first two tokens are seen by all, as a prompt would be",
        breaks=(*VALUES, "CAU-1", "ATT-1"),
        operations=seen(_prefix),
    ),
    weights(
        name="mask-hides-the-first-token",
        sentence="the start token is hidden from all others",
        operations=seen(_first_hidden),
    ),
    weights(
        name="mask-after-softmax",
        sentence="the mask is applied after the softmax, and the rest is not normalized again",
        source="huggingface/pytorch-image-models PR 2236",
        breaks=(*VALUES, "CAU-1"),
        operations=swap(scores=raw, softmax=lambda s: _with_mask_after(softmax(s))),
    ),
    weights(
        name="keys-of-the-first-row",
        sentence="the keys of the first row of the batch serve all rows",
        breaks=(*VALUES, "BAT-1", "BAT-2", "BAT-3"),
        operations=swap(scores=_across_rows),
    ),
)
