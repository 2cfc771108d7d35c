"""Faults of memory order: a strided view is read as if it were contiguous.

Only views inside the decoder are here. What the suite hands over is contiguous, since no requirement says that an
implementation must take anything else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from decoderspec.faults.fault import Fault, swap
from decoderspec.faults.pullbacks import backward
from decoderspec.reference import operations as right
from decoderspec.reference.operations import Array

SOURCE = "vllm-project/vllm PR 3324; NVIDIA/TransformerEngine PR 1017; huggingface/candle #3004"
reading = partial(Fault, family="heads", breaks=("VAL-1", "VAL-2"), source=SOURCE)


def in_memory_order(x: Array) -> Array:
    """The elements as they lie in memory, in the shape of the view."""
    return x.ravel(order="K").reshape(x.shape)


def _mix_vjp(do: Array, o: Array, p: Array, v: Array) -> Any:
    return right.mix_vjp(in_memory_order(do), o, p, v)


FAULTS = (
    reading(
        name="rotation-reads-memory-order",
        stage="attention.rotated_query",
        also=("attention.rotated_key",),
        sentence="the rotation takes the view of a head for contiguous and turns parts of other tokens",
        operations=swap(rotate=lambda x, table: right.rotate(in_memory_order(x), table)),
    ),
    reading(
        name="values-read-in-memory-order",
        stage="attention.heads",
        sentence="the averaging kernel takes the view of a head's values for contiguous",
        operations=swap(mix=lambda p, v: right.mix(p, in_memory_order(v))),
    ),
    reading(
        name="head-reads-memory-order",
        family="head",
        stage="logits",
        sentence="the transposed table is a view, and is read as it lies in memory",
        operations=swap(project=lambda x, table: right.linear(x, in_memory_order(table.T))),
    ),
    backward(
        name="upstream-read-in-memory-order",
        stage="gradient.mix",
        sentence="the pullback of the averaging takes the upstream gradient for contiguous, which is a view",
        source="flagos-ai/FlagGems PR 1082, #5392",
        operations=swap(mix_vjp=_mix_vjp),
    ),
)
