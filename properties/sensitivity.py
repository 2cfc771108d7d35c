"""What a run would have caught: the smallest relative error in one operation that the limits do not let through."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case
from decoderspec.properties.run import Run
from decoderspec.reference import decoder
from decoderspec.reference.limits import worst_allowed
from decoderspec.reference.operations import OPERATIONS, Operation, Operations

PROBE = 2.0**-20  # small enough to be linear, large enough to stand out of float64
TESTED = (
    "embed", "rms_norm", "linear", "rotate", "scores", "softmax", "mix", "silu", "multiply", "add", "project",
)  # fmt: skip


def caught(run: Run) -> dict[str, float]:
    """By operation: the independent relative error of its elements that the logits alone would have betrayed."""
    cases = [case for case in run.sample if case.config.layers > 0]
    return {name: min((_caught(run, case, name) for case in cases), default=float("inf")) for name in TESTED}


def _caught(run: Run, case: Case, name: str) -> float:
    truth = run.truth(case)
    tokens, unit = truth.batch[0], truth.units["logits"]
    moved = decoder.decoder(disturbed(name, case.seed), case.config, truth.parameters, tokens)
    exact = decoder.decoder(OPERATIONS, case.config, truth.parameters, tokens)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nanmax(np.abs(moved - exact) / unit)
    return float(PROBE * worst_allowed(unit.size) / ratio) if ratio > 0 else float("inf")


def disturbed(name: str, seed: int, common: bool = False, size: float = PROBE) -> Operations:
    """The operations with independent relative errors in every result of one of them, or with one common factor."""
    rng = np.random.default_rng(seed)

    def change(operation: Operation) -> Operation:
        if operation.name != name:
            return operation

        def perform(stage: str, *inputs: Any) -> Array:
            output = operation(stage, *inputs)
            with np.errstate(invalid="ignore"):
                wrong: Array = output * (1 + size * (1.0 if common else rng.standard_normal(output.shape)))
            return wrong

        return Operation(name, perform, operation.vjp)

    return OPERATIONS.each(change)
