"""What is wrong with an implementation, from what it gave out: the first wrong stage, and the faults that do the same.

Two steps. Each stage that is given is judged by itself: the oracle's operation on the stages given before it. Then
every fault of the bank is tried as a hypothesis: the reference with that fault, compared with what was given, in
noise units of the faulty computation; one within the noise is a likely cause. With logits alone only the second step
is left. This module compares plain arrays, and judges nobody: the verdict is the properties' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from decoderspec.faults import hypotheses, training
from decoderspec.faults.bank import BANK
from decoderspec.faults.case import Case
from decoderspec.faults.fault import Fault, Weights
from decoderspec.faults.hypotheses import Cause
from decoderspec.faults.local import StageReport, local_reports
from decoderspec.faults.training import GradientReport, LossReport
from decoderspec.reference.operations import Array
from decoderspec.spec.config import Config
from decoderspec.spec.precision import Recipe
from decoderspec.spec.stages import stage_names


@dataclass(frozen=True)
class Observed:
    """What an implementation gave out on one case, canonical and float64; everything is optional."""

    logits: Array | None = None
    stages: Mapping[str, Array] = field(default_factory=dict)
    loss: float | None = None
    gradients: Mapping[str, Array] | None = None
    role_gradients: tuple[Array, Array] | None = None


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

    def to_json(self) -> dict[str, object]:
        """Plain data: the stages, the first wrong one, the likely causes, the next hypothesis, loss and gradients."""
        return {
            "first_wrong_stage": self.first_wrong_stage,
            "after": self.after,
            "stages": [report.to_json() for report in self.stages],
            "likely_causes": [cause.to_json() for cause in self.causes],
            "next": self.next.to_json() if self.next else None,
            "loss": self.loss.to_json() if self.loss else None,
            "gradients": [report.to_json() for report in self.gradients],
            "derivatives": list(self.derivatives),
            "tried": self.tried,
        }

    def describe(self) -> str:
        """The diagnosis for a terminal."""
        return "\n".join([*self._stage_lines(), *self._loss_lines(), *self._gradient_lines(), *self._cause_lines()])

    def _stage_lines(self) -> Iterable[str]:
        if self.stages:
            yield f"{'stage':<34} {'error':>10} {'allowed':>8} {'bits':>5}   each on its own inputs"
        first = next((report.name for report in self.stages if not report.conforms), None)
        for report in self.stages:
            mark = "  <- first wrong" if report.name == first else "" if report.conforms else "  wrong too"
            yield f"{report.name:<34} {report.noise:>10.3g} {report.allowed:>8.1f} {report.bits:>5.1f}{mark}"
        if self.after and first:
            yield f"the fault lies after {self.after} and not after {first}"

    def _loss_lines(self) -> Iterable[str]:
        if self.loss is not None:
            verdict = "right" if self.loss.conforms else "WRONG"
            error = f"{self.loss.noise:.3g} x noise ({self.loss.allowed:.1f} allowed)"
            yield f"loss, given its own logits: {verdict}, {error}"

    def _gradient_lines(self) -> Iterable[str]:
        wrong = [report for report in self.gradients if not report.conforms]
        for report in wrong:
            yield f"gradient of {report.name}: {report.noise:.3g} x noise ({report.allowed:.1f} allowed)"
        if wrong and self.derivatives:
            yield f"consistent with a wrong derivative of: {', '.join(self.derivatives)}"

    def _cause_lines(self) -> Iterable[str]:
        for cause in self.causes:
            yield f"likely cause: {cause.fault} ({cause.stage}): {cause.sentence}"
            yield f"  reproduces what was given to {cause.noise:.3g} x noise ({cause.allowed:.1f} allowed)"
            if cause.source:
                yield f"  seen before: {cause.source}"
        if self.wrong and not self.causes:
            yield f"no known fault reproduces this ({self.tried} tried)"
        if self.wrong and self.next:
            yield f"next hypothesis: {self.next.fault}, {self.next.noise:.3g} x noise"


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


def diagnose_case(case: Case, observed: Observed, *, bank: Sequence[Fault] = BANK, pairs: bool = False) -> Diagnosis:
    """`diagnose`, for whoever has several things to ask about one case: predictions are kept in it."""
    given = dict(observed.stages)
    if observed.logits is not None:
        given.setdefault("logits", observed.logits)
    stages = local_reports(case, given)
    first = next((report.name for report in stages if not report.conforms), None)
    if first is not None:
        after = _before(case.config, given, first) if len(given) > 1 else None
        causes, beyond, tried = hypotheses.of_forward(case, given, first, after, bank, pairs)
        loss = training.loss_report(case, given.get("logits"), observed.loss)
        return Diagnosis(stages, after, causes, beyond, loss, tried=tried)
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
        derivatives = training.suspects(case, gradients)
    return Diagnosis(stages, None, *found[:2], loss, gradients, derivatives, found[2])


def _before(config: Config, given: Mapping[str, Array], stage: str) -> str | None:
    """The last given stage before one, in forward order."""
    names = stage_names(config.layers)
    earlier = [name for name in names[: names.index(stage)] if name in given]
    return earlier[-1] if earlier else None
