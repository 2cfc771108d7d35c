"""Central differences: the numerical check that both chapters make of their analytic gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from decoderspec.golden.fixtures import STEP, TOLERANCE
from decoderspec.reference.operations import Array


@dataclass(frozen=True)
class GradientCheck:
    """How many coordinates were compared, and whether every one was finite and within the tolerance."""

    coordinates: int
    passed: bool


def check(leaf: Array, analytic: Array, loss: Callable[[], float]) -> GradientCheck:
    """Compare the gradient of `loss` by every coordinate of a live array, which is moved and put back."""
    numerical = np.array([_difference(leaf, index, loss) for index in np.ndindex(leaf.shape)]).reshape(leaf.shape)
    close = np.abs(numerical - analytic) <= TOLERANCE  # false where either is not finite
    return GradientCheck(leaf.size, bool(close.all()))


def _difference(leaf: Array, index: tuple[int, ...], loss: Callable[[], float]) -> float:
    kept = leaf[index]
    leaf[index] = kept + STEP
    above = loss()
    leaf[index] = kept - STEP
    below = loss()
    leaf[index] = kept
    return (above - below) / (2 * STEP)
