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
from decoderspec.properties.cases import Array, Case, draw_parameters
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.loading import LoadError, attribute
from decoderspec.properties.subject import called, reading
from decoderspec.properties.truth import DIGITS, Exact, projected
from decoderspec.reference import decoder, oracle, units
from decoderspec.reference.limits import Comparison
from decoderspec.reference.operations import OPERATIONS, Operations
from decoderspec.reference.tape import Tape, accumulate
from decoderspec.spec.arrays import round_to, to_numpy
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import BLOCK_PARAMETERS, of_block
from decoderspec.spec.precision import Recipe

Inputs = dict[str, Any]


def _hidden(case: Case, rng: np.random.Generator, width: int) -> Array:
    scale = {"small": 0.02, "peaked": 3.0}.get(case.style, 1.0)
    x = rng.normal(size=(case.batch, case.tokens, width)) * scale
    if case.style == "spiky":
        x[..., rng.integers(width)] *= 100.0
    return np.asarray(x)


def _heads(case: Case, rng: np.random.Generator) -> Array:
    return np.asarray(_hidden(case, rng, case.config.model_width)).reshape(
        case.batch, case.config.heads, case.tokens, case.config.head_width
    )


def _gain(case: Case, rng: np.random.Generator) -> Array:
    return rng.uniform(-2, 2, case.config.model_width)


def _weight(case: Case, rng: np.random.Generator) -> Array:
    shape = (case.config.model_width, case.config.feed_forward_width)
    return np.asarray(rng.normal(size=shape) / np.sqrt(shape[0]))


def _table(case: Case, rng: np.random.Generator) -> Array:
    return rng.normal(size=(case.config.vocabulary_size, case.config.model_width))


def _ids(case: Case, rng: np.random.Generator) -> Array:
    return rng.integers(0, case.config.vocabulary_size, (case.batch, case.tokens))


def _offset(case: Case, rng: np.random.Generator) -> int:
    return int(rng.integers(0, 50))


def _logits(case: Case, rng: np.random.Generator) -> Array:
    return _hidden(case, rng, case.config.vocabulary_size) * 4


def _wide(case: Case, rng: np.random.Generator) -> Array:
    return _hidden(case, rng, case.config.feed_forward_width) * 3


@dataclass(frozen=True)
class Kernel:
    """One testable operation: how its inputs are drawn, what it is, and what is true of it."""

    name: str
    draw: Mapping[str, Callable[[Case, np.random.Generator], Any]]
    compute: Callable[..., Array]  # (operations, *inputs): the reference's composition, for the noise
    truth: Callable[..., Any]  # (*inputs, digits=)
    causal_inputs: tuple[str, ...] = ()  # along the second last axis


