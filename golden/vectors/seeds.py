"""Vectors of the initialization: words of SplitMix64 from a seed, and the parameters that are drawn from them.

A second writing in integers and mpmath, which shares nothing with `reference.splitmix64`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import mpmath
import numpy as np

from decoderspec.golden.vectors import results
from decoderspec.golden.vectors.inputs import VectorError, config_of, packed
from decoderspec.golden.vectors.results import Json
from decoderspec.reference.operations import Array
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.validation import validate_config

CONFIG = Config(3, 4, 1, 3, 2, 4, 10000.0, 2.0**-20)
SEEDS = {
    "zero": (0, "the smallest seed, whose words are widely published"),
    "thirty-two": (32, "the seed of chapter 32"),
    "high-bit": (2**63 + 12345, "a seed beyond signed and beyond 32-bit integers"),
    "largest": (2**64 - 1, "the largest seed, which overflows with the first draw"),
}
WORDS = 4  # that are written for each seed
DIGITS = 50
MASK = 2**64 - 1


def cases() -> list[Json]:
    """One for each seed, before its truth is known."""
    return [
        {
            "id": name,
            "comment": comment,
            "flags": ["Seed"],
            "requirements": ["INI-1", "INI-2"],
            "seed": str(seed),
            "config": packed(CONFIG),
        }
        for name, (seed, comment) in SEEDS.items()
    ]


def completed(case: Json) -> Json:
    """The case with the first words and every parameter. Raises `VectorError`."""
    seed = int(case["seed"])
    try:
        config = validate_config(config_of(case["config"]))
    except SpecError as reason:
        raise VectorError(f"the configuration is none: {reason}") from None
    if seed > MASK:
        raise VectorError(f"seed {seed} is not below 2^64")
    drawn = _words(seed)
    parameters = {name: _parameter(shape, drawn) for name, shape in parameter_shapes(config).items()}
    first = [f"0x{word:016x}" for word in islice(_words(seed), WORDS)]
    return {**case, "expected": {"words": first, "parameters": parameters}}


def _words(state: int) -> Iterator[int]:
    """Steele, Lea and Flood 2014."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        v = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & MASK
        yield v ^ (v >> 31)


def _parameter(shape: tuple[int, ...], words: Iterator[int]) -> Json:
    count = int(np.prod(shape))
    with mpmath.workdps(DIGITS):
        if len(shape) == 1:
            values: list[Any] = [mpmath.mpf(1)] * count
        else:
            limit = mpmath.sqrt(mpmath.mpf(6) / sum(shape))
            values = [limit * (2 * mpmath.mpf(word >> 11) / 2**53 - 1) for word in islice(words, count)]
        exact: Array = np.array(values, object).reshape(shape)
        texts = results.texts(exact, np.full(shape, 10.0**-DIGITS))
    return results.within_roundings(texts)
