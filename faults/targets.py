"""Faults of refusal: bad targets that are taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import FaultyModel
from decoderspec.faults.inputs import accepting
from decoderspec.reference.operations import Array
from decoderspec.reference.tape import Gradient
from decoderspec.spec import validation
from decoderspec.spec.config import Config

target_fault = partial(accepting, stage="targets", breaks=("INP-5",))


def targets_mended(mend: Callable[[Config, Array, Array], Array]) -> Callable[[Config, Array, Any], Array]:
    """Targets mended before they are checked."""
    return lambda config, ids, targets: validation.validate_targets(config, ids, mend(config, ids, np.asarray(targets)))


def _cast(*kinds: str) -> Callable[[Config, Array, Any], Array]:
    """Targets of some kinds of dtype become integers, as far as they are whole numbers."""

    def cast(_config: Config, _ids: Array, targets: Array) -> Array:
        if targets.dtype.kind not in kinds:
            return targets
        numbers = targets.real if targets.dtype.kind == "c" else targets.astype(float)
        return numbers.astype(np.int64) if (numbers == np.rint(numbers)).all() else targets

    return targets_mended(cast)


def _fitted(ids: Array, targets: Array) -> Array:
    """Targets cut to the tokens, or repeated to their number."""
    return np.resize(targets, ids.shape)


class GradientsWithAnyTargets(FaultyModel):
    """The loss looks at its targets, the pullback does not."""

    def gradient(self, tokens: Any, targets: Any) -> Gradient:
        """Of the targets as they are, cast and clamped."""
        ids = self.fault.tokens(self.config, tokens)
        wanted = np.clip(np.asarray(targets).astype(np.int64), 0, self.config.vocabulary_size - 1)
        return super().gradient(ids, _fitted(ids, wanted))


FAULTS = (
    target_fault(
        name="targets-unchecked", sentence="targets are not checked at all: negative ones wrap around",
        targets=lambda config, ids, y: _fitted(ids, np.asarray(y).astype(np.int64) % config.vocabulary_size),
    ),
    target_fault(
        name="targets-clamped", targets=targets_mended(lambda c, z, y: np.clip(y, 0, c.vocabulary_size - 1)),
        sentence="target ids are clamped into the vocabulary",
    ),
    target_fault(
        name="targets-cut-to-fit", targets=targets_mended(lambda c, z, y: _fitted(z, y)),
        sentence="the number of targets is not compared with that of the tokens",
    ),
    target_fault(
        name="negative-target-taken", targets=targets_mended(lambda c, z, y: np.where(y < 0, 0, y)),
        sentence="a negative target, meant to be ignored, is taken for 0",
        source="karpathy/nanoGPT #323",
    ),
    target_fault(
        name="fractional-targets-taken",
        targets=targets_mended(lambda c, z, y: y.astype(np.int64) if y.dtype.kind == "f" else y),
        sentence="targets that are fractions are cut to integers",
    ),
    target_fault(
        name="boolean-targets-taken",
        targets=targets_mended(lambda c, z, y: y.astype(np.int64) if y.dtype.kind == "b" else y),
        sentence="booleans are taken for targets 0 and 1",
    ),
    target_fault(
        name="targets-reshaped", targets=targets_mended(lambda c, z, y: y.reshape(z.shape) if y.size == z.size else y),
        sentence="targets of any shape with the right number of elements are reshaped: [T, B] pairs them with others",
    ),
    target_fault(
        name="integral-float-targets-taken", targets=_cast("f"),
        sentence="targets that are whole numbers in floats are cast",
    ),
    target_fault(
        name="targets-in-strings-taken", targets=_cast("U", "S"),
        sentence="targets in strings are taken for the numbers",
    ),
    target_fault(
        name="complex-targets-taken", targets=_cast("c"),
        sentence="the imaginary parts of targets are discarded",
    ),
    target_fault(
        name="targets-in-32-bits",
        targets=targets_mended(lambda c, z, y: np.where(y >= 2**32, y % 2**32, y) if y.dtype.kind in "iu" else y),
        sentence="targets are cut to 32 bits before they are checked",
    ),
    target_fault(
        name="targets-at-the-ends-checked",
        targets=targets_mended(
            lambda c, z, y: np.concatenate([y[:, :1], y[:, 1:-1].clip(0, c.vocabulary_size - 1), y[:, -1:]], 1)
            if y.shape == z.shape and y.shape[1] > 1 and y.dtype.kind in "iu" else y
        ),
        sentence="only the first and the last target of each row are checked",
    ),
    target_fault(
        name="targets-unchecked-for-gradients", model=GradientsWithAnyTargets,
        sentence="targets are checked on the way to the loss, not on the way to the gradients",
    ),
)  # fmt: skip
