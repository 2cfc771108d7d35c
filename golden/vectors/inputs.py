"""Inputs of the test vectors: numbers of at most eight significant bits, which every precision holds exactly.

What stands in a file is what is computed with: cases are written as JSON first and read back, so that a file that
was written by anybody can be verified.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from decoderspec.golden.vectors.results import Json, plain
from decoderspec.reference.operations import Array
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.arrays import round_to
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_shapes
from decoderspec.spec.precision import FORMATS


class VectorError(ValueError):
    """A file of vectors that cannot be used: what came and what is allowed."""


# --- Drawing ---


def seed_of(name: str) -> int:
    """A number that follows from a name."""
    return zlib.crc32(name.encode())


def grid(name: str, shape: tuple[int, ...], reach: int, step: float) -> Array:
    """Multiples of `step`, a power of two, up to `reach` of them; different for each name."""
    words = SplitMix64(seed_of(name)).words(int(np.prod(shape, dtype=int))) >> np.uint64(20)
    drawn = (words % np.uint64(2 * reach + 1)).astype(np.float64) - reach
    return np.asarray((drawn * step + 0.0).reshape(shape))


def gain(name: str, width: int) -> Array:
    """Distinct sizes between 3/8 and 2, some negative, one exactly zero."""
    size = 0.375 + (grid(name, (width,), 52, 1 / 64) + 52 / 64)
    value = np.where(grid(name + "/sign", (width,), 2, 1.0) == 2, -size, size)
    value[seed_of(name) % width] = 0.0
    return np.asarray(value)


def matrix(name: str, shape: tuple[int, ...]) -> Array:
    """Uniform, so that a row of a norm keeps its size about."""
    return grid(name, shape, min(127, round(288 / np.sqrt(shape[0]))), 1 / 128)


def parameters(name: str, config: Config) -> dict[str, Array]:
    """Of a decoder: a table of order 1, matrices that keep a row's size, gains of their own."""

    def draw(key: str, shape: tuple[int, ...]) -> Array:
        if len(shape) == 1:
            return gain(f"{name}/{key}", shape[0])
        return grid(f"{name}/{key}", shape, 56, 1 / 32) if key == TABLE else matrix(f"{name}/{key}", shape)

    return {key: draw(key, shape) for key, shape in parameter_shapes(config).items()}


# --- Writing ---


def packed(value: Any) -> Any:
    """An input as JSON: an array flat beside its shape, ids as nested lists, a configuration by its fields."""
    if isinstance(value, Config):
        return {name: plain(number) for name, number in asdict(value).items()}
    if isinstance(value, Mapping):
        return {name: packed(each) for name, each in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return {"shape": list(value.shape), "values": [plain(float(each)) for each in value.flat]}
    return value.tolist() if isinstance(value, np.ndarray) else plain(value)


# --- Reading ---


def array(entry: Json, shape: tuple[int, ...] | None = None) -> Array:
    """The array of an entry. Raises `VectorError` for a wrong number of values or a shape other than expected."""
    found, values = tuple(entry["shape"]), entry["values"]
    if int(np.prod(found, dtype=object)) != len(values) or (shape is not None and found != shape):
        wanted = "" if shape is None else f", expected {list(shape)}"
        raise VectorError(f"shape {list(found)} with {len(values)} values{wanted}")
    return np.array([float(value) for value in values]).reshape(found)


def ids(rows: Any, limit: int) -> Array:
    """Ids `[B, T]` below the limit. Raises `VectorError`."""
    found = np.array(rows) if len({len(row) for row in rows}) == 1 else np.empty(0)
    if found.ndim != 2 or not found.size or found.max() >= limit:
        raise VectorError(f"ids must be rows of one length, each id below {limit}")
    return found.astype(np.int64)


def config_of(entry: Json) -> Config:
    """The configuration, its constants as floats."""
    constants: Any = {name: float(entry[name]) for name in ("rope_base", "rms_epsilon")}
    return Config(**{**entry, **constants})


def parameters_of(entry: Json, config: Config) -> dict[str, Array]:
    """The parameters of a configuration, which must be there under their names and no other."""
    if (expected := list(parameter_shapes(config))) != list(entry):
        raise VectorError(f"parameters must be {', '.join(expected)}, in this order")
    return {name: array(entry[name], shape) for name, shape in parameter_shapes(config).items()}


def require_exact(value: Array, precisions: tuple[str, ...], what: str) -> None:
    """Every value is one of every precision. Raises `VectorError`."""
    for name in precisions:
        if not np.array_equal(round_to(value, FORMATS[name]), value):
            raise VectorError(f"{what} holds values that {name} does not")
