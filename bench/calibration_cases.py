"""The cases of the calibration: those of the suite's strategy, and hard ones among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

from decoderspec.properties.cases import Array, Case, draw_parameters, fixed_cases, long_cases
from decoderspec.properties.strategies import cases
from decoderspec.spec.arrays import round_to
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE
from decoderspec.spec.precision import Recipe

HARD = ("loud", "shouting", "zero_rows", "tiny", "mixed", "cancelling", "silent")
EVERY = 5  # one drawn case in so many is made hard
WIDE = 400  # one in so many is long or wide
BATCH = 4000  # cases from one search: Hypothesis keeps what it has seen


def random_cases(count: int, start: int) -> Iterator[Case]:
    """The fixed cases, then so many of the strategy's, every fifth in a hard style."""
    yield from fixed_cases() + long_cases("default")
    for index, case in enumerate(islice(_drawn(start), count)):
        if index % WIDE == WIDE - 1:
            yield _large(case, index // WIDE)
        elif index % EVERY == 0:
            yield replace(case, style=HARD[index // EVERY % len(HARD)])
        else:
            yield case


def _drawn(start: int) -> Iterator[Case]:
    while True:
        for case in _searched(start):
            yield replace(case, seed=case.seed + 2**17 * (start + 1))
        start += 1000


def _searched(start: int) -> list[Case]:
    found: list[Case] = []
    health = list(HealthCheck)

    @seed(start)
    @settings(max_examples=BATCH, database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=health)
    @given(cases({}))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def _large(case: Case, index: int) -> Case:
    """Long and narrow, wide and short, or with a vocabulary that a saturated softmax leaves nearly all empty."""
    config = (
        Config(5, 4, 1, 3, 1, 150, 50.0, 1e-3),
        Config(4, 512, 2, 64, 1, 4, 1e4, 1e-5),
        Config(900, 16, 2, 8, 1, 4, 1e4, 1e-5),
        Config(7, 8, 2, 3, 8, 9, 1e4, 1e-3),
    )[index % 4]
    tokens = min(config.max_positions, 130)
    return replace(case, config=config, batch=1, tokens=tokens)


def parameters(case: Case, recipe: Recipe) -> dict[str, Array]:
    """Those of the case; in the styles that only the calibration has, changed and rounded again."""
    drawn = draw_parameters(case, recipe)
    change = {"tiny": _tiny, "mixed": _mixed, "cancelling": _cancelling}.get(case.style)
    if change is not None:
        change(drawn, np.random.default_rng((case.seed, 2)), recipe)
    return {name: round_to(value, recipe.weights) for name, value in drawn.items()}


def _tiny(drawn: dict[str, Array], rng: np.random.Generator, recipe: Recipe) -> None:
    """Underflow: embeddings whose squares vanish beside epsilon, outputs near the smallest normal number."""
    lowest = recipe.results.lowest
    drawn[TABLE] *= 2.0 ** (lowest / 3)
    for name in drawn:
        if name.endswith(("output.weight", "down.weight")):
            drawn[name] *= 2.0 ** (lowest / 2)


def _mixed(drawn: dict[str, Array], rng: np.random.Generator, recipe: Recipe) -> None:
    """Mixed scales: every feature of every matrix by a power of two of its own."""
    for value in drawn.values():
        if value.ndim == 2:
            value *= np.exp2(rng.integers(-5, 3, value.shape[-1]))


def _cancelling(drawn: dict[str, Array], rng: np.random.Generator, recipe: Recipe) -> None:
    """Cancellation: features come in pairs that nearly take each other away in every product."""
    table = drawn[TABLE]
    half = table.shape[-1] // 2
    table[:, half : 2 * half] = -table[:, :half] * (1 + rng.choice([-1.0, 0.0, 1.0], half) / 64)
    for name, value in drawn.items():
        if value.ndim == 2 and name != TABLE and len(value) >= 2 * half:
            value[half : 2 * half] = value[:half]
        if name.endswith("norm.gain") and name != FINAL_GAIN:
            value[half : 2 * half] = value[:half]
