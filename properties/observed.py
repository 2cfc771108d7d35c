"""What an implementation really computes in: per stage the bits that are right, and the recipe that follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case, affordable, draw_parameters
from decoderspec.properties.run import Run
from decoderspec.properties.truth import Exact, Truth
from decoderspec.reference import oracle, units
from decoderspec.reference.limits import Comparison
from decoderspec.spec.precision import FORMATS, Recipe, recipe
from decoderspec.spec.stages import suffix

FLOAT64 = FORMATS["float64"].bits
SLACK = 0.25  # of the bits between a format and the next coarser: what chance and unlucky cases take
CANDIDATES = ("float64", "float32", "float16", "bfloat16")  # finest first; tensorfloat32 stores float32
PRODUCTS = (
    "attention.query", "attention.key", "attention.value", "attention.heads", "attention.output",
    "ffn.gate", "ffn.up", "ffn.output", "logits",
)  # fmt: skip
ROTATED = ("attention.rotated_query", "attention.rotated_key")


def bits_right(against_float64: Comparison) -> float:
    """Effective bits: 53 while the mean error is that of float64, one less for each doubling beyond."""
    spread = against_float64.spread
    return 0.0 if math.isinf(spread) else max(0.0, FLOAT64 - max(0.0, math.log2(spread or 1.0)))


def stage_bits(run: Run, case: Case) -> dict[str, float]:
    """Effective bits of each stage that is offered, and of the loss, each on the implementation's own inputs."""
    truth, model, ideal = run.truth(case), run.model(case), recipe("float64")
    bits: dict[str, float] = {}
    if model.has("stages"):
        given = model.stages(truth.batch[0])
        expected, unit = truth.stages(given), truth.stage_units(given, ideal)
        for stage, value in given.items():
            found = bits_right(expected[stage].judge(value, unit[stage]))
            bits[suffix(stage)] = min(found, bits.get(suffix(stage), FLOAT64))
    if model.has("loss"):
        bits["loss"] = bits_right(own_loss(run, case, ideal))
    return bits


def own_loss(run: Run, case: Case, declared: Recipe) -> Comparison:
    """The loss, judged on the implementation's own logits."""
    truth, model = run.truth(case), run.model(case)
    tokens, targets = truth.batch
    logits, loss = model.logits(tokens), np.asarray(model.loss(tokens, targets))
    compute: Callable[[Any], dict[str, Array]] = lambda ops: {"loss": ops.nll("loss", logits, targets)}  # noqa: E731
    unit = units.unit(units.deviations(compute, declared, case.seed)["loss"])
    return Exact.of(oracle.loss_of_logits(logits, targets)).judge(loss, unit)


def observed_bits(run: Run) -> dict[str, float]:
    """Effective bits by stage, the least over a few fixed cases; empty when nothing inside is offered."""
    least: dict[str, float] = {}
    for case in run.sample:
        for stage, bits in stage_bits(run, case).items():
            least[stage] = min(bits, least.get(stage, FLOAT64))
    return least


def explained(run: Run, declared: str | Mapping[str, str]) -> str | Mapping[str, str] | None:
    """The recipe, completed by its gradients, if the noise it stands for explains what is seen; else None.

    A wrong formula loses bits too: then no precision explains it, and a recipe to paste would be a lie.
    """
    if not declared or not all(_holds(run, case, recipe(declared)) for case in _held_against(run, declared)):
        return None
    if "gradients" not in run.capabilities or _slopes_hold(run, declared):
        return declared
    coarsest = min(recipe(declared).used, key=lambda form: form.bits).name
    known = {"results": declared} if isinstance(declared, str) else declared
    completed = {**known, "gradients": coarsest}
    return completed if _slopes_hold(run, completed) else None


def _held_against(run: Run, declared: str | Mapping[str, str]) -> list[Case]:
    """A few cases, and for another recipe than the declared one all that it would be asked in the same way."""
    if run.is_dear or declared == run.subject.recipe.declared:
        return run.sample
    further = (case for case in run.fixed if case not in run.sample and affordable(case))
    return run.sample + [case for case in further if _drawn_alike(run, case, recipe(declared))]


def _drawn_alike(run: Run, case: Case, other: Recipe) -> bool:
    """Whether another recipe draws the same parameters: loud ones are less so where a format is coarse."""
    drawn = draw_parameters(case, other)
    return all(np.array_equal(drawn[name], value) for name, value in run.truth(case).parameters.items())


def _holds(run: Run, case: Case, declared: Recipe) -> bool:
    truth, model = run.truth(case), run.model(case)
    given = model.stages(truth.batch[0]) if model.has("stages") else {}
    return all(comparison.conforms for comparison in truth.judge_stages(given, declared).values())


def _slopes_hold(run: Run, declared: str | Mapping[str, str]) -> bool:
    for case in run.sample[:3]:
        truth = Truth(case, run.truth(case).parameters, recipe(declared))
        gradients = run.model(case).gradients(*truth.batch)
        if not truth.judge_slope(tuple(gradients), gradients).conforms:
            return False
    return True


def observed_recipe(bits: Mapping[str, float]) -> str | dict[str, str]:
    """The recipe that explains the bits: the finest format for each stage, written as briefly as it goes."""
    formats = {stage: _finest(value) for stage, value in bits.items()}
    stages = {stage: form for stage, form in formats.items() if stage not in ("loss", "embedding")}
    if not stages:
        return {}
    if _rounds_operands(stages):  # the products' stages are stored as finely as the others
        rest = {stage: form for stage, form in formats.items() if stage not in (*PRODUCTS, "attention.weights")}
        found = observed_recipe({stage: bits[stage] for stage in rest})
        return {**({"results": found} if isinstance(found, str) else found), "products": "tensorfloat32"}
    results = max(set(stages.values()), key=lambda form: (list(stages.values()).count(form), FORMATS[form].bits))
    if all(_at_least(form, results) for form in formats.values()):
        return results
    found = {"results": results}
    found |= {stage: form for stage, form in stages.items() if not _at_least(form, results)}
    return _with_tables(found, stages, formats.get("loss", results), results)


def _rounds_operands(stages: Mapping[str, str]) -> bool:
    """Whether all products, and nothing else, are right to the 11 bits of tensorfloat32."""
    products = {stages[name] for name in PRODUCTS if name in stages}
    others = [form for name, form in stages.items() if name not in (*PRODUCTS, "attention.weights")]
    return products == {"float16"} and bool(others) and all(_at_least(form, "float32") for form in others)


def _with_tables(found: dict[str, str], stages: Mapping[str, str], loss: str, results: str) -> dict[str, str]:
    """A coarse table shows in both rotated stages, or in the weights where neither is given; one alone is its own."""
    rotated = {name: stages[name] for name in ROTATED if name in stages}
    some = [*rotated.values()] or [stages.get("attention.weights", results)]
    tables = max(some, key=lambda form: FORMATS[form].bits)
    for name, form in rotated.items():
        if _at_least(form, tables):
            found.pop(name, None)
    if not _at_least(tables, results):
        found["tables"] = tables
    if not _at_least(loss, results):
        found["loss"] = loss
    return found


def _finest(bits: float) -> str:
    """The finest format that the bits come up to; sums inside are finer than what is stored, and add to them."""
    for name, coarser in pairwise(CANDIDATES):
        own = FORMATS[name].bits
        if bits >= own - SLACK * (own - FORMATS[coarser].bits):
            return name
    return CANDIDATES[-1]


def _at_least(form: str, other: str) -> bool:
    return FORMATS[form].bits >= FORMATS[other].bits
