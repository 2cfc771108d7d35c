"""Common mistakes as substitutions in the record of operations, so that a wrong document can be recognized.

A handful that beginners make in these two chapters, as far as the fixtures can show them: half-split rotation, for one,
is the same as adjacent pairs at head width 2, and positions counted from 1 cancel between query and key. What the suite
itself catches is measured elsewhere. Only forwards are replaced, so what a document says of gradients is no evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from decoderspec.reference.operations import OPERATIONS, Array, Operations
from decoderspec.spec.stages import suffix

RIGHT = OPERATIONS


def _instead(name: str, wrong: Callable[..., Array]) -> Operations:
    """The record with one forward replaced; `wrong` takes the stage and the inputs."""
    return replace(RIGHT, **{name: replace(getattr(RIGHT, name), perform=wrong)})


def _wrong_way(stage: str, x: Array, table: Array) -> Array:
    return RIGHT.rotate(stage, x, table * np.array([1.0, -1.0])[:, None, None])


def _unscaled(stage: str, query: Array, key: Array) -> Array:
    scores: Array = RIGHT.scores(stage, query, key) * np.sqrt(query.shape[-1])
    return scores


def _scaled_by_width(stage: str, query: Array, key: Array) -> Array:
    scores: Array = RIGHT.scores(stage, query, key) / np.sqrt(query.shape[-1])
    return scores


def _unmasked(stage: str, query: Array, key: Array) -> Array:
    scores: Array = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return scores


def _strictly_masked(stage: str, query: Array, key: Array) -> Array:
    """Each query sees the keys before it, and its own only where there is none."""
    scores = RIGHT.scores(stage, query, key)
    itself = np.eye(scores.shape[-1], dtype=bool)
    itself[0, 0] = False
    return np.where(itself, -np.inf, scores)


def _layer_norm(stage: str, x: Array, gain: Array, epsilon: float) -> Array:
    return RIGHT.rms_norm(stage, x - np.mean(x, axis=-1, keepdims=True), gain, epsilon)


def _sum_of_squares(stage: str, x: Array, gain: Array, epsilon: float) -> Array:
    normalized: Array = x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + epsilon) * gain
    return normalized


def _without_norm(at: str) -> Callable[..., Array]:
    def wrong(stage: str, x: Array, gain: Array, epsilon: float) -> Array:
        return x.copy() if suffix(stage) == at else RIGHT.rms_norm(stage, x, gain, epsilon)

    return wrong


def _without_residual(at: str) -> Callable[..., Array]:
    def wrong(stage: str, x: Array, branch: Array) -> Array:
        return branch.copy() if suffix(stage) == at else RIGHT.add(stage, x, branch)

    return wrong


def _transposed(stage: str, x: Array, weight: Array) -> Array:
    is_square = weight.shape[0] == weight.shape[1]
    return RIGHT.linear(stage, x, weight.T if is_square else weight)


def _interleaved_heads(stage: str, x: Array, heads: int) -> Array:
    shaped = x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads)
    return np.moveaxis(shaped, -1, -3)


def _log_probabilities(stage: str, x: Array, table: Array) -> Array:
    logits = RIGHT.project(stage, x, table)
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    normalized: Array = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return normalized


def _summed_loss(stage: str, logits: Array, targets: Array) -> Array:
    return RIGHT.nll(stage, logits, targets) * targets.size


def _shifted_targets(stage: str, logits: Array, targets: Array) -> Array:
    return RIGHT.nll(stage, logits[..., :-1, :], targets[..., 1:])


def _loss_in_bits(stage: str, logits: Array, targets: Array) -> Array:
    bits: Array = RIGHT.nll(stage, logits, targets) / np.log(2.0)
    return bits


def _tanh_gelu(stage: str, x: Array) -> Array:
    gelu: Array = 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return gelu


MISTAKES = {
    "rotation the wrong way round": _instead("rotate", _wrong_way),
    "no rotation": _instead("rotate", lambda stage, x, table: x.copy()),
    "attention scores not divided by sqrt(w)": _instead("scores", _unscaled),
    "attention scores divided by w": _instead("scores", _scaled_by_width),
    "no causal mask": _instead("scores", _unmasked),
    "a causal mask that hides the query's own position": _instead("scores", _strictly_masked),
    "LayerNorm instead of RMSNorm": _instead("rms_norm", _layer_norm),
    "sum instead of mean of squares in RMSNorm": _instead("rms_norm", _sum_of_squares),
    "no attention norm": _instead("rms_norm", _without_norm("attention_norm")),
    "no feed-forward norm": _instead("rms_norm", _without_norm("ffn_norm")),
    "no final norm": _instead("rms_norm", _without_norm("final_norm")),
    "no residual around attention": _instead("add", _without_residual("after_attention")),
    "no residual around the feed-forward part": _instead("add", _without_residual("output")),
    "sigmoid instead of SiLU": _instead("silu", lambda stage, x: 1.0 / (1.0 + np.exp(-x))),
    "GELU instead of SiLU": _instead("silu", _tanh_gelu),
    "ReLU instead of SiLU": _instead("silu", lambda stage, x: np.maximum(x, 0.0)),
    "a feed-forward part without its gate": _instead("multiply", lambda stage, gate, up: up.copy()),
    "a feed-forward part without its up projection": _instead("multiply", lambda stage, gate, up: gate.copy()),
    "square matrices applied transposed (stored [out, in])": _instead("linear", _transposed),
    "heads interleaved instead of contiguous": _instead("split", _interleaved_heads),
    "log-probabilities instead of logits": _instead("project", _log_probabilities),
    "a summed loss instead of the mean": _instead("nll", _summed_loss),
    "targets shifted once more": _instead("nll", _shifted_targets),
    "a loss in bits": _instead("nll", _loss_in_bits),
}
