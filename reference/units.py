"""Noise units: the root mean square change of each output element under rounding noise, pooled with its row."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from decoderspec.reference import decoder
from decoderspec.reference.noise import RUNS, Noise, injection_scale, length, visible_scale
from decoderspec.reference.operations import OPERATIONS, Array, Operation, Operations
from decoderspec.reference.rounding import noisy
from decoderspec.spec.arrays import round_to
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import TABLE
from decoderspec.spec.precision import Recipe
from decoderspec.spec.stages import suffix

Values = dict[str, Array]
LOOKUP, HEAD = "gradient.lookup", "gradient.head"


Compute = Callable[[Operations], Values]
CAREFUL = 2.0  # standard errors
LINEAR = 2.0**-8  # enlarged noise that moves a stage by less, in parts of its largest value, moved it in proportion


def deviations(compute: Compute, recipe: Recipe, seed: int, runs: int = RUNS, scale: float | None = None) -> Values:
    """What the noise does to each named value: `[runs, *shape]`, at the size of the declared roundings."""
    noise = Noise(recipe, np.random.default_rng(seed), runs, scale or injection_scale(recipe))
    exact, moved = compute(OPERATIONS), compute(noisy(noise, OPERATIONS))
    with np.errstate(invalid="ignore"):
        found = {name: np.broadcast_to(moved[name] - exact[name], (runs, *exact[name].shape)) for name in exact}
        return {name: deviation / noise.scale for name, deviation in found.items()}


def unit(deviation: Array) -> Array:
    """Noise units `[*shape]` of deviations `[runs, *shape]`.

    Half the variance is the element's own, half its row's (the last axis): a few runs then estimate it well, and an
    element that these runs happened to move little is not held to nothing.
    """
    if deviation.ndim == 1:
        return np.asarray(length(deviation)[0] / np.sqrt(deviation.size))
    largest = np.clip(np.max(np.abs(deviation), axis=(0, -1), keepdims=True), 1e-300, 1e300)  # before squaring
    own = np.mean(np.square(deviation / largest), axis=0)
    pooled: Array = np.sqrt((own + np.mean(own, axis=-1, keepdims=True)) / 2) * largest[0]
    return pooled


def direction(unit: Array, generator: np.random.Generator) -> Array:
    """A direction to project values on: random signs, and weights that let small units count, down to a millionth.

    The weights are powers of two, so that a product with them is exact.
    """
    signs = generator.choice([-1.0, 1.0], unit.shape)
    largest = np.max(unit)
    weight = largest / np.maximum(unit, largest * 1e-6) if largest > 0 else np.ones_like(unit)
    return np.asarray(signs * np.exp2(np.rint(np.log2(weight))))


def along(deviations: Mapping[str, Array], directions: Mapping[str, Array]) -> Array:
    """Noise unit of the sum of some values, each element times that of its direction.

    It is that of the sum, but no less than if all elements erred independently: equal ones cancel along opposite
    directions, and a decoder that computes them in another order need not make them equal.
    """
    moved = {name: deviations[name] * direction for name, direction in directions.items()}
    runs = len(next(iter(moved.values())))
    together = unit(np.asarray(sum(np.sum(each.reshape(runs, -1), axis=1) for each in moved.values())))
    apart = length(np.array([length(each.ravel())[0] for each in moved.values()]))[0] / math.sqrt(runs)
    return np.asarray(np.maximum(together, apart))


def freedom(deviation: Array, unit: Array) -> float:
    """How many independent elements would scatter in the mean square as these do (Satterthwaite 1946), at least.

    `tr(C)^2 / tr(C^2)` for the covariance `C` of the deviations in noise units: the number of elements where each has
    an error of its own, 1 where all hang on one. The second trace is estimated from pairs of different runs, which
    keeps its bias out (Chen and Qin 2010): sixteen runs have 120 pairs. It is taken `CAREFUL` standard errors larger,
    by the jackknife (Tukey 1958): where these runs happened to be unlike each other, elements seem more independent
    than they are, and a right mean would lie beyond its limit.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(unit > 0, deviation / unit, 0.0).reshape(len(deviation), -1)
    if not np.isfinite(ratio).all() or not ratio.any():
        return 1.0
    products, runs = ratio @ ratio.T, len(ratio)
    own, squares = np.diagonal(products), np.square(products)
    of_run = np.sum(squares, axis=1) - np.square(own)  # pairs with each of the others
    pairs = np.sum(of_run) / (runs * (runs - 1))
    without = (np.sum(of_run) - 2 * of_run) / ((runs - 1) * (runs - 2))
    pairs += CAREFUL * math.sqrt((runs - 1) * np.mean(np.square(without - np.mean(without))))
    return float(np.clip(np.square(np.mean(own)) / pairs, 1.0, ratio.shape[-1])) if pairs > 0 else 1.0


