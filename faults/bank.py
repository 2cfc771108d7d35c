"""The bank: every fault, by family."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Any

from decoderspec.faults import (
    attention,
    attention_pullbacks,
    configurations,
    embedding,
    feed_forward,
    gradients,
    head,
    heads,
    initialization,
    inputs,
    loading,
    losses,
    low_precision,
    memory,
    norms,
    parameters,
    pullbacks,
    refusals,
    residual,
    rotary,
    sizes,
    softmax,
    stale,
    state,
    targets,
)
from decoderspec.faults.fault import Fault, FaultyReference
from decoderspec.spec.shown import shown

BANK: tuple[Fault, ...] = (
    *embedding.FAULTS,
    *norms.FAULTS,
    *heads.FAULTS,
    *memory.FAULTS,
    *rotary.FAULTS,
    *attention.FAULTS,
    *softmax.FAULTS,
    *residual.FAULTS,
    *feed_forward.FAULTS,
    *head.FAULTS,
    *losses.FAULTS,
    *pullbacks.FAULTS,
    *attention_pullbacks.FAULTS,
    *gradients.FAULTS,
    *low_precision.FAULTS,
    *sizes.FAULTS,
    *state.FAULTS,
    *stale.FAULTS,
    *parameters.FAULTS,
    *initialization.FAULTS,
    *configurations.FAULTS,
    *inputs.FAULTS,
    *targets.FAULTS,
    *refusals.FAULTS,
    *loading.FAULTS,
)


@cache
def _names() -> dict[str, Fault]:
    return {fault.name: fault for fault in BANK}


def by_name(name: str) -> Fault:
    """The fault of that name. Raises `KeyError` that lists what resembles it."""
    if name not in _names():
        near = [known for known in _names() if set(name.split("-")) & set(known.split("-"))]
        near = near or get_close_matches(name, _names(), n=5, cutoff=0.0)
        raise KeyError(f"there is no fault {shown(name)}; near it: {', '.join(near)}")
    return _names()[name]


def __getattr__(name: str) -> Any:
    """`decoderspec.faults.bank:NAME` names the implementation with that fault."""
    if name in _names():
        return FaultyReference(_names()[name])
    raise AttributeError(name)
