"""Coarser numbers in float64 arrays: rounding to a format, and operations whose results are so stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoderspec.reference.operations import Array, Gradients, Operation, Operations
from decoderspec.spec.precision import FORMATS, Format, Recipe
from decoderspec.spec.stages import suffix


def rounded(values: Array, name: str) -> Array:
    """The nearest values of a format (`float32`, `float16`, `bfloat16`), still in float64; overflow is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if name in ("float32", "float16"):
            return np.asarray(np.asarray(values).astype(name), np.float64)
        return _significand(np.asarray(values, np.float64), FORMATS[name])


def _significand(values: Array, form: Format) -> Array:
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, form.bits)), exponent - form.bits))


def accumulated(terms: Array, name: str, axis: int = -1) -> Array:
    """The sum along an axis, every partial sum rounded to a format."""
    total = np.zeros(terms.shape[:axis] + terms.shape[axis + 1 :] if axis != -1 else terms.shape[:-1])
    for term in np.moveaxis(terms, axis, 0):
        total = rounded(total + term, name)
    return total


def storing(recipe: Recipe, operations: Operations) -> Operations:
    """The same operations with results and gradients rounded to their declared formats; float64 is left alone."""
    if all(form.bits == FORMATS["float64"].bits for form in recipe.used):
        return operations
    return operations.each(lambda operation: _stored(recipe, operation))


def _stored(recipe: Recipe, operation: Operation) -> Operation:
    def perform(stage: str, *inputs: Any) -> Array:
        return rounded(operation.perform(stage, *inputs), _format(recipe, operation.name, stage).name)

    def vjp(stage: str, *arguments: Any) -> Gradients:
        found = operation.vjp(stage, *arguments)
        return tuple(None if g is None else rounded(g, recipe.gradients.name) for g in found)

    return Operation(operation.name, perform, vjp)


def _format(recipe: Recipe, operation: str, stage: str) -> Format:
    if operation == "rotary":
        return recipe.tables
    return recipe.loss if operation == "nll" else recipe.stored(suffix(stage.partition("/")[0]))
