"""Cases: a configuration, parameters, tokens and targets, from a few small numbers that Hypothesis can shrink.

A case is drawn in terms of sizes, styles and a seed, never one float at a time; its arrays follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoderspec.spec.arrays import round_to
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, parameter_count, parameter_shapes
from decoderspec.spec.precision import FORMATS, Recipe

Array = NDArray[Any]
STYLES = ("plain", "peaked", "small", "spiky")  # drawn; the fixed cases have more
TOKEN_STYLES = ("any", "same", "ends", "last")
SMALLEST = 300  # parameters: up to here each has its own true derivative, a difference of two losses
SHOUT = 3e4  # the reach of scores beyond -10000, a common stand-in for minus infinity
FEWEST = 32  # positions of these losses


@dataclass(frozen=True, eq=False)
class Stored:
    """Arrays that were read rather than drawn; two of them are equal only when they are the same."""

    parameters: Mapping[str, Array]
    tokens: Array
    targets: Array


@dataclass(frozen=True)
class Case:
    """One example: everything else follows from these numbers."""

    config: Config
    batch: int
    tokens: int
    seed: int = 0
    style: str = "plain"
    token_style: str = "any"
    note: str = ""  # what a fixed case is there for
    stored: Stored | None = None  # from a replay file

    def describe(self) -> str:
        """The case on one line, in the order of its fields."""
        c = self.config
        sizes = f"V={c.vocabulary_size} d={c.model_width} h={c.heads} f={c.feed_forward_width} N={c.layers}"
        rest = f"B={self.batch} T={self.tokens} base={c.rope_base:g} epsilon={c.rms_epsilon:g}"
        drawn = "from a file" if self.stored else f"{self.style} {self.token_style} seed={self.seed}"
        return f"{sizes} max_positions={c.max_positions} {rest} {drawn}"

    def to_json(self) -> dict[str, Any]:
        """The numbers that the case follows from; none where it came from a file."""
        return asdict(replace(self, stored=None))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Case:
        """The case of `to_json`."""
        return cls(**{**value, "config": Config(**value["config"])})


@lru_cache(maxsize=512)
def arrays(case: Case) -> tuple[Array, Array]:
    """Token ids and target ids `[B, T]`, int64."""
    if case.stored:
        return case.stored.tokens, case.stored.targets
    rng = np.random.default_rng((case.seed, 1))
    shape, v = (case.batch, case.tokens), case.config.vocabulary_size
    targets = rng.integers(0, v, shape)
    targets.flat[: min(2, targets.size)] = (0, v - 1)[: targets.size]  # the ids that padding conventions drop
    match case.token_style:
        case "same":
            return np.full(shape, v - 1), targets
        case "ends":
            return rng.choice([0, v - 1], shape), targets
        case "last":
            return rng.integers(max(0, v - 3), v, shape), targets
        case _:
            return rng.integers(0, v, shape), targets


def draw_parameters(case: Case, recipe: Recipe) -> dict[str, Array]:
    """Canonical float64 parameters of the case, every value representable in the declared format of the weights."""
    if case.stored:
        return {name: round_to(value, recipe.weights) for name, value in case.stored.parameters.items()}
    rng = np.random.default_rng((case.seed, 0))
    shapes = parameter_shapes(case.config)
    small = 0.25 if recipe.results.name == "float16" else 0.02  # its square must stay a normal number
    drawn = {name: _draw(name, shape, rng) for name, shape in shapes.items()}
    drawn[TABLE] *= small if case.style == "small" else 1.0
    _STYLE.get(case.style, _unchanged)(drawn, case, recipe, rng)
    return {name: round_to(value, recipe.weights) for name, value in drawn.items()}


def _draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if len(shape) == 1:
        return _gain(shape[0], rng)
    if name == TABLE:
        return rng.normal(size=shape)
    return np.asarray(rng.normal(size=shape) * (1.3 / np.sqrt(shape[0])))


def _gain(width: int, rng: np.random.Generator) -> Array:
    """Distinct, of both signs, an exact zero among them, on a grid of 1/64 so that an offset of one is exact."""
    gain = rng.integers(24, 140, width) / 64 * rng.choice([1, 1, 1, -1], width)
    if width > 3:
        gain[rng.integers(width)] = 0.0
    return np.asarray(gain)


def _unchanged(drawn: dict[str, Array], case: Case, recipe: Recipe, rng: np.random.Generator) -> None:
    """Entries as they were drawn."""


def _peaked(drawn: dict[str, Array], case: Case, recipe: Recipe, rng: np.random.Generator) -> None:
    """Attention far from uniform: queries and keys four times as large, or twice where scores are rounded coarsely."""
    _scale(drawn, ("query.weight", "key.weight"), 4.0 if fine(recipe) else 2.0)


def _loud(drawn: dict[str, Array], case: Case, recipe: Recipe, rng: np.random.Generator) -> None:
    """Scores and logits beyond what an exponential without its maximum can bear, finite in the declared format."""
    _raise(drawn, {"float64": 900.0, "float16": 12.0}.get(recipe.results.name, 110.0))


def _shouting(drawn: dict[str, Array], case: Case, recipe: Recipe, rng: np.random.Generator) -> None:
    """Scores beyond -10000, a common stand-in for minus infinity, where the declared format can tell them apart."""
    _raise(drawn, SHOUT if fine(recipe) else 12.0)


def fine(recipe: Recipe) -> bool:
    """Whether every format is float32 or finer: in coarser ones rounding a large score turns a softmax over."""
    return min(form.bits for form in recipe.used) >= FORMATS["float32"].bits


def _raise(drawn: dict[str, Array], reach: float) -> None:
    """Scores of about `reach`, logits and gates of a quarter of it."""
    _scale(drawn, ("query.weight", "key.weight"), float(np.sqrt(reach)))
    drawn[FINAL_GAIN] *= reach / 4
    _scale(drawn, ("ffn.gate.weight",), reach / 4)
    _scale(drawn, ("ffn.down.weight",), 4 / reach)


def _spiky(drawn: dict[str, Array], case: Case, recipe: Recipe, rng: np.random.Generator) -> None:
    """One feature of the table a hundred times the others."""
    drawn[TABLE][:, rng.integers(drawn[TABLE].shape[1])] *= 100.0


def _silent(drawn: dict[str, Array], case: Case, recipe: Recipe, rng: np.random.Generator) -> None:
    """Branches that add nothing: the residual stream must pass through every block unchanged."""
    _scale(drawn, ("attention.output.weight", "ffn.down.weight"), 0.0)


def _zero_rows(drawn: dict[str, Array], case: Case, recipe: Recipe, rng: np.random.Generator) -> None:
    """Half of the table's rows are zero, which epsilon alone makes bearable."""
    drawn[TABLE][::2] = 0.0


