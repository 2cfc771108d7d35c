"""Vectors of single operations: output, vector-Jacobian product, and its slope along one direction for each input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from decoderspec.golden.vectors import results
from decoderspec.golden.vectors.inputs import (
    VectorError,
    array,
    config_of,
    ids,
    require_exact,
    seed_of,
)
from decoderspec.golden.vectors.results import Json
from decoderspec.properties.kernels import KERNELS
from decoderspec.reference import decoder, oracle
from decoderspec.reference.arithmetic import Exact
from decoderspec.reference.operations import OPERATIONS, Array, Operations
from decoderspec.reference.tape import Tape, accumulate
from decoderspec.spec.parameters import block_shapes

BLOCK = "block"
SIGNATURES = {name: tuple(kernel.draw) for name, kernel in KERNELS.items()} | {
    BLOCK: ("config", "parameters", "x", "offset")
}

Inputs = dict[str, Any]


def completed(operation: str, case: Json) -> Json:
    """The case with what is expected of it. Raises `VectorError` where its inputs cannot be read."""
    precisions = tuple(case["precisions"])
    inputs = read(operation, case["inputs"])
    leaves = leaves_of(inputs)
    for name, leaf in leaves.items():
        require_exact(leaf, precisions, name)
    expected = {"output": _output(operation, inputs, precisions, seed_of(case["id"]))}
    if "upstream" in case:
        upstream = array(case["upstream"], tuple(expected["output"]["shape"]))
        require_exact(upstream, precisions, "upstream")
        expected |= _pulled_back(operation, inputs, upstream, precisions, seed_of(case["id"]))
    return {**case, "expected": expected}


def read(operation: str, given: Json) -> Inputs:
    """Inputs in the order of the operation's signature. Raises `VectorError`."""
    if list(given) != list(SIGNATURES[operation]):
        raise VectorError(f"inputs of {operation} must be {', '.join(SIGNATURES[operation])}, in this order")
    if operation == BLOCK:
        return _read_block(given)
    return {name: _value(name, entry, given) for name, entry in given.items()}


def _value(name: str, entry: Any, given: Json) -> Any:
    if name in ("tokens", "targets"):
        limit = given["table"]["shape"][0] if name == "tokens" else given["logits"]["shape"][-1]
        return ids(entry, limit)
    if isinstance(entry, dict):
        return array(entry)
    return int(entry) if name == "offset" else float(entry)


def _read_block(given: Json) -> Inputs:
    config = config_of(given["config"])
    shapes, entries = block_shapes(config), given["parameters"]
    if list(entries) != list(shapes):
        raise VectorError(f"parameters of a block must be {', '.join(shapes)}, in this order")
    weights = {name: array(entries[name], shape) for name, shape in shapes.items()}
    return {"config": config, "parameters": weights, "x": array(given["x"]), "offset": int(given["offset"])}


def leaves_of(inputs: Inputs) -> dict[str, Array]:
    """The real arrays among the inputs by name: what has a gradient; the parameters of a block by theirs."""
    found: dict[str, Array] = {}
    for name, value in inputs.items():
        if isinstance(value, Mapping):
            found |= value
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
            found[name] = value
    return found


def with_leaves(inputs: Inputs, leaves: Mapping[str, Any]) -> Inputs:
    """The inputs with other real arrays."""
    return {
        name: {key: leaves[key] for key in value} if isinstance(value, Mapping) else leaves.get(name, value)
        for name, value in inputs.items()
    }


def compute(operations: Operations, operation: str, inputs: Inputs) -> Array:
    """The reference's composition, for the noise."""
    if operation == BLOCK:
        return decoder.block(operations, inputs["config"], inputs["parameters"], inputs["x"], inputs["offset"])
    return KERNELS[operation].compute(operations, *inputs.values())


def true(operation: str, inputs: Inputs, digits: int) -> Any:
    """The oracle's value."""
    if operation == BLOCK:
        config, weights, x, offset = inputs.values()
        return oracle.block(config, weights, x, offset=offset, digits=digits)["output"]
    return KERNELS[operation].truth(*inputs.values(), digits=digits)


# --- Forward ---


def _output(operation: str, inputs: Inputs, precisions: tuple[str, ...], seed: int) -> Json:
    truth = results.forward_exactly(lambda digits: {"output": true(operation, inputs, digits)})["output"]
    moved = results.deviations(lambda ops: {"output": compute(ops, operation, inputs)}, precisions, seed)
    return results.result(truth, moved["output"])


# --- Backward ---


def _pulled_back(operation: str, inputs: Inputs, upstream: Array, precisions: tuple[str, ...], seed: int) -> Json:
    leaves = leaves_of(inputs)
    moved = results.deviations(_pullback(operation, inputs, upstream), precisions, seed)
    expected: Json = {"gradients": {}, "slopes": {}}
    for name in leaves:
        exact = _gradient(operation, inputs, upstream, name)
        signs = results.sign_pattern(exact.shape)
        expected["gradients"][name] = results.gradient(exact, moved[name])
        slope = results.slopes(np.sum(exact * signs))
        expected["slopes"][name] = results.result(slope, results.along(moved[name], signs))
    return expected


def _pullback(operation: str, inputs: Inputs, upstream: Array) -> Callable[[Operations], dict[str, Array]]:
    def pulled(operations: Operations) -> dict[str, Array]:
        tape = Tape()
        output = compute(tape.recording(operations), operation, inputs)
        return accumulate(tape, np.broadcast_to(upstream, np.shape(output)), leaves_of(inputs)).leaves

    return pulled


def _gradient(operation: str, inputs: Inputs, upstream: Array, name: str) -> Exact:
    """One difference for each element of one input."""
    names, leaves = list(leaves_of(inputs)), list(leaves_of(inputs).values())

    def function(*values: Any, digits: int) -> Any:
        return true(operation, with_leaves(inputs, dict(zip(names, values, strict=True))), digits)

    shape = leaves[names.index(name)].shape
    found = np.empty(shape, object)
    for index in np.ndindex(shape):
        direction = np.zeros(shape)
        direction[index] = 1.0
        along = [direction if each == name else None for each in names]
        found[index] = oracle.operation_derivative(function, leaves, upstream, along, digits=results.SLOPE_DIGITS)
    return found


def shape_of(operation: str, inputs: Inputs) -> tuple[int, ...]:
    """Of the output."""
    return tuple(np.shape(compute(OPERATIONS, operation, inputs)))
