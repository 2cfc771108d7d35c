"""Faults of the initialization: the generator, the seed, the order, the scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import Fault, drawn
from decoderspec.faults.numbers import rounded
from decoderspec.reference.operations import Array
from decoderspec.reference.splitmix64 import SplitMix64, draw
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE, parameter_shapes

initial = partial(Fault, family="initialization", level="contract", stage="initialization", breaks=("INI-1",))
Draw = Callable[[tuple[int, ...], SplitMix64], Array]


def by(change: Draw) -> Callable[[Config, int], dict[str, Array]]:
    """Another draw for every parameter."""

    def parameters(config: Config, seed: int) -> dict[str, Array]:
        generator = SplitMix64(seed)
        return {name: change(shape, generator) for name, shape in parameter_shapes(config).items()}

    return parameters


def within(limit: Callable[[int, int], float]) -> Callable[[Config, int], dict[str, Array]]:
    """Another limit of the uniform draw, from rows and columns."""

    def change(shape: tuple[int, ...], generator: SplitMix64) -> Array:
        right = math.sqrt(6.0 / sum(shape)) if len(shape) == 2 else 1.0
        scale = limit(*shape) / right if len(shape) == 2 else 1.0
        return draw(shape, generator) * scale

    return by(change)


def _in_order(order: Callable[[list[str]], list[str]]) -> Callable[[Config, int], dict[str, Array]]:
    def parameters(config: Config, seed: int) -> dict[str, Array]:
        shapes, generator = parameter_shapes(config), SplitMix64(seed)
        found = {name: draw(shapes[name], generator) for name in order(list(shapes))}
        return {name: found[name] for name in shapes}

    return parameters


def _each_from_seed(config: Config, seed: int) -> dict[str, Array]:
    return {name: draw(shape, SplitMix64(seed)) for name, shape in parameter_shapes(config).items()}


def _blocks_from_seed(config: Config, seed: int) -> dict[str, Array]:
    found = drawn(config, seed)
    return {n: found["blocks.0." + n.split(".", 2)[2]] if n.startswith("blocks.") else w for n, w in found.items()}


def _table_from_memory(config: Config, seed: int) -> dict[str, Array]:
    found = drawn(config, seed)
    found[TABLE] = np.random.default_rng().normal(size=found[TABLE].shape)
    return found


def _transposed(shape: tuple[int, ...], generator: SplitMix64) -> Array:
    return draw(shape[::-1], generator).T


def _gains_draw(shape: tuple[int, ...], generator: SplitMix64) -> Array:
    generator.units(shape[0] if len(shape) == 1 else 0)
    return draw(shape, generator)


def _normal(shape: tuple[int, ...], generator: SplitMix64) -> Array:
    if len(shape) == 1:
        return np.ones(shape)
    u = generator.units(2 * shape[0] * shape[1]).reshape(2, *shape)
    return np.asarray(0.02 * np.sqrt(-2 * np.log1p(-u[0])) * np.cos(2 * np.pi * u[1]))


def _bits(shift: int, width: int) -> Draw:
    """Units from other bits of a word."""

    def change(shape: tuple[int, ...], generator: SplitMix64) -> Array:
        if len(shape) == 1:
            return np.ones(shape)
        words = generator.words(shape[0] * shape[1]) >> np.uint64(shift)
        units = (words & np.uint64(2**width - 1)).astype(float) * 2.0**-width
        return np.asarray(math.sqrt(6.0 / sum(shape)) * (2 * units - 1)).reshape(shape)

    return change


def _after_first(config: Config, seed: int) -> dict[str, Array]:
    generator = SplitMix64(seed)
    generator.words(1)
    return {name: draw(shape, generator) for name, shape in parameter_shapes(config).items()}


def _scaled_by_depth(config: Config, seed: int) -> dict[str, Array]:
    factor = 1 / math.sqrt(2 * config.layers)
    residual = ("attention.output.weight", "ffn.down.weight")
    return {n: w * factor if n.endswith(residual) else w for n, w in drawn(config, seed).items()}


def _mapped(change: Any) -> Callable[[Config, int], dict[str, Array]]:
    return lambda config, seed: {name: change(name, value) for name, value in drawn(config, seed).items()}


FAULTS = (
    initial(
        name="each-matrix-from-the-seed", initial=_each_from_seed,
        sentence="one seed is used again for every matrix: those of one shape are equal",
        source="nntile/nntile #21; netket/netket #241; huggingface/transformers PR 742; keras-team/keras-hub #352",
    ),
    initial(
        name="each-block-from-the-seed", initial=_blocks_from_seed,
        sentence="every block is drawn from the same state",
        source="nntile/nntile #21",
    ),
    initial(
        name="seed-dropped", initial=lambda config, seed: drawn(config, 0), breaks=("INI-1", "INI-2"),
        sentence="the seed is accepted and not used",
        source="ooples/AiDotNet #1785; tensorflow/tfjs #7104",
    ),
    initial(
        name="seed-from-the-clock", breaks=("INI-1", "INI-2"),
        initial=lambda config, seed: drawn(config, int(np.random.default_rng().integers(2**62))),
        sentence="a generator of the process takes the place of the seed",
        source="ooples/AiDotNet #1785; tensorflow/tfjs #7104",
    ),
    initial(
        name="table-not-initialized", initial=_table_from_memory, breaks=("INI-1", "INI-2"),
        sentence="the table keeps what the memory held",
        source="PAIR-code/tiny-transformers #35",
    ),
    initial(
        name="seed-in-32-bits", initial=lambda config, seed: drawn(config, seed % 2**32),
        sentence="the seed is cut to 32 bits",
    ),
    initial(
        name="seed-signed", initial=lambda config, seed: drawn(config, seed % 2**63),
        sentence="the seed loses its highest bit as a signed number",
    ),
    initial(
        name="first-draw-skipped", initial=_after_first,
        sentence="the generator is advanced once before it is used",
    ),
    initial(name="draws-transposed", initial=by(_transposed), sentence="matrices are filled column by column"),
    initial(name="gains-take-draws", initial=by(_gains_draw), sentence="gains draw although they are constant"),
    initial(
        name="gains-zero", initial=_mapped(lambda name, value: 0 * value if value.ndim == 1 else value),
        sentence="gains start at zero, as where they are stored less one",
    ),
    initial(
        name="normal-for-uniform", initial=by(_normal), sentence="values are normal with deviation 0.02",
    ),
    initial(
        name="units-of-the-low-bits", initial=by(_bits(0, 53)), sentence="the low 53 bits of a word are used",
    ),
    initial(name="units-of-32-bits", initial=by(_bits(32, 32)), sentence="only 32 bits of a word are used"),
    initial(name="units-of-52-bits", initial=by(_bits(12, 52)), sentence="only 52 bits of a word are used"),
    initial(
        name="limit-of-fan-in", initial=within(lambda rows, columns: math.sqrt(6.0 / rows)),
        sentence="the limit is that of the fan-in alone",
    ),
    initial(
        name="limit-of-root-three", initial=within(lambda rows, columns: math.sqrt(3.0 / (rows + columns))),
        sentence="the limit is the standard deviation's",
    ),
    initial(
        name="limit-of-table-by-width", initial=_mapped(
            lambda name, value: value * math.sqrt(sum(value.shape) / value.shape[1]) if name == TABLE else value
        ),
        sentence="the table's limit follows the model width alone",
    ),
    initial(
        name="range-half-open", initial=_mapped(lambda name, value: np.abs(value)),
        sentence="values lie between zero and the limit",
    ),
    initial(
        name="residual-matrices-scaled", initial=_scaled_by_depth,
        sentence="matrices that end a branch are divided by the root of twice the depth, as another recipe does",
    ),
    initial(
        name="initial-values-in-float32", initial=_mapped(lambda name, value: rounded(value, "float32")),
        sentence="initial values are drawn in float32",
    ),
    initial(
        name="table-drawn-last", initial=_in_order(lambda names: [*names[1:], names[0]]),
        sentence="the table is drawn after the blocks",
    ),
    initial(
        name="drawn-in-alphabetical-order",
        initial=_in_order(lambda names: [names[0], *sorted(names[1:])]),
        sentence="matrices of a block are drawn in alphabetical order",
    ),
)  # fmt: skip
