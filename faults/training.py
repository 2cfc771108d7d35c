"""Loss and gradients where the forward pass is right: what is wrong, and which faults make the same of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoderspec.faults.case import DIGITS, Case
from decoderspec.faults.fault import Fault, Substitution
from decoderspec.faults.hypotheses import RIGHT, Found, Hypothesis, Values, ranked
from decoderspec.faults.local import difference
from decoderspec.reference import oracle, units
from decoderspec.reference.limits import Comparison, compare, compare_gradient
from decoderspec.reference.operations import OPERATIONS, Array, Operations
from decoderspec.reference.tape import Gradient, Tape, accumulate
from decoderspec.spec.parameters import TABLE

BOTH_ROUNDED = math.sqrt(2)  # the reference's gradient is rounded too, so that their difference is larger by this


@dataclass(frozen=True)
class LossReport:
    """The loss judged on the logits that were given."""

    noise: float
    allowed: float
    got: float
    expected: float
    conforms: bool

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"noise": self.noise, "allowed": self.allowed, "got": self.got, "expected": self.expected}


@dataclass(frozen=True)
class GradientReport:
    """One gradient against the reference's."""

    name: str
    comparison: Comparison

    @property
    def noise(self) -> float:
        """Of the worst element, in noise units."""
        return self.comparison.worst

    @property
    def allowed(self) -> float:
        """The limit of the worst element."""
        return self.comparison.allowed

    @property
    def conforms(self) -> bool:
        """Whether the worst element and the mean are within their limits."""
        return self.comparison.conforms

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "name": self.name, "noise": self.noise, "allowed": self.allowed, "mean_noise": self.comparison.spread,
            "mean_allowed": self.comparison.spread_allowed, "conforms": self.conforms,
        }  # fmt: skip


def loss_report(case: Case, logits: Array | None, loss: float | None) -> LossReport | None:
    """The loss against the oracle's of the given logits, or of the right ones where none are given."""
    if loss is None or case.targets is None or (logits is not None and not np.isfinite(logits).all()):
        return None
    known = case.training["logits"] if logits is None else logits
    truth = np.asarray(oracle.loss_of_logits(known, case.targets, digits=DIGITS), object)
    compare_with = units.unit(_loss_deviation(case, known) if logits is not None else _whole_deviation(case))
    found = compare(np.asarray(loss), difference(np.asarray(loss), truth), compare_with)
    return LossReport(found.worst, found.allowed, loss, float(truth), found.conforms)


def _whole_deviation(case: Case) -> Array:
    return np.asarray(case.training_units["loss"])[None]


def _loss_deviation(case: Case, logits: Array) -> Array:
    return units.deviations(lambda ops: {"loss": ops.nll("loss", logits, case.targets)}, case.recipe, case.seed)["loss"]


def gradient_reports(
    case: Case, gradients: Mapping[str, Array] | None, roles: tuple[Array, Array] | None
) -> tuple[GradientReport, ...]:
    """Every gradient that was given, in canonical order, then the two roles of the table."""
    return tuple(_gradient(case, name, value) for name, value in named(gradients, roles).items())


def named(gradients: Mapping[str, Array] | None, roles: tuple[Array, Array] | None) -> dict[str, Array]:
    """All gradients as `gradient.NAME`, those of the table's roles as `gradient.lookup` and `gradient.head`."""
    leaves = {f"gradient.{name}": value for name, value in (gradients or {}).items()}
    return leaves | (dict(zip((units.LOOKUP, units.HEAD), roles, strict=True)) if roles else {})


def _gradient(case: Case, name: str, value: Array) -> GradientReport:
    gap = (value - case.training[name]) / BOTH_ROUNDED
    found = compare_gradient(value, gap, case.training_units[name])
    return GradientReport(name.removeprefix("gradient."), replace(found, error=found.error * BOTH_ROUNDED))


# --- Hypotheses ---


def of_loss(case: Case, logits: Array | None, loss: float | None, bank: Sequence[Fault]) -> Found:
    """Faults of the loss against the loss that was given, on the logits that were given."""
    known = case.training["logits"] if logits is None else logits

    def values(fault: Fault) -> Callable[[Substitution], Values]:
        return lambda over: {"loss": np.asarray(over(fault.operations(OPERATIONS)).nll("loss", known, case.targets))}

    tried = [Hypothesis((fault,), "", values(fault)) for fault in bank if fault.level == "loss"]
    return ranked(case, tried, {"loss": np.asarray(loss)}, Hypothesis((RIGHT,), "", values(RIGHT)))


def of_gradients(
    case: Case, gradients: Mapping[str, Array] | None, roles: tuple[Array, Array] | None, bank: Sequence[Fault]
) -> Found:
    """Faults of the backward pass against all gradients that were given."""
    seen = named(gradients, roles)
    tried = [
        Hypothesis((fault,), "gradients", _backward(case, fault))
        for fault in bank
        if fault.level in ("loss", "gradient") and fault.model is None
    ]
    return ranked(case, tried, seen, Hypothesis((RIGHT,), "gradients", _backward(case, RIGHT)))


def _backward(case: Case, fault: Fault) -> Callable[[Substitution], Values]:
    """The gradients that a fault would give."""

    def values(over: Substitution) -> Values:
        gradient = pulled_back(case, over(fault.operations(OPERATIONS)), fault)
        nothing = np.zeros_like(gradient.leaves[TABLE])
        lookup, head = (gradient.uses.get((TABLE, use), nothing) for use in ("embedding", "logits"))
        return named(gradient.leaves, (lookup, head))

    return values


def pulled_back(case: Case, operations: Operations, fault: Fault) -> Gradient:
    """All gradients of a faulty computation."""
    tape = Tape()
    recording = tape.recording(operations)
    logits = fault.decoder(recording, case.config, case.parameters, case.tokens)
    value = recording.nll("loss", logits, case.targets)
    return fault.gradient(accumulate(tape, np.ones_like(value), case.parameters), case.tokens)