def _rotate(ops: Operations, x: Array, base: float, offset: int) -> Array:
    positions = offset + np.arange(x.shape[-2])
    return ops.rotate("rotate", x, ops.rotary("rotate/table", positions, x.shape[-1], base))


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("embed", {"table": _table, "tokens": _ids}, lambda o, e, z: o.embed("embed", e, z), oracle.embed),
        Kernel(
            "rms_norm",
            {
                "x": lambda c, r: _hidden(c, r, c.config.model_width),
                "gain": _gain,
                "epsilon": lambda c, r: c.config.rms_epsilon,
            },
            lambda o, x, g, e: o.rms_norm("rms_norm", x, g, e),
            oracle.rms_norm,
        ),
        Kernel(
            "linear",
            {"x": lambda c, r: _hidden(c, r, c.config.model_width), "weight": _weight},
            lambda o, x, w: o.linear("linear", x, w),
            oracle.linear,
        ),
        Kernel(
            "rotate", {"x": _heads, "base": lambda c, r: c.config.rope_base, "offset": _offset}, _rotate, oracle.rotate
        ),
        Kernel(
            "attend",
            {"query": _heads, "key": _heads, "value": _heads},
            lambda o, q, k, v: decoder.attend(o, q, k, v),
            oracle.attend,
            ("query", "key", "value"),
        ),
        Kernel("silu", {"gate": _wide}, lambda o, g: o.silu("silu", g), oracle.silu),
        Kernel("swiglu", {"gate": _wide, "up": _wide}, lambda o, g, u: decoder.swiglu(o, g, u), oracle.swiglu),
        Kernel("add", {"x": _wide, "branch": _wide}, lambda o, x, y: o.add("add", x, y), oracle.add),
        Kernel(
            "project",
            {"x": lambda c, r: _hidden(c, r, c.config.model_width), "table": _table},
            lambda o, x, e: o.project("project", x, e),
            oracle.project,
        ),
        Kernel(
            "nll",
            {"logits": _logits, "targets": _ids},
            lambda o, x, y: o.nll("loss", x, y),
            lambda x, y, digits: oracle.loss_of_logits(x, y, digits=digits),
        ),
        Kernel("block", {"x": lambda c, r: _hidden(c, r, c.config.model_width)}, lambda o: o, oracle.block, ("x",)),
    )
}


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
        drawn = {name: draw(case, rng) for name, draw in self.kernel.draw.items()}
        if self.is_block:
            weights = draw_parameters(case, subject.recipe)
            drawn |= of_block(weights, 0) | {
                "offset": int(rng.integers(0, max(1, case.config.max_positions - case.tokens + 1)))
            }
        self.inputs: Inputs = {
            name: round_to(value, subject.recipe.weights) if _is_real(value) else value for name, value in drawn.items()
        }
        self.arrays = [name for name, value in self.inputs.items() if _is_real(value)]
        self.upstream = round_to(np.asarray(rng.normal(size=self.shape)), subject.recipe.weights)

    @property
    def is_block(self) -> bool:
        """A block takes its configuration and its parameters by name."""
        return self.kernel.name == "block"

    @property
    def config(self) -> Config:
        """Sizes and constants."""
        return self.case.config

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output."""
        return tuple(np.asarray(self.compute(OPERATIONS, self.inputs)).shape)

    def compute(self, operations: Operations, inputs: Inputs) -> Array:
        """The reference's composition."""
        if self.is_block:
            return decoder.block(operations, self.config, inputs, inputs["x"], inputs["offset"])
        return self.kernel.compute(operations, *inputs.values())

    def true(self, inputs: Inputs, digits: int) -> Any:
        """The oracle's value."""
        if self.is_block:
            weights = {name: inputs[name] for name in BLOCK_PARAMETERS}
            return oracle.block(self.config, weights, inputs["x"], offset=inputs["offset"], digits=digits)["output"]
        return self.kernel.truth(*inputs.values(), digits=digits)

    def arguments(self, inputs: Inputs) -> tuple[Any, ...]:
        """What the function under test is called with: copies of its own."""
        own = {name: np.array(v) if isinstance(v, np.ndarray) else v for name, v in inputs.items()}
        if self.is_block:
            return self.config, {name: own[name] for name in BLOCK_PARAMETERS}, own["x"], own["offset"]
        return tuple(own.values())

    def call(self, inputs: Inputs | None = None) -> Array:
        """The output under test; a wrong shape is a finding."""
        output = self._read(called(self.kernel.name, self.subject.forward, *self.arguments(inputs or self.inputs)))
        if output.shape != self.shape:
            raise Finding(f"{self.kernel.name} has shape {output.shape}, the specification says {self.shape}")
        return output

    def call_backward(self) -> dict[str, Array]:
        """The gradients under test by the input's name."""
        if self.subject.backward is None:
            raise Absent(
                "a function named with _backward, taking the upstream gradient first, lets the derivative be tested"
            )
        what = f"the derivative of {self.kernel.name}"
        upstream = np.array(self.upstream) if self.upstream.ndim else float(self.upstream)
        given = called(what, self.subject.backward, upstream, *self.arguments(self.inputs))
        if self.is_block:
            given = _of_block(given)
        parts = given if isinstance(given, (tuple, list)) else (given,)
        if len(parts) < len(self.arrays):
            raise Finding(
                f"{what} returned {len(parts)} gradients, one is expected for each of {', '.join(self.arrays)}"
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
        return Exact.of(self.true(self.inputs, DIGITS))

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
        direction = np.random.default_rng((self.case.seed, 8)).choice([-1.0, 1.0], gradient.shape)
        inputs = [self.inputs[key] for key in self.arrays]

        def function(*values: Any, digits: int) -> Any:
            return self.true({**self.inputs, **dict(zip(self.arrays, values, strict=True))}, digits)

        along = [direction if key == name else None for key in self.arrays]
        slope = oracle.operation_derivative(function, inputs, self.upstream, along, digits=DIGITS)
        unit = units.along({name: self._moved[name]}, {name: direction})
        return Exact.of(slope).judge(projected({name: gradient}, {name: direction}), unit)

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
