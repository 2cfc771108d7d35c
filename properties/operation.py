"""One operation or one block as the thing under test: its inputs, its truth and its noise."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from decoderspec.adapters.command import CommandError, CommandImplementation
from decoderspec.adapters.command_operation import operation as of_command
from decoderspec.properties import operation_inputs as drawn
from decoderspec.properties.cases import Array, Case, draw_parameters
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.kernels import KERNELS, Kernel
from decoderspec.properties.loading import LoadError, attribute
from decoderspec.properties.subject import called, reading
from decoderspec.properties.truth import DIGITS, Exact, projected
from decoderspec.reference import certified, decoder, oracle, units
from decoderspec.reference.arithmetic import Precision, multiprecision
from decoderspec.reference.limits import Comparison
from decoderspec.reference.operations import OPERATIONS, Operations
from decoderspec.reference.tape import Tape, accumulate
from decoderspec.spec.arrays import round_to, to_numpy
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import BLOCK_PARAMETERS, of_block
from decoderspec.spec.precision import Recipe

Inputs = dict[str, Any]
HALVINGS = 24  # from any size that is drawn to one that float16 can bear


@dataclass
class OperationSubject:
    """A kernel under test, forward and, where there is one, backward."""

    kernel: Kernel
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None
    recipe: Recipe
    dtypes: dict[str, str] = field(default_factory=dict)


def load_operation(name: str, operation: str, recipe: Recipe) -> OperationSubject:
    """The function of that name as that operation. Raises `LoadError`."""
    if operation not in KERNELS:
        raise LoadError(f"there is no operation {operation!r}; allowed: {', '.join(KERNELS)}")
    function = attribute(name)
    if isinstance(function, CommandImplementation):
        try:
            forward, derivative = of_command(function, operation, tuple(KERNELS[operation].draw))
        except CommandError as reason:
            raise LoadError(str(reason)) from None
        return OperationSubject(KERNELS[operation], forward, derivative, recipe)
    if not callable(function):
        raise LoadError(f"{name} is {type(function).__name__}, not a function of {tuple(KERNELS[operation].draw)}")
    place, _, path = name.rpartition(":")
    backward = getattr(function, "backward", None) or _beside(place, path + "_backward")
    return OperationSubject(KERNELS[operation], function, backward, recipe)


def _beside(place: str, path: str) -> Callable[..., Any] | None:
    module = sys.modules.get(f"decoderspec_subject_{place.rpartition('/')[2].removesuffix('.py')}")
    found = module if place.endswith(".py") else importlib.import_module(place)
    return getattr(found, path, None)


class OperationCase:
    """Inputs, truth and noise of one example of one kernel."""

    def __init__(self, subject: OperationSubject, case: Case) -> None:
        self.subject, self.case, self.kernel = subject, case, subject.kernel
        rng = np.random.default_rng((case.seed, 7))
        self.inputs: Inputs = {name: draw(case, subject.recipe, rng) for name, draw in self.kernel.draw.items()}
        if self.is_block:
            weights = of_block(draw_parameters(case, subject.recipe), 0)
            self.inputs |= weights | {"offset": drawn.offset(case, subject.recipe, rng)}
        self.arrays = [name for name, value in self.inputs.items() if _is_real(value)]
        self.inputs = self.scaled(1.0)
        self.shape = tuple(np.shape(self.compute(OPERATIONS, self.inputs)))
        self.upstream = self._rounded(np.asarray(rng.normal(size=self.shape)))
        self._slopes: dict[str, Exact] = {}
        self._fit()

    def _fit(self) -> None:
        """Halve everything until all values and gradients are finite in the declared formats, with room to spare."""
        limit = drawn.bearable(self.subject.recipe)
        for _ in range(HALVINGS):
            sizes = [drawn.largest(self.inputs[name]) for name in self.arrays]
            self.slopes(drawn.noting(OPERATIONS, sizes))
            if max(sizes) <= limit:
                return
            self.inputs, self.upstream = self.scaled(0.5), self._rounded(self.upstream / 2)

    def scaled(self, factor: float) -> Inputs:
        """The inputs with every real array times a factor, and rounded as the declaration of the weights says."""
        return {k: self._rounded(v * factor) if k in self.arrays else v for k, v in self.inputs.items()}

    def _rounded(self, values: Array) -> Array:
        return round_to(values, self.subject.recipe.weights)

    @property
    def is_block(self) -> bool:
        """A block takes its configuration and its parameters by name."""
        return self.kernel.name == "block"

    @property
    def config(self) -> Config:
        """Sizes and constants."""
        return self.case.config

    def compute(self, operations: Operations, inputs: Inputs) -> Array:
        """The reference's composition."""
        if self.is_block:
            return decoder.block(operations, self.config, inputs, inputs["x"], inputs["offset"])
        return self.kernel.compute(operations, *inputs.values())

    def true(self, inputs: Inputs, digits: int, arithmetic: Precision) -> Any:
        """The oracle's value."""
        if self.is_block:
            weights = {name: inputs[name] for name in BLOCK_PARAMETERS}
            how: Any = {"offset": inputs["offset"], "digits": digits, "arithmetic": arithmetic}
            return oracle.block(self.config, weights, inputs["x"], **how)["output"]
        return self.kernel.truth(*inputs.values(), digits=digits, arithmetic=arithmetic)

    def arguments(self, inputs: Inputs) -> tuple[Any, ...]:
        """What the function under test is called with: copies of its own."""
        own = {name: np.array(v) if isinstance(v, np.ndarray) else v for name, v in inputs.items()}
        if self.is_block:
            return self.config, {name: own[name] for name in BLOCK_PARAMETERS}, own["x"], own["offset"]
        return tuple(own.values())

    def pulled(self, inputs: Inputs) -> tuple[Any, ...]:
        """What its derivative is called with: the upstream gradient first."""
        upstream = np.array(self.upstream) if self.upstream.ndim else float(self.upstream)
        return upstream, *self.arguments(inputs)

    def call(self, inputs: Inputs | None = None) -> Array:
        """The output under test; a wrong shape is a finding."""
        return self.output(self.forward(*self.arguments(inputs or self.inputs)))

    def forward(self, *arguments: Any) -> Any:
        """What the function under test hands out, as it is."""
        return called(self.kernel.name, self.subject.forward, *arguments)

    def output(self, given: Any) -> Array:
        """A copy of what the function handed out; a wrong shape is a finding."""
        output = self._read(given)
        if output.shape != self.shape:
            raise Finding(f"{self.kernel.name} has shape {output.shape}, the specification says {self.shape}")
        return output

    def call_backward(self) -> dict[str, Array]:
        """The gradients under test by the input's name."""
        return self.gradients(self.backward(*self.pulled(self.inputs)))

    def backward(self, *arguments: Any) -> Any:
        """What the derivative under test hands out, as it is. Raises `Absent` where there is none."""
        if self.subject.backward is None:
            raise Absent(
                "a function named with _backward, taking the upstream gradient first, lets the derivative be tested"
            )
        return called(f"the derivative of {self.kernel.name}", self.subject.backward, *arguments)

    def gradients(self, given: Any) -> dict[str, Array]:
        """Copies of what the derivative handed out, by the input's name; wrong shapes are findings."""
        given = _of_block(given) if self.is_block else given
        parts = given if isinstance(given, (tuple, list)) else (given,)
        if len(parts) < len(self.arrays):
            raise Finding(
                f"the derivative of {self.kernel.name} returned {len(parts)} gradients,"
                f" one is expected for each of {', '.join(self.arrays)}"
            )
        found = {name: self._read(part) for name, part in zip(self.arrays, parts, strict=False)}
        for name, value in found.items():
            if value.shape != self.inputs[name].shape:
                raise Finding(
                    f"the gradient of {name} has shape {value.shape}, expected {self.inputs[name].shape}", name
                )
        return found

    def _read(self, value: Any) -> Array:
        right = sum(np.size(each) for each in self.inputs.values())
        with reading(self.kernel.name):
            array, self.subject.dtypes[self.kernel.name] = to_numpy(value, 2**20 + right**2)
        return array

    def judge(self, output: Array) -> Comparison:
        """The output against the truth."""
        return self._truth.judge(output, self.unit(self.subject.recipe))

    def error(self, output: Array) -> Array:
        """The output less the truth."""
        return self._truth.error(output)

    def unit(self, recipe: Recipe) -> Array:
        """Noise units of the output in a precision."""
        return units.unit(units.deviations(self.outputs, recipe, self.case.seed)["output"])

    @cached_property
    def _truth(self) -> Exact:
        return Exact.of(
            certified.values(lambda *how: {"output": self.true(self.inputs, *how)}, digits=DIGITS)["output"]
        )

    def outputs(self, operations: Operations) -> dict[str, Array]:
        """What the reference's composition gives under some operations."""
        return {"output": self.compute(operations, self.inputs)}

    def slopes(self, operations: Operations) -> dict[str, Array]:
        """The gradients that it gives, by the input's name."""
        tape = Tape()
        leaves = {name: self.inputs[name] for name in self.arrays}
        output = self.compute(tape.recording(operations), self.inputs)
        return accumulate(tape, np.broadcast_to(self.upstream, np.shape(output)), leaves).leaves

    def judge_gradient(self, name: str, gradient: Array) -> Comparison:
        """One gradient, projected on a random direction, against the true slope."""
        direction = self._direction(name)
        unit = units.along({name: self._moved[name]}, {name: direction})
        return self._slope(name).judge(projected({name: gradient}, {name: direction}), unit)

    def _direction(self, name: str) -> Array:
        signs: Array = np.random.default_rng((self.case.seed, 8)).choice([-1.0, 1.0], self.inputs[name].shape)
        return signs

    def _slope(self, name: str) -> Exact:
        """The true slope of the projected output along the direction of one input, kept for who asks again."""
        if name not in self._slopes:

            def function(value: Any, digits: int) -> Any:  # the others stay floats, which are made exact at once
                true = self.true({**self.inputs, name: value}, digits, oracle.fastest())
                return multiprecision(digits).exact(true)

            at = [self.inputs[name]], self.upstream, [self._direction(name)]
            self._slopes[name] = Exact.of(oracle.operation_derivative(function, *at, digits=DIGITS))
        return self._slopes[name]

    @cached_property
    def _moved(self) -> dict[str, Array]:
        return units.deviations(self.slopes, self.subject.recipe, self.case.seed)


def _of_block(given: Any) -> list[Any]:
    """The gradients of a block in the order of its inputs."""
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not isinstance(given[1], Mapping):
        raise Finding("the derivative of block must return the gradient of x and a mapping of those of its parameters")
    dx, others = given
    for name in BLOCK_PARAMETERS:
        if name not in others:
            raise Finding(f"the derivative of block has no gradient of {name}", name)
    return [dx, *(others[name] for name in BLOCK_PARAMETERS)]


def _is_real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"
