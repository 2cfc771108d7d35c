"""Faults of the vocabulary head, and of what an adapter hands out as logits."""

from __future__ import annotations

from functools import partial

import numpy as np

from decoderspec.faults.compositions import composed, exchanged, with_weights
from decoderspec.faults.fault import Fault, swap
from decoderspec.faults.numbers import rounded
from decoderspec.reference.operations import Array, linear, project, rms_norm
from decoderspec.spec.parameters import FINAL_GAIN

head = partial(Fault, family="head", stage="logits", breaks=("VAL-1", "VAL-2"))
adapter = partial(Fault, family="adapter", stage="logits", breaks=("VAL-1",))


def log_softmax(logits: Array) -> Array:
    """Logarithms of the probabilities."""
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))


def _unit_rows(table: Array) -> Array:
    return np.asarray(table / np.sqrt(np.sum(table * table, axis=-1, keepdims=True)))


def _without(logits: Array, column: int, fill: float) -> Array:
    logits = logits.copy()
    logits[..., column] = fill
    return logits


def _one_row_late(logits: Array) -> Array:
    return np.concatenate([logits[..., :1, :], logits[..., :-1, :]], axis=-2)


def _last_row_everywhere(logits: Array) -> Array:
    return np.broadcast_to(logits[..., -1:, :], logits.shape).copy()


def _widened(logits: Array) -> Array:
    return np.concatenate([logits, np.zeros((*logits.shape[:-1], -logits.shape[-1] % 8))], axis=-1)