def noise(deviation: Array) -> tuple[Array, float]:
    """The units of some deviations, and how many of the elements err independently."""
    found = unit(deviation)
    return found, freedom(deviation, found)


def anchored(operations: Operations, given: Mapping[str, Array], seen: Values) -> Operations:
    """The same operations, noting each stage's value in `seen` and going on from the given one instead."""

    def wrap(operation: Operation) -> Operation:
        def perform(stage: str, *inputs: Any) -> Array:
            seen[stage] = output = operation(stage, *inputs)
            return given.get(stage, output)

        return Operation(operation.name, perform, operation.vjp)

    return operations.each(wrap)


def stage_values(config: Config, weights: Mapping[str, Array], tokens: Array, given: Mapping[str, Array]) -> Any:
    """A computation for `deviations`: every stage, each from the given values before it."""

    def compute(operations: Operations) -> Values:
        seen: Values = {}
        decoder.decoder(anchored(operations, given, seen), config, weights, tokens)
        return {stage: value for stage, value in seen.items() if "/" not in stage}

    return compute


def stage_noise(
    config: Config, weights: Mapping[str, Array], tokens: Array, given: Mapping[str, Array], recipe: Recipe, seed: int
) -> dict[str, tuple[Array, float]]:
    """`noise` of every stage, each from the given values before it.

    A stage that is handed out finer than declared is rounded after it was seen: its noise goes on.
    """
    stored = {name: round_to(value, recipe.stored(suffix(name))) for name, value in given.items()}
    anchors = {name: value for name, value in given.items() if np.array_equal(value, stored[name])}
    compute = stage_values(config, weights, tokens, anchors)
    moved = deviations(compute, recipe, seed) | _enlarged(compute, recipe, seed)
    return {name: noise(deviation) for name, deviation in moved.items()}


def _enlarged(compute: Compute, recipe: Recipe, seed: int) -> Values:
    """Of a recipe that mixes float64 with 16 bits, the deviations of stages that only the finer roundings reach.

    One factor cannot serve both: what lifts the finer noise out of float64's own roundings makes the coarser one far
    too large, and a stage that it reaches says so.
    """
    scale = visible_scale(recipe)
    if scale == injection_scale(recipe):
        return {}
    exact, moved = compute(OPERATIONS), deviations(compute, recipe, seed, scale=scale)
    return {name: value for name, value in moved.items() if _largest(value) * scale <= LINEAR * _largest(exact[name])}


def _largest(value: Array) -> float:
    return float(np.max(np.abs(value), initial=0.0))


def training_values(config: Config, weights: Mapping[str, Array], tokens: Array, targets: Array) -> Any:
    """A computation for `deviations`: every stage, `loss`, `gradient.NAME` of each parameter, and the two roles."""

    def compute(operations: Operations) -> Values:
        stages, gradient = decoder.pulled_back(config, weights, tokens, targets, operations)
        roles = {LOOKUP: gradient.uses[TABLE, "embedding"], HEAD: gradient.uses[TABLE, "logits"]}
        return stages | roles | {f"gradient.{name}": value for name, value in gradient.leaves.items()}

    return compute
