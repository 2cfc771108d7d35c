"""Reverse accumulation over a record of operations: a tape notes each call, and is pulled back once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoderspec.reference.operations import Array, Gradients, Operation, Operations


@dataclass(frozen=True)
class Step:
    """One call that was made: where, what, on which inputs, with which output."""

    stage: str
    operation: Operation
    inputs: tuple[Any, ...]
    output: Array


@dataclass(frozen=True)
class Tape:
    """The calls in the order in which they were made. Holding the arrays is what keeps their identities apart."""

    steps: list[Step] = field(default_factory=list)

    def recording(self, operations: Operations) -> Operations:
        """The same operations, noting each call here."""

        def record(operation: Operation) -> Operation:
            def perform(stage: str, *inputs: Any) -> Array:
                output = operation(stage, *inputs)
                self.steps.append(Step(stage, operation, inputs, output))
                return output

            return Operation(operation.name, perform, operation.vjp)

        return operations.each(record)

    def stages(self) -> dict[str, Array]:
        """The value of every stage, in forward order; steps on the way to one (`stage/step`) are left out."""
        return {step.stage: step.output for step in self.steps if "/" not in step.stage}

    def pullback(self, upstream: Array) -> Iterator[tuple[Step, Gradients]]:
        """Walk back from the last output, yielding each step with the gradients of its inputs; empties the tape."""
        gradients = {id(self.steps[-1].output): upstream}
        while self.steps:
            step = self.steps.pop()  # and let go of: whatever lives on was made before, so identities stay apart
            dy = gradients.pop(id(step.output), None)
            if dy is None:
                continue  # nothing downstream used it
            inputs = step.operation.vjp(step.stage, dy, step.output, *step.inputs)
            for value, gradient in zip(step.inputs, inputs, strict=True):
                if gradient is not None:
                    known = gradients.get(id(value))
                    gradients[id(value)] = gradient if known is None else known + gradient
            yield step, inputs


@dataclass(frozen=True)
class Gradient:
    """The gradients of some leaves, and the part that each use of each leaf has in them."""

    leaves: dict[str, Array]
    uses: dict[tuple[str, str], Array]  # by leaf and stage


def accumulate(tape: Tape, upstream: Array, leaves: Mapping[str, Array]) -> Gradient:
    """Gradient of each leaf, in the order of the leaves: the sum over all its uses, zero where it has none."""
    names = {id(leaf): name for name, leaf in leaves.items()}
    total: dict[str, Array] = {}
    uses: dict[tuple[str, str], Array] = {}
    for step, gradients in tape.pullback(upstream):
        for value, gradient in zip(step.inputs, gradients, strict=True):
            name = names.get(id(value))
            if name is not None and gradient is not None:
                uses[name, step.stage] = gradient
                total[name] = total[name] + gradient if name in total else gradient
    return Gradient({name: total.get(name, np.zeros_like(leaf)) for name, leaf in leaves.items()}, uses)