_STYLE = {
    "peaked": _peaked,
    "loud": _loud,
    "shouting": _shouting,
    "spiky": _spiky,
    "silent": _silent,
    "zero_rows": _zero_rows,
}


def _scale(drawn: dict[str, Array], endings: tuple[str, ...], factor: float) -> None:
    for name in drawn:
        if name.endswith(endings):
            drawn[name] *= factor


def _config(v: int, h: int, w: int, f: int, n: int, t: int, base: float, epsilon: float) -> Config:
    return Config(v, h * w, h, f, n, t, base, epsilon)


def fixed_cases() -> list[Case]:
    """Awkward on purpose, each for a kind of fault, tried first of all; where builds are dear, the first five alone."""
    return [
        Case(_config(11, 2, 6, 7, 2, 9, 100.0, 1e-3), 2, 5, 1, note="all sizes differ"),
        Case(_config(7, 3, 4, 5, 3, 8, 10.0, 1e-2), 3, 8, 2, "peaked", "ends", note="T at its limit, repeated ids"),
        Case(_config(13, 2, 4, 6, 2, 6, 50.0, 1e-5), 2, 6, 3, "loud", note="exponentials overflow without a maximum"),
        Case(_config(10, 2, 6, 5, 2, 7, 20.0, 1e-3), 2, 7, 7, "silent", note="the stream alone"),
        Case(_config(6, 2, 4, 3, 0, 5, 10.0, 1e-2), 2, 4, 11, note="no layers"),
        Case(_config(9, 2, 4, 5, 1, 7, 50.0, 1e-3), 2, 7, 16, "shouting", note="scores beyond a finite mask"),
        Case(_config(3, 1, 4, 3, 1, 3, 5.0, 1e-3), 2, 3, 21, note="few enough parameters for each derivative"),
        Case(_config(32, 2, 16, 48, 1, 16, 100000.1, 1e-5), 2, 16, 17, note="all sizes multiples of 16"),
        Case(_config(7, 1, 130, 5, 1, 5, 500.0, 1e-5), 1, 3, 18, note="one head of 130"),
        Case(_config(5, 6, 2, 3, 2, 2500, 7.0, 1e-3), 2, 4, 19, note="six heads, a context of 2,500"),
        Case(_config(6, 2, 4, 9, 2, 7, 1e4, 0.1), 1, 7, 4, "small", note="epsilon as large as the rows"),
        Case(_config(9, 1, 10, 3, 2, 5, 1e7, 1e-6), 2, 4, 5, "spiky", note="one large feature, head width 10"),
        Case(_config(5, 4, 2, 4, 2, 6, 3.0, 1e-4), 2, 6, 6, "plain", "same", note="one id everywhere"),
        Case(_config(8, 2, 4, 6, 1, 5, 1.0, 1e-2), 2, 5, 8, "zero_rows", note="rows of zeros, all angles alike"),
        Case(_config(12, 3, 4, 8, 2, 6, 10.0, 0.0), 1, 6, 9, note="epsilon of zero"),
        Case(_config(1, 1, 4, 2, 1, 2, 10.0, 1e-3), 1, 1, 10, note="a vocabulary of one"),
        Case(_config(4, 1, 4, 3, 17, 4, 5.0, 1e-3), 1, 4, 12, note="seventeen layers"),
        Case(_config(5, 2, 4, 3, 1, 40, 20.0, 1e-3), 2, 37, 13, "peaked", note="several blocks of keys"),
        Case(_config(3, 2, 512, 1, 0, 4, 10.0, 1e-3), 1, 2, 17, note="sums of a thousand terms"),
        Case(_config(7, 17, 2, 19, 1, 3, 0.5, 2.0), 17, 3, 19, note="seventeen rows, seventeen heads"),
        Case(_config(5, 2, 2, 3, 1, 3, 0.5, 2.0), 67, 3, 21, note="sixty-seven rows"),
        Case(_config(7, 1, 2, 1030, 1, 3, 10.0, 1e-3), 1, 3, 20, note="a thousand features"),
    ]


