"""Faults of the loss: which positions count, what they are divided by, and how the logarithm is taken."""

from __future__ import annotations

from functools import partial

import numpy as np

from decoderspec.faults.fault import Fault, swap
from decoderspec.faults.head import log_softmax
from decoderspec.faults.numbers import rounded
from decoderspec.reference.operations import Array, nll

loss = partial(Fault, family="loss", stage="loss", level="loss", breaks=("LOS-1",))


def picked(logits: Array, targets: Array) -> Array:
    """The target's entry at each position, `[B, T]`."""
    index = np.broadcast_to(targets[..., None], (*logits.shape[:-1], 1))
    return np.asarray(np.take_along_axis(logits, index, axis=-1)[..., 0])


def position_losses(logits: Array, targets: Array) -> Array:
    """`-log softmax(logits)[target]` at each position, `[B, T]`."""
    return -picked(log_softmax(logits), targets)


def mean(values: Array) -> Array:
    """Over batch and positions."""
    return np.asarray(np.mean(values, axis=(-2, -1)))


def weighted(logits: Array, targets: Array, counted: Array) -> Array:
    """The mean over the positions that are counted; nothing where none is."""
    total = np.sum(position_losses(logits, targets) * counted, axis=(-2, -1))
    return np.asarray(total / max(1, np.sum(counted)))


def _rolled(targets: Array) -> Array:
    return np.roll(targets.reshape(-1), -1).reshape(targets.shape)


