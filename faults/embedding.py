"""Faults of the lookup."""

from __future__ import annotations

from functools import partial

import numpy as np

from decoderspec.faults.compositions import head
from decoderspec.faults.fault import Fault, Weights, swap
from decoderspec.faults.numbers import rounded
from decoderspec.reference import decoder as right
from decoderspec.reference.operations import Array, Operations, embed, embed_vjp
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, of_block

lookup = partial(Fault, family="embedding", stage="embedding", breaks=("VAL-1", "VAL-2"))


def _sinusoids(x: Array) -> Array:
    tokens, width = x.shape[-2:]
    angle = np.arange(tokens)[:, None] / 10000.0 ** (2 * (np.arange(width) // 2) / width)
    return np.asarray(np.where(np.arange(width) % 2, np.cos(angle), np.sin(angle)))


def _sixteen_bits(table: Array, tokens: Array) -> Array:
    width = table.shape[-1]
    offset = (tokens * width).astype(np.int16).astype(np.int64)
    return np.asarray(table.reshape(-1)[(offset[..., None] + np.arange(width)) % table.size])


def _clipped_norm(x: Array) -> Array:
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True))
    return np.asarray(x / np.maximum(length, 1.0))


def _shifted_right(tokens: Array) -> Array:
    return np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], axis=1)


def _forced_first(tokens: Array) -> Array:
    return np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, 1:]], axis=1)


def _added_everywhere(ops: Operations, config: Config, weights: Weights, tokens: Array) -> Array:
    x = first = ops.embed("embedding", weights[TABLE], tokens)
    for layer in range(config.layers):
        at = f"blocks.{layer}."
        x = ops.add(at + "attention_norm/first", x, first) if layer else x
        x = right.block(ops, config, of_block(weights, layer), x, 0, at)
    return head(ops, config, weights, x)


FAULTS = (
    lookup(
        name="embedding-scaled",
        sentence="rows are multiplied by the root of the model width, as in another family of models",
        source="TensorAuto/OpenTau PR 179; google/gemma_pytorch #29",
        operations=swap(
            embed=lambda table, tokens: embed(table, tokens) * np.sqrt(table.shape[-1]),
            embed_vjp=lambda dx, x, table, tokens: embed_vjp(dx * np.sqrt(table.shape[-1]), x, table, tokens),
        ),
    ),
    lookup(
        name="embedding-unscaled-by-root",
        sentence="rows are divided by the root of the model width",
        operations=swap(embed=lambda table, tokens: embed(table, tokens) / np.sqrt(table.shape[-1])),
    ),
    lookup(
        name="embedding-next-row",
        sentence="ids count from one",
        operations=swap(embed=lambda table, tokens: embed(table, (tokens + 1) % table.shape[-2])),
    ),
    lookup(
        name="embedding-offset-in-16-bits",
        breaks=("VAL-1",),
        sentence="the flat offset of a row is formed in too few bits and wraps for a large table",
        source="pytorch/pytorch #111484; microsoft/onnxruntime #32299",
        operations=swap(embed=_sixteen_bits),
    ),
    lookup(
        name="embedding-id-in-8-bits",
        breaks=("VAL-1",),
        sentence="ids are stored in one byte, as for a vocabulary of bytes",
        operations=swap(embed=lambda table, tokens: embed(table, tokens & 255)),
    ),
    lookup(
        name="embedding-id-in-16-bits",
        breaks=("VAL-1", "VAL-2"),
        sentence="ids are stored in sixteen bits, as in a file of training data",
        source="karpathy/nanoGPT (the format of its data files, for a vocabulary that fits)",
        operations=swap(embed=lambda table, tokens: embed(table, tokens & 65535)),
    ),
    lookup(
        name="embedding-last-row-unreachable",
        sentence="the last id is clamped to the one before it by an off-by-one bound",
        operations=swap(embed=lambda table, tokens: embed(table, np.minimum(tokens, max(0, table.shape[-2] - 2)))),
    ),
    lookup(
        name="embedding-padding-row",
        sentence="id 0 is taken for padding, and its row for zero",
        operations=swap(embed=lambda table, tokens: embed(table, tokens) * (tokens != 0)[..., None]),
    ),
    lookup(
        name="embedding-rows-of-length-one",
        sentence="rows longer than one are shortened, as an option of the library does",
        operations=swap(embed=lambda table, tokens: _clipped_norm(embed(table, tokens))),
    ),
    lookup(
        name="embedding-with-sinusoids",
        sentence="absolute positions are added although positions are rotary",
        operations=swap(embed=lambda table, tokens: embed(table, tokens) + _sinusoids(embed(table, tokens))),
    ),
    lookup(
        name="embedding-first-row-for-all",
        sentence="the ids of the first row of the batch are broadcast to all rows",
        breaks=("VAL-1", "VAL-2", "BAT-2"),
        operations=swap(embed=lambda table, tokens: embed(table, np.broadcast_to(tokens[:1], tokens.shape))),
    ),
    lookup(
        name="embedding-batch-and-time-mixed",
        sentence="ids are read as [T, B] and then transposed",
        breaks=("VAL-1", "VAL-2", "BAT-2"),
        operations=swap(embed=lambda table, tokens: embed(table, tokens.reshape(tokens.shape[::-1]).T)),
    ),
    lookup(
        name="embedding-shifted-right",
        sentence="a start token is put in front and the last token dropped, as a decoder in training does",
        operations=swap(embed=lambda table, tokens: embed(table, _shifted_right(tokens))),
    ),
    lookup(
        name="embedding-start-forced",
        sentence="the first token is replaced by a start token",
        operations=swap(embed=lambda table, tokens: embed(table, _forced_first(tokens))),
    ),
    lookup(
        name="embedding-in-float32",
        sentence="the table is kept in float32",
        operations=swap(embed=lambda table, tokens: rounded(embed(table, tokens), "float32")),
    ),
    lookup(
        name="embedding-in-bfloat16",
        sentence="the table is kept in bfloat16 beside float32 weights",
        precision="float32",
        operations=swap(embed=lambda table, tokens: rounded(embed(table, tokens), "bfloat16")),
    ),
    lookup(
        name="embedding-added-in-every-block",
        sentence="the embedding is added to the stream again before each block",
        stage="attention_norm",
        also=("after_attention",),
        decoder=_added_everywhere,
    ),
)
