"""The operations that can be judged by themselves: their inputs, what they are in the reference and in the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoderspec.properties import operation_inputs as drawn
from decoderspec.properties.cases import Array, Case
from decoderspec.reference import decoder, oracle
from decoderspec.reference.operations import Operations
from decoderspec.spec.precision import Recipe


@dataclass(frozen=True)
class Kernel:
    """One testable operation: how its inputs are drawn, what it is, and what is true of it."""

    name: str
    draw: Mapping[str, Callable[[Case, Recipe, np.random.Generator], Any]]
    compute: Callable[..., Array]  # (operations, *inputs): the reference's composition, for the noise
    truth: Callable[..., Any]  # (*inputs, digits=, arithmetic=)
    causal_inputs: tuple[str, ...] = ()  # along the second last axis


def _rotate(ops: Operations, x: Array, base: float, offset: int) -> Array:
    positions = offset + np.arange(x.shape[-2])
    return ops.rotate("rotate", x, ops.rotary("rotate/table", positions, x.shape[-1], base))


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            "embed",
            {"table": drawn.table, "tokens": drawn.tokens},
            lambda o, e, z: o.embed("embed", e, z),
            oracle.embed,
        ),
        Kernel(
            "rms_norm",
            {"x": drawn.stream, "gain": drawn.gain, "epsilon": drawn.epsilon},
            lambda o, x, g, e: o.rms_norm("rms_norm", x, g, e),
            oracle.rms_norm,
        ),
        Kernel(
            "linear",
            {"x": drawn.stream, "weight": drawn.weight},
            lambda o, x, w: o.linear("linear", x, w),
            oracle.linear,
        ),
        Kernel("rotate", {"x": drawn.heads, "base": drawn.base, "offset": drawn.offset}, _rotate, oracle.rotate),
        Kernel(
            "attend",
            {"query": drawn.scored, "key": drawn.scored, "value": drawn.heads},
            lambda o, q, k, v: decoder.attend(o, q, k, v),
            oracle.attend,
            ("query", "key", "value"),
        ),
        Kernel("silu", {"gate": drawn.gate}, lambda o, g: o.silu("silu", g), oracle.silu),
        Kernel(
            "swiglu", {"gate": drawn.gate, "up": drawn.wide}, lambda o, g, u: decoder.swiglu(o, g, u), oracle.swiglu
        ),
        Kernel("add", {"x": drawn.wide, "branch": drawn.wide}, lambda o, x, y: o.add("add", x, y), oracle.add),
        Kernel(
            "project",
            {"x": drawn.stream, "table": drawn.table},
            lambda o, x, e: o.project("project", x, e),
            oracle.project,
        ),
        Kernel(
            "nll",
            {"logits": drawn.logits, "targets": drawn.targets},
            lambda o, x, y: o.nll("loss", x, y),
            oracle.loss_of_logits,
        ),
        Kernel("block", {"x": drawn.stream}, lambda o: o, oracle.block, ("x",)),
    )
}
