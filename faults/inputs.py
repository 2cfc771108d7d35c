"""Faults of refusal: bad configurations, ids and targets that are taken, and good ones that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import Fault, FaultyModel
from decoderspec.reference.operations import Array
from decoderspec.reference.tape import Gradient
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError, error
from decoderspec.spec.parameters import FINAL_GAIN, parameter_shapes

accepting = partial(Fault, family="inputs", level="contract")


token_fault = partial(accepting, stage="tokens")


TAKEN_UNCHECKED = ("INP-1", "INP-2", "INP-3", "INP-4")


Tokens = Callable[[Config, Any], Array]


def mended(mend: Callable[[Config, Array], Any]) -> Tokens:
    """Ids mended before they are checked."""
    return lambda config, tokens: validation.validate_tokens(config, mend(config, np.asarray(tokens)))


def _only_maximum(config: Config, tokens: Any) -> Array:
    ids = validation.validate_token_shape(config, tokens)
    if ids.max() >= config.vocabulary_size:
        validation.validate_token_ids(config, ids)
    return ids.astype(np.int64)


def _checked_where(places: Callable[[Array], Array]) -> Tokens:
    """Only some of the ids are checked, and the rest are clamped."""

    def check(config: Config, tokens: Any) -> Array:
        ids = validation.validate_token_shape(config, tokens)
        validation.validate_token_ids(config, places(ids))
        return np.asarray(np.clip(ids, 0, config.vocabulary_size - 1), np.int64)

    return check


def _refused(
    config: Config, tokens: Any, when: Callable[[Config, Array], bool], code: str, values: dict[str, Any]
) -> Array:
    ids = validation.validate_tokens(config, tokens)
    if when(config, ids):
        raise error(code, **values)
    return ids


def _or_else(taken: Callable[[Any], bool]) -> Tokens:
    """Some ids taken as they are, all others checked."""
    return lambda config, z: np.asarray(z, np.int64) if taken(z) else validation.validate_tokens(config, z)


def _longer(config: Config, beyond: int) -> Config:
    return replace(config, max_positions=config.max_positions + beyond)


def _padded(tokens: Any) -> Array:
    """Ragged rows filled with zeros."""
    if isinstance(tokens, (list, tuple)) and tokens and isinstance(tokens[0], (list, tuple)):
        width = max(len(row) for row in tokens)
        return np.array([[*row, *[0] * (width - len(row))] for row in tokens])
    return np.asarray(tokens)


Given = Mapping[str, Any]


def parameters_mended(mend: Callable[[Config, dict[str, Any]], Given]) -> Callable[[Config, Given], Any]:
    """Parameters mended before they are checked."""
    return lambda config, given: validation.validate_parameters(config, mend(config, dict(given)))


def filled(config: Config, given: dict[str, Any]) -> Given:
    """Missing parameters made up, unknown ones dropped."""
    return {name: given.get(name, np.ones(shape)) for name, shape in parameter_shapes(config).items()}


class SpoiledByRefusal(FaultyModel):
    """A refused call leaves the model changed."""

    def logits(self, tokens: Any) -> Array:
        """Right until something is refused."""
        try:
            return super().logits(tokens)
        except SpecError:
            self.weights[FINAL_GAIN][...] *= 1.5
            raise


class DeadAfterRefusal(FaultyModel):
    """A refused call leaves the model unusable."""

    dead = False

    def logits(self, tokens: Any) -> Array:
        """Right until something is refused, and an error from then on."""
        if self.dead:
            raise RuntimeError("the device is in an undefined state")
        try:
            return super().logits(tokens)
        except SpecError:
            self.dead = True
            raise


class LossUnchecked(FaultyModel):
    """Ids are checked on the way to the logits alone."""

    def checked(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """Clamped ids."""
        ids = np.clip(np.asarray(tokens), 0, self.config.vocabulary_size - 1)
        return super().checked(ids, targets)


def _as_they_come(config: Config, tokens: Any) -> Array:
    """Any tokens in a batch: cast, clamped and at least of rank two."""
    return np.clip(np.atleast_2d(np.asarray(tokens).astype(np.int64)), 0, config.vocabulary_size - 1)


def _loose(model: FaultyModel) -> FaultyModel:
    """The same model without a check of its tokens."""
    return FaultyModel(replace(model.fault, tokens=_as_they_come), model.config, model.weights)


class GradientsUnchecked(FaultyModel):
    """Logits and loss look at what they are given, and the pullback starts from the ids as they are."""

    def gradient(self, tokens: Any, targets: Any) -> Gradient:
        """Without a check of the tokens."""
        return FaultyModel.gradient(_loose(self), tokens, targets)


class RoleGradientsUnchecked(FaultyModel):
    """The gradients by role come from a function of their own."""

    def role_gradients(self, tokens: Any, targets: Any) -> tuple[Array, Array]:
        """Without a check of the tokens."""
        return _loose(self).role_gradients(tokens, targets)


class StagesUnchecked(FaultyModel):
    """The stages are for debugging, and nobody gives bad ids to them."""

    def stages(self, tokens: Any) -> dict[str, Array]:
        """Without a check of the tokens."""
        return _loose(self).stages(tokens)


class PartialSums(FaultyModel):
    """Gradients add into a buffer that is cleared after a call, and not after a refusal."""

    left = 0.0

    def gradient(self, tokens: Any, targets: Any) -> Gradient:
        """Right, but for what a refusal has left."""
        self.left += 1.0
        found, times = super().gradient(tokens, targets), self.left
        self.left = 0.0
        return replace(found, leaves={name: value * times for name, value in found.leaves.items()})


class LossSpoiledByRefusal(FaultyModel):
    """The number of positions to divide by is that of the last call, also of one that was refused."""

    count = 0

    def loss(self, tokens: Any, targets: Any) -> float:
        """Right, but for the call after a refusal."""
        size, count = np.size(tokens), self.count
        self.count = size
        found = super().loss(tokens, targets)
        self.count = 0
        return found * size / count if count else found


FAULTS = (
    token_fault(
        name="negative-ids-wrap-around", tokens=_only_maximum, breaks=("INP-1",),
        sentence="only the upper bound is checked, and negative ids count from the end of the table",
        source="BlinkDL/ChatRWKV PR 217; vllm-project/vllm PR 51795",
    ),
    token_fault(
        name="ids-clamped", tokens=mended(lambda c, z: np.clip(z, 0, c.vocabulary_size - 1)), breaks=("INP-1",),
        sentence="ids are clamped into the table",
        source="gittensor-ai-lab/sparkinfer PR 154; NVIDIA/Megatron-LM PR 2570; 1bit-MONSTER/1bit-MONSTER PR 935",
    ),
    token_fault(
        name="ids-modulo-vocabulary", tokens=mended(lambda c, z: z % c.vocabulary_size), breaks=("INP-1",),
        sentence="ids are taken modulo the vocabulary",
    ),
    token_fault(
        name="id-one-past-the-end-taken", breaks=("INP-1",),
        tokens=mended(lambda c, z: np.where(z == c.vocabulary_size, 0, z)),
        sentence="the bound is inclusive: one past the end reads a row of padding",
        source="sgl-project/sglang PR 27482; MemPalace/mempalace #2114",
    ),
    token_fault(
        name="ids-in-32-bits", tokens=mended(lambda c, z: z.astype(np.int32)), breaks=("INP-1",),
        sentence="ids are cut to 32 bits before they are checked",
    ),
    token_fault(
        name="ids-of-the-first-row-checked", tokens=_checked_where(lambda ids: ids[:1]), breaks=("INP-1",),
        sentence="only the first row's ids are checked",
    ),
    token_fault(
        name="first-id-checked", tokens=_checked_where(lambda ids: ids[:1, :1]), breaks=("INP-1",),
        sentence="only the first id is checked",
    ),
    token_fault(
        name="ids-at-the-ends-checked", breaks=("INP-1",), tokens=_checked_where(lambda ids: ids[:, [0, -1]]),
        sentence="only the first and the last id of each row are checked",
    ),
    token_fault(
        name="ids-of-the-outer-rows-checked", breaks=("INP-1",), tokens=_checked_where(lambda ids: ids[[0, -1]]),
        sentence="only the first and the last row's ids are checked",
    ),
    token_fault(
        name="every-other-id-checked", breaks=("INP-1",), tokens=_checked_where(lambda ids: ids.reshape(1, -1)[:, ::2]),
        sentence="ids are checked at a stride, as by threads that take two each and look at one",
    ),
    token_fault(
        name="tokens-unchecked-for-gradients", model=GradientsUnchecked, breaks=TAKEN_UNCHECKED,
        sentence="tokens are checked on the way to the logits and the loss, not on the way to the gradients",
    ),
    token_fault(
        name="tokens-unchecked-for-gradients-by-role", model=RoleGradientsUnchecked, breaks=TAKEN_UNCHECKED,
        sentence="tokens are checked everywhere but on the way to the table's gradients by role",
    ),
    token_fault(
        name="tokens-unchecked-for-stages", model=StagesUnchecked, breaks=TAKEN_UNCHECKED,
        sentence="tokens are checked everywhere but on the way to the stages",
    ),
    token_fault(
        name="ids-unchecked-for-loss", model=LossUnchecked, breaks=("INP-1",),
        sentence="ids are checked on the way to the logits, not on the way to the loss",
    ),
    token_fault(
        name="last-id-refused", breaks=("INP-1",),
        tokens=lambda config, tokens: _refused(
            config, tokens, lambda c, z: bool((z == c.vocabulary_size - 1).any()), "DecoderModelError.EmptyTokens", {}
        ),
        sentence="the bound is exclusive by one too many: the last id is refused",
    ),
    token_fault(
        name="rank-one-taken", breaks=("INP-2",),
        tokens=lambda config, tokens: validation.validate_tokens(config, np.atleast_2d(tokens)),
        sentence="ids of rank one are taken for a batch of one",
    ),
    token_fault(
        name="rank-three-flattened", breaks=("INP-2",),
        tokens=mended(lambda c, z: z.reshape(-1, z.shape[-1]) if z.ndim > 2 else z),
        sentence="leading axes are flattened into the batch",
    ),
    token_fault(
        name="ragged-rows-padded", breaks=("INP-2",),
        tokens=lambda config, tokens: validation.validate_tokens(config, _padded(tokens)),
        sentence="rows of different length are filled with id 0",
    ),
    token_fault(
        name="empty-batch-taken", breaks=("INP-2",),
        tokens=_or_else(lambda z: np.shape(z)[:1] == (0,)),
        sentence="an empty batch gives an empty result, and a mean of nothing",
        source="Dao-AILab/flash-attention #1159, PR 2470, PR 2568; pytorch/pytorch PR 195812",
    ),
    token_fault(
        name="no-tokens-taken", breaks=("INP-2",),
        tokens=_or_else(lambda z: np.ndim(z) == 2 and np.shape(z)[1] == 0),
        sentence="rows without tokens give an empty result",
        source="Dao-AILab/flash-attention #1159; pytorch/pytorch PR 195812",
    ),
    token_fault(
        name="fractional-ids-taken", breaks=("INP-3",),
        tokens=mended(lambda c, z: z.astype(np.int64) if z.dtype.kind == "f" else z),
        sentence="ids that are fractions are cut to integers",
    ),
    token_fault(
        name="boolean-ids-taken", breaks=("INP-3",),
        tokens=mended(lambda c, z: z.astype(np.int64) if z.dtype.kind == "b" else z),
        sentence="booleans are taken for ids 0 and 1",
    ),
    token_fault(
        name="context-unchecked", breaks=("INP-4",),
        tokens=lambda config, tokens: validation.validate_tokens(_longer(config, 10**6), tokens),
        sentence="sequences longer than the context are taken",
        source="huggingface/transformers #32154; facebookresearch/ParlAI PR 1717; facebookresearch/esm #49",
    ),
    token_fault(
        name="context-inclusive", breaks=("INP-4",),
        tokens=lambda config, tokens: validation.validate_tokens(_longer(config, 1), tokens),
        sentence="one token more than the context is taken",
    ),
    token_fault(
        name="full-context-refused", breaks=("INP-4",),
        tokens=lambda config, tokens: _refused(
            config, tokens, lambda c, z: z.shape[1] >= c.max_positions > 1, "DecoderModelError.ContextLengthExceeded",
            {"tokens": config.max_positions, "max_positions": config.max_positions},
        ),
        sentence="a sequence as long as the context is refused",
    ),
    token_fault(
        name="context-cut", breaks=("INP-4",),
        tokens=mended(lambda c, z: z[:, -c.max_positions :] if z.ndim == 2 and z.shape[1] else z),
        sentence="longer sequences are cut to the last positions in silence",
    ),
    accepting(
        name="gradients-left-by-a-refusal", stage="state", breaks=("INP-7",), model=PartialSums,
        sentence="a refused call for gradients leaves its sums in the buffer, and the next call adds to them",
    ),
    accepting(
        name="loss-after-a-refusal", stage="state", breaks=("INP-7",), model=LossSpoiledByRefusal,
        sentence="a refused call for the loss leaves its number of positions behind, by which the next one is divided",
    ),
    accepting(
        name="spoiled-by-a-refusal", stage="state", breaks=("INP-7",), model=SpoiledByRefusal,
        sentence="a refused call has already changed something",
    ),
    accepting(
        name="dead-after-a-refusal", stage="state", breaks=("INP-7",), model=DeadAfterRefusal,
        sentence="a refused call leaves the device unusable",
        source="huggingface/transformers #32154",
    ),
)  # fmt: skip