FAULTS = (
    head(
        name="logits-of-padded-vocabulary",
        sentence="the vocabulary is padded to a multiple of 8, and the extra logits are handed out",
        source="huggingface/transformers #29856; tenstorrent/tt-metal PR 38881; karpathy/llm.c PR 143",
        breaks=("SHP-1",),
        operations=swap(project=lambda x, table: _widened(project(x, table))),
    ),
    head(
        name="logits-divided-by-root",
        sentence="logits are divided by the root of the model width because the table is tied",
        source="ml-explore/mlx-examples PR 591; jadore801120/attention-is-all-you-need-pytorch #138",
        operations=swap(project=lambda x, table: project(x, table) / np.sqrt(x.shape[-1])),
    ),
    head(
        name="logits-multiplied-by-root",
        sentence="logits are multiplied by the root of the model width",
        operations=swap(project=lambda x, table: project(x, table) * np.sqrt(x.shape[-1])),
    ),
    head(
        name="logits-capped",
        sentence="logits pass through 30 tanh(l / 30), as in another family of models",
        operations=swap(project=lambda x, table: 30 * np.tanh(project(x, table) / 30)),
    ),
    head(
        name="logits-clipped",
        sentence="logits are clipped at 50 on either side",
        operations=swap(project=lambda x, table: np.clip(project(x, table), -50, 50)),
        breaks=("VAL-1",),
    ),
    head(
        name="logits-with-bias",
        sentence="the head has a bias of 0.01",
        operations=swap(project=lambda x, table: project(x, table) + 0.01),
    ),
    head(
        name="logits-less-their-mean",
        sentence="the mean of the logits is subtracted, which no softmax notices",
        operations=swap(project=lambda x, table: project(x, table) - project(x, table).mean(-1, keepdims=True)),
    ),
    head(
        name="logits-less-their-maximum",
        sentence="the maximum of the logits is subtracted, which no softmax notices",
        operations=swap(project=lambda x, table: project(x, table) - project(x, table).max(-1, keepdims=True)),
    ),
    head(
        name="logits-with-temperature",
        sentence="logits are divided by the sampling temperature of 0.9",
        operations=swap(project=lambda x, table: project(x, table) / 0.9),
    ),
    head(
        name="logits-of-unit-rows",
        sentence="the head uses the directions of the rows alone",
        operations=swap(project=lambda x, table: project(x, _unit_rows(table))),
    ),
    head(
        name="logits-in-reverse-order",
        sentence="the columns of the head stand in reverse order",
        operations=swap(project=lambda x, table: project(x, table[::-1])),
    ),
    head(
        name="logits-off-by-one-id",
        sentence="the columns of the head count from one",
        operations=swap(project=lambda x, table: np.roll(project(x, table), 1, axis=-1)),
    ),
    head(
        name="logit-of-the-last-id-missing",
        sentence="the loop over the vocabulary ends one early and leaves a zero",
        operations=swap(project=lambda x, table: _without(project(x, table), -1, 0.0)),
    ),
    head(
        name="logit-of-padding-suppressed",
        sentence="the logit of id 0 is set to a large negative number, since padding is not predicted",
        operations=swap(project=lambda x, table: _without(project(x, table), 0, -1e9)),
    ),
    head(
        name="logits-one-row-late",
        sentence="row t holds the logits of the token before",
        operations=swap(project=lambda x, table: _one_row_late(project(x, table))),
    ),
    head(
        name="logits-in-float32",
        sentence="the head computes in float32",
        source="huggingface/transformers #24519",
        operations=swap(project=lambda x, table: rounded(project(x, table), "float32")),
    ),
    head(
        name="logits-in-bfloat16",
        sentence="the logits of a float32 model are stored in bfloat16",
        precision="float32",
        operations=swap(project=lambda x, table: rounded(project(x, table), "bfloat16")),
    ),
    head(
        name="head-normalizes-again",
        sentence="the head begins with a norm without gain of its own",
        operations=swap(project=lambda x, table: project(rms_norm(x, 1.0, 1e-6), table)),  # type: ignore[arg-type]
    ),
    head(
        name="head-quantized",
        sentence="the head's copy of the table has eight bits",
        operations=swap(project=lambda x, table: project(x, np.round(table / 0.01) * 0.01)),
    ),
    adapter(
        name="log-probabilities-for-logits",
        sentence="log-probabilities are handed out as logits",
        operations=swap(project=lambda x, table: log_softmax(project(x, table))),
    ),
    adapter(
        name="probabilities-for-logits",
        sentence="probabilities are handed out as logits",
        operations=swap(project=lambda x, table: np.exp(log_softmax(project(x, table)))),
    ),
    adapter(
        name="last-row-everywhere",
        sentence="only the last position is computed, and broadcast to all",
        breaks=("VAL-1", "CAU-1"),
        operations=swap(project=lambda x, table: _last_row_everywhere(project(x, table))),
    ),
    adapter(
        name="last-row-only",
        sentence="only the logits of the last position are handed out",
        breaks=("SHP-1",),
        operations=swap(project=lambda x, table: project(x, table)[..., -1:, :]),
    ),
    adapter(
        name="head-from-another-tensor",
        sentence="the head is a tensor of its own, left as it was initialized",
        operations=swap(project=lambda x, table: project(x, np.random.default_rng(0).normal(size=table.shape) * 0.02)),
    ),
    adapter(
        name="square-matrices-not-transposed",
        sentence="a loader transposes the matrices whose shapes demand it, and leaves the square ones",
        stage="attention.query",
        also=("attention.key", "attention.value", "attention.output"),
        operations=swap(linear=lambda x, weight: linear(x, weight.T if len(weight) == weight.shape[1] else weight)),
    ),
    adapter(
        name="gain-plus-one",
        sentence="gains are taken as offsets from one although they are stored whole",
        source="google/gemma_pytorch #29 (the convention)",
        stage="attention_norm",
        also=("ffn_norm", "final_norm"),
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, 1 + gain, epsilon)),
    ),
    adapter(
        name="gain-minus-one",
        sentence="gains are handed over as offsets from one and used whole",
        stage="attention_norm",
        also=("ffn_norm", "final_norm"),
        operations=swap(rms_norm=lambda x, gain, epsilon: rms_norm(x, gain - 1, epsilon)),
    ),
    adapter(
        name="norm-gains-exchanged",
        sentence="a loader puts the gain of the first norm where that of the second belongs, and the reverse",
        stage="attention_norm",
        decoder=exchanged("attention_norm.gain", "ffn_norm.gain"),
    ),
    adapter(
        name="gate-and-up-weights-exchanged",
        sentence="a loader puts the gate's matrix where the up projection's belongs, and the reverse",
        source="nntrainer/nntrainer PR 4194; tgo-app-dev/vpipe #2",
        stage="ffn.gate",
        also=("ffn.up",),
        decoder=exchanged("ffn.gate.weight", "ffn.up.weight"),
    ),
    adapter(
        name="blocks-reversed",
        sentence="a loader fills the blocks from the last to the first",
        source="trymirai/lalamo PR 276",
        stage="attention_norm",
        also=("attention.query",),
        decoder=composed(order=lambda layers: reversed(range(layers))),
    ),
    adapter(
        name="final-gain-not-loaded",
        sentence="the last gain keeps its initial ones, since its name was not found",
        stage="final_norm",
        decoder=with_weights(lambda config, weights: {**weights, FINAL_GAIN: np.ones_like(weights[FINAL_GAIN])}),
    ),
    adapter(
        name="checkpoint-in-bfloat16",
        sentence="a checkpoint is read in bfloat16 and then cast up",
        precision="float32",
        stage="embedding",
        also=("attention_norm", "attention.query", "attention.key", "attention.value"),
        decoder=with_weights(lambda config, weights: {name: rounded(w, "bfloat16") for name, w in weights.items()}),
    ),
)
