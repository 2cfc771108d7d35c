"""Faults of refusal: bad parameters that are taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import FaultyModel
from decoderspec.faults.inputs import Given, accepting, filled, parameters_mended
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_shapes

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


def _in(places: Callable[[str], bool], mend: Callable[[Config, Given], Any]) -> Callable[[Config, Given], Any]:
    """A fault in some parameters alone: the others are checked as they came."""

    def some(config: Config, given: Given) -> Any:
        rest = {name: np.ones(parameter_shapes(config)[name]) for name in parameter_shapes(config) if places(name)}
        checked = validation.validate_parameters(config, {**given, **rest})
        right = {name: np.ones(shape) for name, shape in parameter_shapes(config).items()}
        found = mend(config, {**right, **{name: value for name, value in given.items() if places(name)}})
        return {name: found[name] if places(name) else checked[name] for name in checked}

    return some


def _gains_of_blocks(name: str) -> bool:
    return name.startswith("blocks.") and name.endswith(".gain")


def _without_buffers(config: Config, given: dict[str, Any]) -> Given:
    return {name: value for name, value in given.items() if not name.endswith((".bias", ".inv_freq", "masked_bias"))}


def _gains_filled(config: Config, given: dict[str, Any]) -> Given:
    """Only gains are made up where they are missing."""
    return {**{name: one for name, one in filled(config, {}).items() if _gains_of_blocks(name)}, **given}


def _squeezed(shape: tuple[int, ...], value: Any) -> Any:
    array = np.asarray(value)
    return array[0] if array.shape == (1, *shape) else value


class AssignsWhateverFits(FaultyModel):
    """Assigning writes into the array, which broadcasts and casts."""

    def assign(self, name: str, value: Any) -> None:
        """Refused only where NumPy does not write it, or the name is unknown."""
        given = np.asarray(value)
        try:
            self.weights[name][...] = given.real if given.dtype.kind == "c" else given
        except (KeyError, ValueError):
            super().assign(name, value)


class AssignsWhatIsNotFinite(FaultyModel):
    """Assigning looks at the shape, not at the values."""

    def assign(self, name: str, value: Any) -> None:
        """Also what is not finite."""
        given = np.asarray(value)
        finite = np.nan_to_num(given) if given.dtype.kind == "f" else value
        super().assign(name, finite)
        self.weights[name][...] = given


class AssignsBeforeItLooks(FaultyModel):
    """What is assigned is written first and looked at then."""

    def assign(self, name: str, value: Any) -> None:
        """A refusal comes too late."""
        given = np.asarray(value)
        if name in self.weights and given.shape == self.weights[name].shape and given.dtype.kind == "f":
            self.weights[name][...] = given
        super().assign(name, value)


class AssignsUnknownNames(FaultyModel):
    """What has no place is left out."""

    def assign(self, name: str, value: Any) -> None:
        """Nothing, for an unknown name."""
        if name in self.weights:
            super().assign(name, value)


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
    parameter_fault(
        name="missing-gains-filled", parameters=parameters_mended(_gains_filled),
        sentence="a missing gain of a block is taken for ones, since that is what it starts as",
    ),
    parameter_fault(
        name="buffers-and-biases-dropped", parameters=parameters_mended(_without_buffers),
        sentence="names known from other decoders are dropped: a bias that is not added is a wrong model",
    ),
    parameter_fault(
        name="gains-of-blocks-broadcast", parameters=_in(_gains_of_blocks, _each(_broadcast)),
        sentence="a gain of a block may have a single value, which is broadcast; the final gain may not",
    ),
    parameter_fault(
        name="gains-of-blocks-of-any-type-taken", parameters=_in(_gains_of_blocks, _each(_as_float)),
        sentence="matrices must hold real numbers, gains of blocks whatever turns into them",
    ),
    parameter_fault(
        name="queries-not-finite-taken", parameters=_in(lambda name: "query" in name, _not_finite_taken),
        sentence="every parameter must be finite but one, which is packed before it is looked at",
    ),
    parameter_fault(
        name="matrices-squeezed", parameters=_in(lambda name: name.endswith(".weight"), _each(_squeezed)),
        sentence="an axis of one in front of a matrix is dropped",
    ),
    parameter_fault(
        name="table-turned-to-fit", parameters=_in(lambda name: name == TABLE, _each(_turned)),
        sentence="a table [d, V] is transposed, as a head's weight of another library",
    ),
    parameter_fault(
        name="assignment-broadcasts", model=AssignsWhateverFits,
        sentence="assigning writes into the array, which broadcasts and casts",
    ),
    parameter_fault(
        name="assignment-takes-what-is-not-finite", model=AssignsWhatIsNotFinite,
        sentence="assigning looks at the shape, not at the values",
    ),
    parameter_fault(
        name="assignment-of-unknown-names", model=AssignsUnknownNames,
        sentence="assigning an unknown name does nothing, in silence",
    ),
    accepting(
        name="assignment-before-its-check", stage="state", breaks=("INP-7",), model=AssignsBeforeItLooks,
        sentence="a value is written first and looked at then: the refusal comes too late",
    ),
)  # fmt: skip
