"""The components that a decoder is assembled from, under the names of the chapters; each checks itself when it is made.

A component holds the caller's arrays themselves (float64 ones at least), so that an update in place reaches every
use. For computing with them see `reference.block` and `reference.model`; the formulas are in `reference.decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from numpy.typing import ArrayLike

from decoderspec.reference.operations import Array, Operation, Operations
from decoderspec.spec.components import validate_attention, validate_energy, validate_norm, validate_swiglu
from decoderspec.spec.errors import error, owned_by
from decoderspec.spec.validation import plain_numbers, validate_real, validate_value


@dataclass(frozen=True, eq=False)
class NamedParameter:
    """One live array under its stable name."""

    name: str
    value: ArrayLike


@dataclass(frozen=True, eq=False)
class Embedding:
    """The table `[V, d]`, used for lookup and for the logits."""

    name: str
    table: Array

    @classmethod
    def from_parameter(cls, table: NamedParameter) -> Embedding:
        """Raises `EmbeddingError.Parameter`, caused by `ParameterError`."""
        with owned_by("EmbeddingError.Parameter"):
            return cls(table.name, _of_rank(table, 2))

    @property
    def parameters(self) -> dict[str, Array]:
        """The table by its name."""
        return {self.name: self.table}


@dataclass(frozen=True, eq=False)
class RmsNorm:
    """A gain `[d]` and the epsilon under the root."""

    name: str
    gain: Array
    epsilon: float

    @classmethod
    def from_gain(cls, gain: NamedParameter, epsilon: float) -> RmsNorm:
        """Raises `RmsNormError.ZeroFeatureWidth`, `.InvalidEpsilon` or `.Parameter`, `ConfigError` for no number."""
        with owned_by("RmsNormError.Parameter"):
            value = _of_rank(gain, 1)
        norm = plain_numbers(cls(gain.name, value, epsilon), (), ("epsilon",))
        validate_norm(norm.feature_width, norm.epsilon)
        return norm

    @property
    def feature_width(self) -> int:
        """Width `d` of the rows that it normalizes."""
        return int(self.gain.shape[0])

    @property
    def parameters(self) -> dict[str, Array]:
        """The gain by its name."""
        return {self.name: self.gain}


@dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """Four matrices `[d, d]` (query, key, value, output), the number of heads and the rotary constants."""

    names: tuple[str, ...]
    matrices: tuple[Array, ...]
    heads: int
    max_positions: int
    rope_base: float

    @classmethod
    def from_parameters(
        cls,
        query: NamedParameter,
        key: NamedParameter,
        value: NamedParameter,
        output: NamedParameter,
        heads: int,
        max_positions: int,
        rope_base: float,
    ) -> MultiHeadAttention:
        """Raises `MultiHeadAttentionError`: its sizes, `Rope` or `Parameter`; `ConfigError` for no number."""
        given = (query, key, value, output)
        with owned_by("MultiHeadAttentionError.Parameter"):
            width = _of_rank(query, 2).shape[0]
            matrices = tuple(validate_value(each.name, (width, width), each.value) for each in given)
        names = tuple(each.name for each in given)
        attention = cls(names, matrices, heads, max_positions, rope_base)
        attention = plain_numbers(attention, ("heads", "max_positions"), ("rope_base",))
        validate_attention(width, attention.heads, attention.max_positions, attention.rope_base)
        return attention

    @property
    def model_width(self) -> int:
        """Width `d` of the residual stream."""
        return int(self.matrices[0].shape[0])

    @property
    def parameters(self) -> dict[str, Array]:
        """The four matrices by name, in stable order."""
        return dict(zip(self.names, self.matrices, strict=True))


@dataclass(frozen=True, eq=False)
class SwiGlu:
    """Three matrices: gate and up `[in, f]`, down `[f, out]`."""

    names: tuple[str, ...]
    matrices: tuple[Array, ...]

    @classmethod
    def from_parameters(cls, gate: NamedParameter, up: NamedParameter, down: NamedParameter) -> SwiGlu:
        """Raises `SwiGluError.ZeroInputWidth`, `.ZeroHiddenWidth`, `.ZeroOutputWidth` or `.Parameter`."""
        with owned_by("SwiGluError.Parameter"):
            width, hidden = _of_rank(gate, 2).shape
            output = _of_rank(down, 2).shape[1]
            shapes = ((width, hidden), (width, hidden), (hidden, output))
            given = (gate, up, down)
            matrices = tuple(
                validate_value(each.name, shape, each.value) for each, shape in zip(given, shapes, strict=True)
            )
        validate_swiglu(width, hidden, output)
        return cls(tuple(each.name for each in given), matrices)

    @property
    def input_width(self) -> int:
        """Width of the rows that come in."""
        return int(self.matrices[0].shape[0])

    @property
    def hidden_width(self) -> int:
        """Width `f` between the matrices."""
        return int(self.matrices[0].shape[1])

    @property
    def output_width(self) -> int:
        """Width of the rows that go out."""
        return int(self.matrices[2].shape[1])

    @property
    def parameters(self) -> dict[str, Array]:
        """Gate, up and down by name."""
        return dict(zip(self.names, self.matrices, strict=True))


def _of_rank(parameter: NamedParameter, rank: int) -> Array:
    """The finite real values of a parameter whose widths its component takes from it."""
    value = validate_real(parameter.name, parameter.value)
    if value.ndim != rank:
        raise error("ParameterError.Rank", name=parameter.name, expected=rank, actual=value.ndim)
    return validate_value(parameter.name, value.shape, value)


def refusing_zero_energy(operations: Operations) -> Operations:
    """The same operations, except that RMSNorm refuses a row with zero mean square when its epsilon is zero."""

    def perform(stage: str, x: Array, gain: Array, epsilon: float) -> Array:
        validate_energy(stage, x, epsilon)
        return operations.rms_norm(stage, x, gain, epsilon)

    return replace(operations, rms_norm=Operation("rms_norm", perform, operations.rms_norm.vjp))
