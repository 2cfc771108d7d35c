"""What is wrong with an implementation, from what it gave out: the first wrong stage, and the faults that do the same.

Two steps. Each stage that is given is judged by itself: the oracle's operation on the stages given before it. Then
every fault of the bank is tried as a hypothesis: the reference with that fault, compared with what was given, in
noise units of the faulty computation; one within the noise is a likely cause. With logits alone only the second step
is left. This module compares plain arrays, and judges nobody: the verdict is the properties' business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from decoderspec.faults import hypotheses, training
from decoderspec.faults.bank import BANK
from decoderspec.faults.case import Case
from decoderspec.faults.derivatives import suspects
from decoderspec.faults.fault import Fault, Weights
from decoderspec.faults.hypotheses import Cause
from decoderspec.faults.local import StageReport, difference, local_reports
from decoderspec.faults.training import GradientReport, LossReport
from decoderspec.reference.decoder import decoder as right_decoder
from decoderspec.reference.operations import OPERATIONS, Array
from decoderspec.reference.splitmix64 import SplitMix64, initialize
from decoderspec.spec.config import Config
from decoderspec.spec.precision import Recipe
from decoderspec.spec.stages import stage_names

ATOL = 1e-5  # what tests of decoders use
TINY = 1e-300  # a noise unit of zero is no reason to divide by it


@dataclass(frozen=True)
class Observed:
    """What an implementation gave out on one case, canonical and float64; everything is optional."""

    logits: Array | None = None
    stages: Mapping[str, Array] = field(default_factory=dict)
    loss: float | None = None
    gradients: Mapping[str, Array] | None = None
    role_gradients: tuple[Array, Array] | None = None


@dataclass(frozen=True)
class Closeness:
    """How far off a result is in plain numbers: what a test with a fixed tolerance sees of it."""

    what: str
    error: float  # the largest, absolute
    width: float  # of the tolerance `ATOL`, in noise units of that element
    fresh: float | None = None  # the error that the likeliest cause makes with freshly initialized parameters

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "of": self.what, "error": self.error, "atol": ATOL, "passes": self.error <= ATOL,
            "tolerance_in_noise": self.width, "error_when_initialized": self.fresh,
        }  # fmt: skip


@dataclass(frozen=True)
class Example:
    """The smallest case that was found to show it, and its worst element."""

    case: str
    name: str  # of the stage, `loss` or a gradient
    index: tuple[int, ...]
    got: float
    want: float

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "case": self.case, "stage": self.name, "index": list(self.index), "got": self.got, "want": self.want,
        }  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The stages in forward order, the first wrong one, and the likely causes, likeliest first."""

    stages: tuple[StageReport, ...] = ()
    after: str | None = None  # the last stage given before the first wrong one: the fault lies between them
    causes: tuple[Cause, ...] = ()  # those that reproduce what was given, within the noise
    next: Cause | None = None  # the nearest hypothesis that does not
    loss: LossReport | None = None
    gradients: tuple[GradientReport, ...] = ()
    derivatives: tuple[str, ...] = ()  # operations whose derivative alone would make these gradients wrong
    tried: int = 0
    closeness: Closeness | None = None
    example: Example | None = None

    @property
    def first_wrong_stage(self) -> str | None:
        """The first stage beyond its limit; with logits alone, where the likeliest cause starts."""
        wrong = [report.name for report in self.stages if not report.conforms]
        if len(self.stages) > 1 or not wrong:
            return wrong[0] if wrong else None
        return self.causes[0].stage if self.causes else wrong[0]

    @property
    def wrong(self) -> bool:
        """Whether anything that was given is wrong."""
        right = [report.conforms for report in self.stages] + [report.conforms for report in self.gradients]
        return not all(right) or (self.loss is not None and not self.loss.conforms)

    @property
    def place(self) -> str | None:
        """Where it is wrong, in words: the first wrong stage, the loss, or a derivative."""
        if self.first_wrong_stage or not self.wrong:
            return self.first_wrong_stage
        if self.loss is not None and not self.loss.conforms:
            return "loss"
        if self.derivatives:
            return f"the derivative of {' or of '.join(self.derivatives)}"
        return f"the gradient of {next(report.name for report in self.gradients if not report.conforms)}"

    @property
    def kind(self) -> str | None:
        """The family of the likeliest cause."""
        return self.causes[0].family.replace("_", " ") if self.causes else None

    @property
    def compared(self) -> str:
        """What was compared, in words."""
        inner = sum(report.name != "logits" for report in self.stages)
        parts = [f"{inner} stage{'s' * (inner > 1)}"] if inner else []
        parts += ["the logits"] if inner < len(self.stages) else []
        parts += ["the loss"] if self.loss is not None else []
        parts += [f"{len(self.gradients)} gradients"] if self.gradients else []
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts) or "nothing was"

    def to_json(self, hint: int = 0) -> dict[str, object]:
        """Plain data: everything, or so many hints (1 the stage, 2 the kind too, 3 the causes too)."""
        causes = [cause.to_json() for cause in self.causes]
        steps: dict[str, object] = {"first_wrong_stage": self.first_wrong_stage, "place": self.place}
        if hint:
            further = {"kind": self.kind, "likely_causes": causes}
            return {"hint": hint, "wrong": self.wrong, **steps, **dict(list(further.items())[: hint - 1])}
        return {
            **steps,
            "after": self.after,
            "stages": [report.to_json() for report in self.stages],
            "likely_causes": causes,
            "next": self.next.to_json() if self.next else None,
            "loss": self.loss.to_json() if self.loss else None,
            "gradients": [report.to_json() for report in self.gradients],
            "derivatives": list(self.derivatives),
            "tried": self.tried,
            "tolerance": self.closeness.to_json() if self.closeness else None,
            "example": self.example.to_json() if self.example else None,
        }


