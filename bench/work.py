"""What is measured, and what the formulas say it takes: sizes, multiplications, and numbers that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from decoderspec.properties.cases import Case
from decoderspec.properties.strategies import within
from decoderspec.properties.subject import Subject
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_count
from decoderspec.spec.stages import stage_names, stage_shape

MEASURES = ("build", "forward", "loss", "gradients")
BACKWARD = 3  # times a forward: a pullback has two products for each of the forward's


@dataclass(frozen=True)
class Size:
    """A configuration, and the shape `[B, T]` of the tokens that it is given."""

    name: str
    config: Config
    batch: int
    tokens: int

    @property
    def positions(self) -> int:
        """`B T`."""
        return self.batch * self.tokens

    def describe(self) -> dict[str, int | float]:
        """Every number that the work follows from."""
        return {**vars(self.config), "batch": self.batch, "tokens": self.tokens}


SIZES = (
    Size("small", Config(50, 32, 4, 64, 2, 16), 2, 16),
    Size("medium", Config(256, 128, 4, 352, 2, 64), 2, 64),
    Size("prefill", Config(256, 64, 4, 176, 2, 256), 1, 256),
    Size("long", Config(16, 8, 2, 16, 1, 512), 1, 512),
    Size("wide", Config(512, 512, 8, 1408, 1, 8), 1, 8),
)
QUICK = ("small", "medium", "long")


def sizes_of(subject: Subject) -> tuple[Size, ...]:
    """The sizes; of a checkpoint its own configuration, on batches of those shapes."""
    found = subject.checkpoint
    return SIZES if found is None else tuple(replace(size, config=found.config) for size in SIZES)


def covered(limits: Mapping[str, Any], sizes: tuple[Size, ...] = SIZES) -> tuple[list[Size], list[str]]:
    """The sizes that are within declared limits, and the names of those that are not."""
    inside = [size for size in sizes if _is_within(limits, size)]
    return inside, [size.name for size in sizes if size not in inside]


def _is_within(limits: Mapping[str, Any], size: Size) -> bool:
    case = Case(size.config, size.batch, size.tokens)
    return size.tokens <= size.config.max_positions and within(limits, case) == case


def products(size: Size) -> int:
    """Multiplications of a forward's matrix products: `BT (N (4 d^2 + 3 d f) + V d) + 2 N B T^2 d`."""
    c = size.config
    d, f, v, n = c.model_width, c.feed_forward_width, c.vocabulary_size, c.layers
    return size.positions * (n * (4 * d * d + 3 * d * f) + v * d + 2 * n * size.tokens * d)


def numbers(size: Size) -> int:
    """Numbers that a forward writes: the sum over the stages."""
    return sum(_stage_numbers(size).values())


def largest_step(size: Size) -> int:
    """Numbers that must be alive at once however a forward frees: the largest stage that is stored, and the stream."""
    return max(_stage_numbers(size).values()) + size.positions * size.config.model_width


def _stage_numbers(size: Size) -> dict[str, int]:
    names = stage_names(size.config.layers)
    return {name: prod(stage_shape(name, size.config, size.batch, size.tokens)) for name in names}


@dataclass(frozen=True)
class Load:
    """What a yardstick carries out: products `[rows, inner] @ [inner, columns]`, and sweeps over so many numbers."""

    rows: int
    inner: int
    columns: int
    products: int
    numbers: int  # each sweep reads and writes them once
    sweeps: int


def load(measure: str, size: Size) -> Load:
    """About the work of a measure, made of equal pieces of the size that its pieces have."""
    config = size.config
    if measure == "build":
        return Load(1, 1, 1, 0, parameter_count(config), 1)
    rows, inner, columns = size.positions, config.model_width, config.feed_forward_width
    times, largest = BACKWARD if measure == "gradients" else 1, max(_stage_numbers(size).values())
    return Load(
        rows, inner, columns, max(1, round(times * products(size) / (rows * inner * columns))),
        largest, max(1, round(times * numbers(size) / largest)),
    )  # fmt: skip
