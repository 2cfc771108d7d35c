"""Faults of refusal: bad input is refused, but for a reason that sends its user to the wrong place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from decoderspec.faults.inputs import accepting
from decoderspec.reference.model import Reference
from decoderspec.reference.operations import Array
from decoderspec.spec import validation
from decoderspec.spec.config import Config
from decoderspec.spec.errors import SpecError

Classify = Callable[[BaseException], str | None]
right: Classify = Reference().classify
blaming = partial(accepting, stage="tokens", source="OpenNMT/CTranslate2 PR 348 (the kind)")


def instead(*of: str, word: str) -> Classify:
    """One category in place of others."""
    return lambda error: word if right(error) in of else right(error)


def _from_the_depths(config: Config, tokens: Any) -> Array:
    try:
        return validation.validate_tokens(config, tokens)
    except SpecError as refusal:
        if refusal.category == "vocabulary":
            raise IndexError("index is out of bounds for axis 0") from None
        raise


FAULTS = (
    blaming(
        name="ids-refused-from-the-depths", breaks=("INP-1",), tokens=_from_the_depths,
        sentence="ids are not checked: an index error of the array library comes up, which says nothing of ids",
        source="OpenNMT/CTranslate2 PR 348; vllm-project/vllm PR 51795",
    ),
    blaming(
        name="ids-blamed-on-the-shape", breaks=("INP-1",), classify=instead("vocabulary", word="token_shape"),
        sentence="an id out of range is reported as a wrong shape",
    ),
    blaming(
        name="shape-blamed-on-the-ids", breaks=("INP-2",), classify=instead("token_shape", word="vocabulary"),
        sentence="a wrong shape is reported as an id out of range",
    ),
    blaming(
        name="context-blamed-on-the-ids", breaks=("INP-4",), classify=instead("context", word="vocabulary"),
        sentence="a sequence that is too long is reported as an id out of range",
        source="huggingface/transformers #32154 (a vague error)",
    ),
    blaming(
        name="targets-blamed-on-the-ids", stage="targets", breaks=("INP-5",),
        classify=instead("target_vocabulary", "target_shape", word="vocabulary"),
        sentence="a wrong target is reported as a wrong token",
    ),
    blaming(
        name="parameters-blamed-on-the-configuration", stage="parameters", breaks=("INP-6",),
        classify=instead("parameters", "component", word="configuration"),
        sentence="a missing or misshapen parameter is reported as a wrong configuration",
    ),
    blaming(
        name="every-refusal-is-numeric", breaks=("CFG-1", "INP-1", "INP-2", "INP-4", "INP-5", "INP-6"),
        classify=lambda error: None if right(error) is None else "numeric",
        sentence="one error stands for whatever is wrong",
    ),
)  # fmt: skip
