"""Faults of refusal: bad configurations and seeds that are taken, and good configurations that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from decoderspec.faults.fault import drawn
from decoderspec.faults.inputs import accepting, filled, parameters_mended
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError, error

config_fault = partial(accepting, stage="configuration", breaks=("CFG-1",))


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


def _config_of_integers(config: Config) -> Config:
    changed = {name: int(getattr(config, name)) for name in validation.INTEGER_FIELDS}
    return validation.validate_config(replace(config, **changed))


def _with_sizes(kind: type[Any]) -> Callable[[Config], Config]:
    """Sizes of one more type are taken for integers where they are whole."""

    def check(config: Config) -> Config:
        given: dict[str, Any] = {name: getattr(config, name) for name in validation.INTEGER_FIELDS}
        whole = {name: int(x) for name, x in given.items() if isinstance(x, kind) and float(x).is_integer()}
        return validation.validate_config(replace(config, **whole))

    return check


def _with_constants(kind: type[Any], change: Callable[[Any], float]) -> Callable[[Config], Config]:
    """Constants of one type are changed before they are checked."""

    def check(config: Config) -> Config:
        given = {name: getattr(config, name) for name in validation.REAL_FIELDS}
        changed: dict[str, Any] = {name: change(x) for name, x in given.items() if isinstance(x, kind)}
        return validation.validate_config(replace(config, **changed))

    return check


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
        name="integral-float-sizes-taken", config=_with_sizes(float),
        sentence="a size of 8.0 is taken for 8, as JSON and YAML readers hand it out",
    ),
    config_fault(
        name="sizes-in-strings-taken", config=_with_sizes(str),
        sentence="a size in a string is taken for the number, as environments and command lines hand it out",
    ),
    config_fault(
        name="boolean-constants-taken", config=_with_constants(bool, float),
        sentence="True is taken for a base or an epsilon of 1",
    ),
    config_fault(
        name="constants-in-strings-taken", config=_with_constants(str, float),
        sentence="a base or an epsilon in a string is taken for the number",
    ),
    config_fault(
        name="negative-infinite-base-taken", config=_with_constants(float, lambda x: 1e4 if x == -math.inf else x),
        sentence="only a base of plus infinity is looked for: minus infinity stands for no base given",
    ),
    config_fault(
        name="configuration-unchecked-by-initialize", stage="initialization",
        config=lenient("Base", "Epsilon", "Divisible", "HeadWidth", otherwise=_floor_heads),
        parameters=lambda config, given: validation.validate_parameters(validation.validate_config(config), given),
        sentence="building checks the configuration, drawing parameters by itself does not",
    ),
    config_fault(
        name="seeds-wrap-around", stage="initialization",
        initial=lambda config, seed: drawn(config, int(seed) % 2**64 if np.ndim(seed) == 0 else seed),
        sentence="a seed is cut to 64 bits: -1 is 2^64 - 1, and 1.5 is 1",
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
)  # fmt: skip