def long_cases(profile: str) -> list[Case]:
    """Blocks of 64 and 128 keys, positions kept in bfloat16 (past 256), short tables; many words. Most are narrow."""
    if profile == "quick":
        return [_narrow(70)]
    return [
        *map(_narrow, (64, 70, 260, 530)),
        Case(_config(5, 2, 4, 3, 2, 140, 1.5, 1e-3), 2, 140, 22, "plain", note="140 positions, two of everything"),
        Case(_config(8209, 2, 2, 4, 1, 5, 10.0, 1e-3), 1, 5, 14, "plain", "last", note="a table beyond 15 bits"),
        Case(_config(65539, 1, 2, 1, 0, 2, 10.0, 1e-3), 1, 2, 18, "plain", "last", note="ids beyond 16 bits"),
    ]


def _narrow(tokens: int) -> Case:
    return Case(_config(3, 1, 4, 1, 1, tokens, 1.5, 1e-3), 1, tokens, 15, "plain", note=f"{tokens} positions")


def affordable(case: Case) -> bool:
    """Whether the noise of a backward pass costs little enough."""
    return case.tokens <= 300


def sloping(case: Case) -> bool:
    """Whether the loss has a slope, at an affordable price."""
    return case.config.vocabulary_size > 1 and affordable(case)


def elementwise(case: Case) -> bool:
    """Whether the true derivative by every single parameter is affordable."""
    return 1 < parameter_count(case.config) <= SMALLEST and case.batch * case.tokens <= FEWEST


def other_ids(case: Case, tokens: Array) -> Array:
    """Different ids wherever the vocabulary allows."""
    return (tokens + 1 + np.arange(tokens.size).reshape(tokens.shape) % max(1, case.config.vocabulary_size - 1)) % (
        case.config.vocabulary_size
    )