def diagnose(
    config: Config,
    parameters: Weights,
    tokens: Array,
    targets: Array | None,
    recipe: Recipe,
    observed: Observed,
    *,
    bank: Sequence[Fault] = BANK,
    seed: int = 0,
    pairs: bool = False,
) -> Diagnosis:
    """The diagnosis of one case. `pairs` also tries every two faults together, which takes some seconds."""
    case = Case(config, parameters, tokens, targets, recipe, seed)
    return diagnose_case(case, observed, bank=bank, pairs=pairs)


def diagnose_case(
    case: Case,
    observed: Observed,
    *,
    bank: Sequence[Fault] = BANK,
    pairs: bool = False,
    judged: Collection[str] | None = None,
) -> Diagnosis:
    """`diagnose`, for whoever has several things to ask about one case: predictions are kept in it.

    `judged` are the stages that can be judged, where not all can; the others are inputs of theirs alone.
    """
    given = dict(observed.stages)
    if observed.logits is not None:
        given.setdefault("logits", observed.logits)
    stages = local_reports(case, given, judged)
    if judged is not None and "logits" not in judged:
        given.pop("logits", None)
    first = next((report.name for report in stages if not report.conforms), None)
    if first is not None:
        after = _before(case.config, given, first) if len(given) > 1 else None
        causes, beyond, tried = hypotheses.of_forward(case, given, first, after, bank, pairs)
        loss = training.loss_report(case, given.get("logits"), observed.loss)
        near = closeness(case, given.get("logits"), causes)
        return Diagnosis(stages, after, causes, beyond, loss, tried=tried, closeness=near)
    return _of_training(case, stages, given, observed, bank)


def _of_training(
    case: Case,
    stages: tuple[StageReport, ...],
    given: Mapping[str, Array],
    observed: Observed,
    bank: Sequence[Fault],
) -> Diagnosis:
    """The forward pass is right: what of the loss and the gradients?"""
    if case.targets is None:
        return Diagnosis(stages)
    loss = training.loss_report(case, given.get("logits"), observed.loss)
    gradients = training.gradient_reports(case, observed.gradients, observed.role_gradients)
    found: hypotheses.Found = ((), None, 0)
    derivatives: tuple[str, ...] = ()
    if loss is not None and not loss.conforms:
        found = training.of_loss(case, given.get("logits"), observed.loss, bank)
    if not all(report.conforms for report in gradients) and not found[0]:
        found = training.of_gradients(case, observed.gradients, observed.role_gradients, bank)
        seen = training.named(observed.gradients, observed.role_gradients)
        derivatives = suspects(case, gradients, seen)
    return Diagnosis(stages, None, *found[:2], loss, gradients, derivatives, found[2])


def closeness(case: Case, logits: Array | None, causes: Sequence[Cause]) -> Closeness | None:
    """What a test of the logits with a fixed tolerance sees; nothing where they are not given or not finite."""
    if logits is None:
        return None
    found = closeness_of(
        "the logits", difference(logits, case.truth["logits"]), case.stage_units({}, case.recipe)["logits"]
    )
    return replace(found, fresh=fresh_error(case, causes)) if found else None


def closeness_of(what: str, error: Array, unit: Array) -> Closeness | None:
    """What a test with a fixed tolerance sees of an error; nothing where it is not finite."""
    size = np.abs(error)
    if not np.isfinite(size).all():
        return None
    there = np.broadcast_to(unit, size.shape).flat[np.argmax(size)]
    return Closeness(what, float(np.max(size)), ATOL / max(float(there), TINY))


def fresh_error(case: Case, causes: Sequence[Cause]) -> float | None:
    """How far off the likeliest cause makes the logits where the parameters are freshly initialized."""
    fault = next((fault for fault in BANK if causes and fault.name == causes[0].fault), None)
    if fault is None or fault.level != "forward":
        return None
    weights = initialize(case.config, SplitMix64(case.seed))
    at = case.config, weights, case.tokens
    try:
        with np.errstate(all="ignore"):
            gap = fault.decoder(fault.operations(OPERATIONS), *at) - right_decoder(OPERATIONS, *at)
    except (ValueError, IndexError, ZeroDivisionError):  # a wrong shape somewhere inside
        return None
    return float(np.max(np.abs(gap)))


def _before(config: Config, given: Mapping[str, Array], stage: str) -> str | None:
    """The last given stage before one, in forward order."""
    names = stage_names(config.layers)
    earlier = [name for name in names[: names.index(stage)] if name in given]
    return earlier[-1] if earlier else None
