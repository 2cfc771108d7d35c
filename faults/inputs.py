"""Faults of refusal: bad configurations, ids and targets that are taken, and good ones that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import Fault, FaultyModel
from decoderspec.reference.operations import Array
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError, error
from decoderspec.spec.parameters import FINAL_GAIN, parameter_shapes

accepting = partial(Fault, family="inputs", level="contract")


config_fault = partial(accepting, stage="configuration", breaks=("CFG-1",))


token_fault = partial(accepting, stage="tokens")


target_fault = partial(accepting, stage="targets", breaks=("INP-5",))


Tokens = Callable[[Config, Any], Array]


def lenient(*codes: str, otherwise: Callable[[Config], Config] = lambda config: config) -> Callable[[Config], Config]:
    """A check of the configuration that lets some errors pass; `otherwise` makes it usable."""

    def check(config: Config) -> Config:
        try:
            return validation.validate_config(config)
        except SpecError as refusal:
            if not refusal.code.endswith(codes):
                raise
            return otherwise(config)

    return check


def mended(mend: Callable[[Config, Array], Any]) -> Tokens:
    """Ids mended before they are checked."""
    return lambda config, tokens: validation.validate_tokens(config, mend(config, np.asarray(tokens)))


def _only_maximum(config: Config, tokens: Any) -> Array:
    ids = validation.validate_token_shape(config, tokens)
    if ids.max() >= config.vocabulary_size:
        validation.validate_token_ids(config, ids)
    return ids.astype(np.int64)


def _first_row_only(config: Config, tokens: Any) -> Array:
    ids = validation.validate_token_shape(config, tokens)
    validation.validate_token_ids(config, ids[:1])
    return np.asarray(np.clip(ids, 0, config.vocabulary_size - 1), np.int64)


def _first_id_only(config: Config, tokens: Any) -> Array:
    ids = validation.validate_token_shape(config, tokens)
    validation.validate_token_ids(config, ids[:1, :1])
    return np.asarray(np.clip(ids, 0, config.vocabulary_size - 1), np.int64)


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


def _config_of_integers(config: Config) -> Config:
    changed = {name: int(getattr(config, name)) for name in validation.INTEGER_FIELDS}
    return validation.validate_config(replace(config, **changed))


def _unless_layers(config: Config) -> Config:
    return validation.validate_config(config) if config.layers else config


def _floor_heads(config: Config) -> Config:
    return replace(config, heads=next(h for h in range(config.heads, 0, -1) if config.model_width % (2 * h) == 0))


def _small(config: Config) -> Config:
    cut = {name: min(getattr(config, name), 64) for name in ("vocabulary_size", "feed_forward_width", "layers")}
    return replace(config, **cut)


def _refusing_config(when: Callable[[Config], bool], code: str, **values: Any) -> Callable[[Config], Config]:
    def check(config: Config) -> Config:
        config = validation.validate_config(config)
        if when(config):
            raise error(code, **values)
        return config

    return check


def targets_mended(mend: Callable[[Config, Array, Array], Array]) -> Callable[[Config, Array, Any], Array]:
    """Targets mended before they are checked."""
    return lambda config, ids, targets: validation.validate_targets(config, ids, mend(config, ids, np.asarray(targets)))


def _fitted(ids: Array, targets: Array) -> Array:
    """Targets cut to the tokens, or repeated to their number."""
    return np.resize(targets, ids.shape)


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


FAULTS = (
    config_fault(
        name="odd-head-width-taken", config=lenient("OddHeadWidth"),
        sentence="an odd head width passes construction: the last feature stays unrotated, or the first forward fails",
        source="huggingface/transformers #48101",
        breaks=("CFG-1",),
    ),
    config_fault(
        name="indivisible-width-taken", config=lenient("ModelWidthNotDivisible", otherwise=_floor_heads),
        sentence="a width that heads do not divide is accepted and divided with a remainder",
        source="ludwig-ai/ludwig PR 3066 (nearest)",
    ),
    config_fault(
        name="configuration-unchecked-without-layers", config=_unless_layers,
        sentence="heads and head width are checked where blocks are built, so never without blocks",
    ),
    config_fault(
        name="rope-base-unchecked", config=lenient("InvalidRopeBase"),
        sentence="a base that is zero, negative or not finite is taken",
    ),
    config_fault(
        name="negative-epsilon-taken",
        config=lenient("InvalidRmsEpsilon", otherwise=lambda config: replace(config, rms_epsilon=0.0)),
        sentence="a negative epsilon, or none at all, is taken for zero",
    ),
    config_fault(
        name="fractional-sizes-taken", config=_config_of_integers,
        sentence="sizes are cut to integers: 2.5 heads are 2",
    ),
    config_fault(
        name="zero-context-taken",
        config=lenient("ZeroPositionCapacity", otherwise=lambda c: replace(c, max_positions=64)),
        sentence="a context of zero stands for a default",
    ),
    config_fault(
        name="negative-layers-taken",
        config=lenient("Negative", otherwise=lambda c: replace(c, layers=max(0, c.layers))),
        sentence="a negative number of layers counts as none",
    ),
    accepting(
        name="sizes-cut-to-what-fits", stage="configuration", breaks=("CFG-2",),
        config=lenient("Embedding", "AllocationFailed", otherwise=_small), parameters=parameters_mended(filled),
        sentence="sizes are cut to what fits, and parameters are made where they are missing",
    ),
    accepting(
        name="no-layers-refused", stage="configuration", breaks=("VAL-1",),
        config=_refusing_config(lambda c: c.layers == 0, "DecoderModelError.ZeroPositionCapacity"),
        sentence="a decoder without blocks is refused",
    ),
    accepting(
        name="zero-epsilon-refused", stage="configuration", breaks=("VAL-1",),
        config=_refusing_config(lambda c: c.rms_epsilon == 0, "DecoderModelError.InvalidRmsEpsilon", value=0.0),
        sentence="an epsilon of zero is refused",
    ),
    accepting(
        name="base-below-one-refused", stage="configuration", breaks=("VAL-1",),
        config=_refusing_config(lambda c: c.rope_base < 1, "DecoderModelError.InvalidRopeBase", value=0.5),
        sentence="a base below one is refused, as if frequencies had to fall",
    ),
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
        name="ids-of-the-first-row-checked", tokens=_first_row_only, breaks=("INP-1",),
        sentence="only the first row's ids are checked",
    ),
    token_fault(
        name="first-id-checked", tokens=_first_id_only, breaks=("INP-1",),
        sentence="only the first id is checked",
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
