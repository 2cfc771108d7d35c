"""SplitMix64 (Steele, Lea and Flood 2014) and the initialization drawn from it.

The state is a counter, so whole matrices are drawn at once.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_shapes

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class SplitMix64:
    """A caller's generator: `state` is the seed at first and advances by one gamma for each draw (mod 2^64)."""

    state: int

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` 64-bit words."""
        counter = np.uint64(self.state) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN_GAMMA
        self.state = (self.state + count * int(GOLDEN_GAMMA)) % 2**64
        v = (counter ^ (counter >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return v ^ (v >> np.uint64(31))

    def units(self, count: int) -> NDArray[np.float64]:
        """The next `count` values in [0, 1): the top 53 bits of each word."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def initialize(config: Config, generator: SplitMix64) -> dict[str, NDArray[np.float64]]:
    """Initial parameters in canonical order: matrices uniform within `sqrt(6 / (in + out))`, gains 1 without a draw.

    Gains lie between matrices in the canonical order but draw nothing, so the canonical order is the drawing order.
    """
    return {name: draw(shape, generator) for name, shape in parameter_shapes(config).items()}


def draw(shape: tuple[int, ...], generator: SplitMix64) -> NDArray[np.float64]:
    """One parameter: a matrix in row-major order, or a gain."""
    if len(shape) == 1:
        return np.ones(shape)
    limit = math.sqrt(6.0 / sum(shape))
    units = generator.units(shape[0] * shape[1])
    matrix: NDArray[np.float64] = limit * (2.0 * units - 1.0)
    return matrix.reshape(shape)
