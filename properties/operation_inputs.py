"""How the inputs of one operation are drawn: as awkward as the case asks, and no larger than its formats can bear."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoderspec.properties.cases import SHOUT, Array, Case, arrays, fine
from decoderspec.reference.operations import Gradients, Operation, Operations
from decoderspec.spec.precision import Recipe

ROOM = 16  # times the largest value must be finite: a right kernel may hold scores before it divides them by sqrt(w)


def reach(case: Case, recipe: Recipe) -> float:
    """How large scores, logits and gates get beside plain ones.

    Loud: beyond what an exponential bears, which takes e^88 in float32 and e^709 in float64. Shouting: beyond a finite
    mask, where every format is fine enough to tell such scores apart.
    """
    if case.style == "shouting":
        return SHOUT if fine(recipe) else 12.0
    if case.style == "loud":
        return 900.0 if recipe.accumulate.name == recipe.results.name == "float64" else 110.0
    return 1.0


def hidden(case: Case, rng: np.random.Generator, width: int) -> Array:
    """`[B, T, width]` of the case's style."""
    x = rng.normal(size=(case.batch, case.tokens, width)) * {"small": 0.02, "peaked": 3.0}.get(case.style, 1.0)
    if case.style == "spiky":
        x[..., rng.integers(width)] *= 100.0
    if case.style == "zero_rows":
        x[:, ::2] = 0.0
    return np.asarray(x)


def stream(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """`[B, T, d]`."""
    return hidden(case, rng, case.config.model_width)


def heads(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """`[B, h, T, w]`."""
    shape = case.batch, case.config.heads, case.tokens, case.config.head_width
    return stream(case, recipe, rng).reshape(shape)


def scored(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """Queries or keys `[B, h, T, w]`, whose scores are of the case's reach."""
    return np.asarray(heads(case, recipe, rng) * np.sqrt(reach(case, recipe)))


def wide(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """`[B, T, f]`."""
    return hidden(case, rng, case.config.feed_forward_width) * 3


def gate(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """`[B, T, f]` of the case's reach; where that is large, with an entry above zero in every row.

    Far below zero SiLU vanishes, and a row of such entries alone would be held to the noise of its underflow.
    """
    x = wide(case, recipe, rng) * max(1.0, reach(case, recipe) / 3)
    if case.style in ("loud", "shouting"):
        x[..., 0] = np.abs(x[..., 0])
    return x


def logits(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """`[B, T, V]` of the case's reach."""
    return hidden(case, rng, case.config.vocabulary_size) * max(4.0, reach(case, recipe))


def gain(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """`[d]`, of both signs and with an exact zero: nothing can be recovered by dividing by it."""
    values = rng.uniform(-2, 2, case.config.model_width)
    values[rng.integers(len(values))] = 0.0
    return values


def weight(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """`[d, f]`."""
    shape = (case.config.model_width, case.config.feed_forward_width)
    return np.asarray(rng.normal(size=shape) / np.sqrt(shape[0]))


def table(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """`[V, d]`."""
    return rng.normal(size=(case.config.vocabulary_size, case.config.model_width))


def tokens(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """The case's token ids `[B, T]`."""
    return np.array(arrays(case)[0])


def targets(case: Case, recipe: Recipe, rng: np.random.Generator) -> Array:
    """The case's target ids `[B, T]`, among them the ends of the vocabulary; the last one is of the tokens' style."""
    found = np.array(arrays(case)[1])
    found.flat[-1] = arrays(case)[0].flat[-1]
    return found


def offset(case: Case, recipe: Recipe, rng: np.random.Generator) -> int:
    """A first position in the upper half of the context, such that the row runs across a power of two if it can.

    Tables end and wrap at one; a shift of a whole row changes no attention, a wrap within it does.
    """
    room = case.config.max_positions - case.tokens
    power = 1 << max(0, room.bit_length() - 1)  # the largest within
    return max((room + 1) // 2, power - case.tokens // 2) if room > 0 else 0


def epsilon(case: Case, recipe: Recipe, rng: np.random.Generator) -> float:
    """Of the configuration."""
    return case.config.rms_epsilon


def base(case: Case, recipe: Recipe, rng: np.random.Generator) -> float:
    """Of the configuration."""
    return case.config.rope_base


def bearable(recipe: Recipe) -> float:
    """The largest value that inputs, results and gradients may reach, so that all are finite in their formats."""
    return min(form.largest for form in (recipe.weights, *recipe.used)) / ROOM


def noting(operations: Operations, sizes: list[float]) -> Operations:
    """The same operations, adding the size of every result and gradient to `sizes`."""

    def wrap(operation: Operation) -> Operation:
        def perform(stage: str, *inputs: Any) -> Array:
            output = operation.perform(stage, *inputs)
            sizes.append(largest(output))
            return output

        def vjp(stage: str, *arguments: Any) -> Gradients:
            found = operation.vjp(stage, *arguments)
            sizes.extend(largest(each) for each in found if each is not None)
            return found

        return Operation(operation.name, perform, vjp)

    return operations.each(wrap)


def largest(values: Array) -> float:
    """Of the sizes of all that is finite: a masked score is not."""
    return float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
