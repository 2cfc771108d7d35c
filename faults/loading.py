"""Faults of refusal: bad parameters that are taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.inputs import Given, accepting, filled, parameters_mended
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes

parameter_fault = partial(accepting, stage="parameters", breaks=("INP-6",))


def _each(change: Callable[[tuple[int, ...], Any], Any]) -> Callable[[Config, Given], Any]:
    """Every given parameter changed, with its right shape known."""

    def mend(config: Config, given: dict[str, Any]) -> Given:
        shapes = parameter_shapes(config)
        return {name: change(shapes[name], value) if name in shapes else value for name, value in given.items()}

    return parameters_mended(mend)


def _known(config: Config, given: dict[str, Any]) -> Given:
    return {name: value for name, value in given.items() if name in parameter_shapes(config)}


def _broadcast(shape: tuple[int, ...], value: Any) -> Any:
    try:
        return np.broadcast_to(value, shape)
    except ValueError:
        return value


def _turned(shape: tuple[int, ...], value: Any) -> Any:
    array = np.asarray(value)
    return array.T if array.shape == shape[::-1] and array.shape != shape else value


def _reshaped(shape: tuple[int, ...], value: Any) -> Any:
    array = np.asarray(value)
    return array.reshape(shape) if array.size == np.prod(shape) else value


def _cut(shape: tuple[int, ...], value: Any) -> Any:
    array = np.asarray(value)
    return array[tuple(slice(n) for n in shape)] if array.ndim == len(shape) else value


def _finite(_shape: tuple[int, ...], value: Any) -> Any:
    return np.nan_to_num(value, posinf=1e300, neginf=-1e300) if np.asarray(value).dtype.kind == "f" else value


def _real(_shape: tuple[int, ...], value: Any) -> Any:
    array = np.asarray(value)
    return array.real.copy() if array.dtype.kind == "c" else value


def _as_float(_shape: tuple[int, ...], value: Any) -> Any:
    return np.asarray(value).astype(float)


def _not_finite_taken(config: Config, given: Given) -> Any:
    finite = {name: _finite((), value) for name, value in given.items()}
    found = validation.validate_parameters(config, finite)
    return {name: np.array(given[name], dtype=float) for name in found}


FAULTS = (
    parameter_fault(
        name="missing-parameters-filled", parameters=parameters_mended(filled),
        sentence="a missing parameter keeps its initial value, as where loading is not strict",
    ),
    parameter_fault(
        name="unknown-parameters-dropped", parameters=parameters_mended(_known),
        sentence="unknown parameters are dropped in silence, as where loading is not strict",
    ),
    parameter_fault(
        name="parameters-broadcast", parameters=_each(_broadcast),
        sentence="a parameter of a smaller shape is broadcast",
    ),
    parameter_fault(
        name="parameters-turned-to-fit", parameters=_each(_turned),
        sentence="a matrix of the transposed shape is transposed",
    ),
    parameter_fault(
        name="parameters-reshaped", parameters=_each(_reshaped),
        sentence="a parameter of the right number of scalars is reshaped",
    ),
    parameter_fault(
        name="parameters-cut", parameters=_each(_cut),
        sentence="a parameter that is too large is cut",
    ),
    parameter_fault(
        name="parameters-made-finite", parameters=_each(_finite),
        sentence="values that are not finite are replaced",
    ),
    parameter_fault(
        name="parameters-not-finite-taken", parameters=_not_finite_taken,
        sentence="values that are not finite are taken",
    ),
    parameter_fault(
        name="parameters-complex-taken", parameters=_each(_real),
        sentence="imaginary parts are discarded",
    ),
    parameter_fault(
        name="parameters-of-any-type-taken", parameters=_each(_as_float),
        sentence="whatever turns into a number is taken: strings, booleans, None",
    ),
)  # fmt: skip