def _chunked(logits: Array, targets: Array) -> Array:
    """The mean of the means of the first positions and the rest."""
    values = position_losses(logits, targets)
    half = max(1, values.shape[-1] // 3)
    parts = [part for part in (values[..., :half], values[..., half:]) if part.shape[-1]]
    return np.asarray(sum(mean(part) for part in parts) / len(parts))


def _over_time(logits: Array, targets: Array) -> Array:
    shifted = logits - np.max(logits, axis=-2, keepdims=True)
    logs = shifted - np.log(np.sum(np.exp(shifted), axis=-2, keepdims=True))
    return -mean(picked(logs, targets))


def _padded(logits: Array, targets: Array) -> Array:
    width = -logits.shape[-1] % 8
    return nll(np.concatenate([logits, np.zeros((*logits.shape[:-1], width))], axis=-1), targets)


def _smoothed(logits: Array, targets: Array, share: float) -> Array:
    logs = log_softmax(logits)
    return -mean((1 - share) * picked(logs, targets) + share * np.mean(logs, axis=-1))


def _without_maximum(logits: Array, targets: Array) -> Array:
    return mean(np.log(np.sum(np.exp(logits), axis=-1)) - picked(logits, targets))


def _clamped_maximum(logits: Array, targets: Array) -> Array:
    top = np.minimum(np.max(logits, axis=-1, keepdims=True), 64.0)
    return mean(np.log(np.sum(np.exp(logits - top), axis=-1)) - picked(logits - top, targets))


def _with_square(logits: Array, targets: Array) -> Array:
    top = np.max(logits, axis=-1)
    normalizer = np.log(np.sum(np.exp(logits - top[..., None]), axis=-1)) + top
    return np.asarray(nll(logits, targets) + 1e-4 * mean(np.square(normalizer)))


def _focal(logits: Array, targets: Array) -> Array:
    values = position_losses(logits, targets)
    return mean(values * (1 - np.exp(-values)))


FAULTS = (
    loss(
        name="targets-shifted-again",
        sentence="targets that are given already shifted are shifted again, from row to row",
        source="huggingface/transformers #47394, PR 37830, PR 36928, PR 46898",
        family="adapter",
        operations=swap(nll=lambda logits, targets: nll(logits, _rolled(targets))),
    ),
    loss(
        name="loss-without-last-position",
        sentence="the last position of each row is left out, as where targets are made from inputs",
        operations=swap(nll=lambda y, t: mean(position_losses(y, t)[..., : max(1, t.shape[-1] - 1)])),
    ),
    loss(
        name="loss-without-first-position",
        sentence="the first position of each row is left out",
        operations=swap(nll=lambda y, t: mean(position_losses(y, t)[..., min(1, t.shape[-1] - 1) :])),
    ),
    loss(
        name="loss-of-last-position",
        sentence="only the last position of each row counts",
        operations=swap(nll=lambda y, t: mean(position_losses(y, t)[..., -1:])),
    ),
    loss(
        name="loss-of-first-row",
        sentence="only the first row of the batch counts",
        operations=swap(nll=lambda y, t: mean(position_losses(y, t)[..., :1, :])),
    ),
    loss(
        name="loss-target-in-8-bits",
        sentence="targets are stored in one byte",
        operations=swap(nll=lambda y, t: nll(y, t & 255)),
    ),
    loss(
        name="loss-of-first-sixteen-rows",
        sentence="a launch covers sixteen rows of the batch, and the rest is never reduced",
        operations=swap(nll=lambda y, t: nll(y[..., :16, :, :], t[:16])),
    ),
    loss(
        name="loss-summed",
        sentence="losses are summed, not averaged",
        source="huggingface/transformers PR 34191, #35203; karpathy/nanoGPT #206",
        operations=swap(nll=lambda y, t: nll(y, t) * t.size),
    ),
    loss(
        name="loss-divided-by-batch",
        sentence="the sum is divided by the number of rows",
        operations=swap(nll=lambda y, t: nll(y, t) * t.shape[-1]),
    ),
    loss(
        name="loss-divided-by-tokens",
        sentence="the sum is divided by the length of a row",
        operations=swap(nll=lambda y, t: nll(y, t) * t.shape[-2]),
    ),
    loss(
        name="loss-of-unequal-chunks",
        sentence="means of chunks of unequal length are averaged",
        source="huggingface/transformers PR 34191; Lightning-AI/pytorch-lightning PR 21386",
        operations=swap(nll=_chunked),
    ),
    loss(
        name="loss-ignores-target-zero",
        sentence="target 0 is taken for padding and left out",
        source="karpathy/nanoGPT #323 (the kind)",
        operations=swap(nll=lambda y, t: weighted(y, t, t != 0)),
    ),
    loss(
        name="loss-ignores-the-last-id",
        sentence="the last id is taken for padding and left out",
        operations=swap(nll=lambda y, t: weighted(y, t, t != y.shape[-1] - 1)),
    ),
    loss(
        name="loss-counts-ignored-targets",
        sentence="target 0 contributes nothing but stays in the denominator",
        source="PaddlePaddle/Paddle #23708; ROCm/TransformerEngine PR 336; flagos-ai/FlagGems PR 73",
        operations=swap(nll=lambda y, t: mean(position_losses(y, t) * (t != 0))),
    ),
    loss(
        name="loss-over-time",
        sentence="the softmax runs over positions instead of the vocabulary",
        source="ml-explore/mlx PR 2641; PaddlePaddle/Paddle PR 27311",
        operations=swap(nll=_over_time),
    ),
    loss(
        name="loss-of-padded-vocabulary",
        sentence="the vocabulary is padded to a multiple of 8, and zeros enter the normalizer",
        source="huggingface/transformers #29856; tenstorrent/tt-metal PR 38881; karpathy/llm.c PR 143",
        operations=swap(nll=_padded),
    ),
    loss(
        name="loss-log-of-softmax",
        sentence="the logarithm of a probability that has underflowed",
        source="deeplearning4j/deeplearning4j #785",
        operations=swap(nll=lambda y, t: -mean(np.log(picked(np.exp(log_softmax(y)), t)))),
    ),
    loss(
        name="loss-log-with-epsilon",
        sentence="1e-8 is added to the probability inside the logarithm",
        source="allenai/allennlp #2797",
        operations=swap(nll=lambda y, t: -mean(np.log(picked(np.exp(log_softmax(y)), t) + 1e-8))),
    ),
    loss(
        name="loss-without-maximum",
        sentence="no maximum is subtracted: large logits overflow",
        operations=swap(nll=_without_maximum),
    ),
    loss(
        name="loss-maximum-clamped",
        sentence="the maximum that is subtracted is clamped at 64: larger logits overflow",
        source="PaddlePaddle/Paddle PR 21165",
        operations=swap(nll=_clamped_maximum),
    ),
    loss(
        name="loss-in-float32",
        sentence="logits are cast to float32 before the logarithm of the sum",
        source="google-deepmind/optax #1020; Modalities/modalities PR 464",
        operations=swap(nll=lambda y, t: rounded(np.asarray(nll(rounded(y, "float32"), t)), "float32")),
    ),
    loss(
        name="loss-in-bfloat16",
        sentence="the loss of a float32 model is formed from bfloat16 logits",
        source="google-deepmind/optax #1020",
        precision="float32",
        operations=swap(nll=lambda y, t: nll(rounded(y, "bfloat16"), t)),
    ),
    loss(
        name="loss-in-bits",
        sentence="the logarithm has base two",
        operations=swap(nll=lambda y, t: nll(y, t) / np.log(2.0)),
    ),
    loss(
        name="loss-smoothed",
        sentence="labels are smoothed by 0.1 by default",
        operations=swap(nll=lambda y, t: _smoothed(y, t, 0.1)),
    ),
    loss(
        name="loss-smoothed-a-little",
        sentence="labels are smoothed by 0.01",
        operations=swap(nll=lambda y, t: _smoothed(y, t, 0.01)),
    ),
    loss(
        name="loss-with-square-of-normalizer",
        sentence="an auxiliary loss of the normalizer is always on",
        operations=swap(nll=_with_square),
    ),
    loss(
        name="loss-focal",
        sentence="easy positions are weighed down",
        operations=swap(nll=_focal),
    ),
    loss(
        name="loss-as-perplexity",
        sentence="the exponential of the loss is handed out",
        operations=swap(nll=lambda y, t: np.exp(nll(y, t))),
    ),
    loss(
        name="loss-without-softmax",
        sentence="logits are taken for log-probabilities",
        operations=swap(nll=lambda y, t: -mean(picked(y, t))),
    ),
    loss(
        name="loss-softmax-twice",
        sentence="probabilities are handed to a loss that applies the softmax itself",
        operations=swap(nll=lambda y, t: nll(np.exp(log_softmax(y)), t)),
    ),
)
