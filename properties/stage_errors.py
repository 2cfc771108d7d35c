"""The picture of an implementation, stage by stage: the error against its limit, and the bits that are right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from decoderspec.properties.observed import own_loss
from decoderspec.properties.run import Run
from decoderspec.reference.limits import Comparison
from decoderspec.spec.precision import STAGE_KEYS
from decoderspec.spec.stages import suffix

ORDER = (*STAGE_KEYS, "loss")


def stage_errors(run: Run, bits: Mapping[str, float]) -> list[dict[str, Any]]:
    """Each stage that is offered, in forward order, the worst over a few fixed cases; the logits where none is.

    A stage is judged on the implementation's own inputs to it, the logits alone from the tokens on. `bits` are those
    right, `possible` those of the declared format that the stage is stored in.
    """
    worst: dict[str, Comparison] = {}
    for name, comparison in _comparisons(run):
        if name not in worst or comparison.excess > worst[name].excess:
            worst[name] = comparison
    return [_entry(run, name, worst[name], bits.get(name)) for name in ORDER if name in worst]


def _comparisons(run: Run) -> Iterator[tuple[str, Comparison]]:
    for case in run.sample:
        truth, model = run.truth(case), run.model(case)
        tokens = truth.batch[0]
        given = model.stages(tokens) if model.has("stages") else {}
        for stage, comparison in truth.judge_stages(given).items():
            yield suffix(stage), comparison
        if not given:
            yield "logits", truth.judge_logits(model.logits(tokens))
        if model.has("loss"):
            yield "loss", own_loss(run, case, run.subject.recipe)


def _entry(run: Run, name: str, found: Comparison, bits: float | None) -> dict[str, Any]:
    recipe = run.subject.recipe
    form = recipe.loss if name == "loss" else recipe.stored(name)
    return {
        "name": name, "noise": found.worst, "allowed": found.allowed, "mean_noise": found.spread,
        "mean_allowed": found.spread_allowed, "excess": found.excess, "bits": bits, "possible": form.bits,
    }  # fmt: skip
