"""Loss and gradients where the forward pass is right: what is wrong, and which operation's derivative it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoderspec.faults.case import DIGITS, Case
from decoderspec.faults.fault import Fault, Substitution
from decoderspec.faults.hypotheses import Found, Hypothesis, Values, ranked
from decoderspec.faults.local import difference
from decoderspec.reference import oracle, units
from decoderspec.reference.limits import compare
from decoderspec.reference.operations import OPERATIONS, Array, Gradients, Operation, Operations
from decoderspec.reference.tape import Gradient, Tape, accumulate
from decoderspec.spec.parameters import TABLE
from decoderspec.spec.stages import suffix


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
    noise: float
    allowed: float
    conforms: bool

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"name": self.name, "noise": self.noise, "allowed": self.allowed}


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
    return tuple(_gradient(case, name, value) for name, value in _named(gradients, roles).items())


def _named(gradients: Mapping[str, Array] | None, roles: tuple[Array, Array] | None) -> dict[str, Array]:
    named = {f"gradient.{name}": value for name, value in (gradients or {}).items()}
    return named | (dict(zip((units.LOOKUP, units.HEAD), roles, strict=True)) if roles else {})


def _gradient(case: Case, name: str, value: Array) -> GradientReport:
    gap = (value - case.training[name]) / np.sqrt(2)
    found = compare(value, gap, case.training_units[name])
    return GradientReport(name.removeprefix("gradient."), found.worst, found.allowed, found.conforms)


# --- Hypotheses ---


def of_loss(case: Case, logits: Array | None, loss: float | None, bank: Sequence[Fault]) -> Found:
    """Faults of the loss against the loss that was given, on the logits that were given."""
    known = case.training["logits"] if logits is None else logits

    def values(fault: Fault) -> Callable[[Substitution], Values]:
        return lambda over: {"loss": np.asarray(over(fault.operations(OPERATIONS)).nll("loss", known, case.targets))}

    tried = [Hypothesis((fault,), "", values(fault)) for fault in bank if fault.level == "loss"]
    return ranked(case, tried, {"loss": np.asarray(loss)}, None)


def of_gradients(
    case: Case, gradients: Mapping[str, Array] | None, roles: tuple[Array, Array] | None, bank: Sequence[Fault]
) -> Found:
    """Faults of the backward pass against all gradients that were given."""
    seen = _named(gradients, roles)
    tried = [
        Hypothesis((fault,), "gradients", _backward(case, fault))
        for fault in bank
        if fault.level in ("loss", "gradient") and fault.model is None
    ]
    return ranked(case, tried, seen, None)


def _backward(case: Case, fault: Fault) -> Callable[[Substitution], Values]:
    """The gradients that a fault would give."""

    def values(over: Substitution) -> Values:
        gradient = pulled_back(case, over(fault.operations(OPERATIONS)), fault)
        nothing = np.zeros_like(gradient.leaves[TABLE])
        lookup, head = (gradient.uses.get((TABLE, use), nothing) for use in ("embedding", "logits"))
        return _named(gradient.leaves, (lookup, head))

    return values


def pulled_back(case: Case, operations: Operations, fault: Fault) -> Gradient:
    """All gradients of a faulty computation."""
    tape = Tape()
    recording = tape.recording(operations)
    logits = fault.decoder(recording, case.config, case.parameters, case.tokens)
    value = recording.nll("loss", logits, case.targets)
    return fault.gradient(accumulate(tape, np.ones_like(value), case.parameters), case.tokens)


# --- Which derivative ---

CHANGED = 1e-6  # relative: what a spoiled derivative changes is far beyond this


def suspects(case: Case, reports: Sequence[GradientReport]) -> tuple[str, ...]:
    """Operations whose derivative, spoiled alone, makes just these gradients wrong; several are undecidable.

    Each derivative is spoiled in turn and what changes is compared with what is wrong: no knowledge of the faults.
    Whole operations first; where none fits, operations at one place of the decoder.
    """
    wrong = {report.name for report in reports if not report.conforms}
    known = {report.name for report in reports}
    for places in (WHOLE, SINGLE):
        for place in places:
            if place not in case.spoiled:
                case.spoiled[place] = _spoiled(case, place)
        fitting = [str(place) for place in places if case.spoiled[place] & known == wrong]
        if fitting:
            return tuple(fitting)
    return ()


@dataclass(frozen=True)
class Derivative:
    """The derivative of an operation by some of its inputs, everywhere or at one stage of the blocks."""

    operation: str
    slots: tuple[int, ...] = (0,)
    stage: str = ""

    def __str__(self) -> str:
        names = INPUTS.get(self.operation, ())
        inputs = " and ".join(names[slot] for slot in self.slots) if names else ""
        return self.operation + (f" by its {inputs}" if inputs else "") + (f" at {self.stage}" if self.stage else "")


INPUTS = {
    "rms_norm": ("stream", "gain"), "linear": ("input", "weight"), "scores": ("query", "key"),
    "mix": ("weights", "value"), "multiply": ("gate", "up"), "add": ("stream", "branch"),
    "project": ("input", "table"),
}  # fmt: skip
STAGES = {
    "rms_norm": ("attention_norm", "ffn_norm", "final_norm"),
    "linear": (*(f"attention.{role}/flat" for role in ("query", "key", "value")), "attention.output", "ffn.gate",
               "ffn.up", "ffn.output"),
    "add": ("after_attention", "output"),
    "rotate": ("attention.rotated_query", "attention.rotated_key"),
}  # fmt: skip
WHOLE = (
    *(Derivative(name) for name in ("embed", "rotate", "softmax", "silu", "nll")),
    *(Derivative(name, slots) for name in INPUTS for slots in ((0,), (1,), (0, 1))),
)
SINGLE = tuple(
    Derivative(name, slots, stage)
    for name, stages in STAGES.items()
    for stage in stages
    for slots in (((0,), (1,)) if name in INPUTS else ((0,),))
)


def _spoiled(case: Case, place: Derivative) -> set[str]:
    """The gradients that change when a derivative is multiplied by noise of its own size."""
    generator = np.random.default_rng(0)

    def change(operation: Operation) -> Operation:
        def vjp(stage: str, *arguments: Array) -> Gradients:
            found = list(operation.vjp(stage, *arguments))
            if not place.stage or suffix(stage) == place.stage:
                for slot in place.slots:
                    found[slot] = found[slot] * generator.uniform(0.5, 1.5, found[slot].shape)
            return tuple(found)

        return replace(operation, vjp=vjp) if operation.name == place.operation else operation

    right = case.training
    gradient = pulled_back(case, OPERATIONS.each(change), RIGHT)
    lookup, head = gradient.uses[TABLE, "embedding"], gradient.uses[TABLE, "logits"]
    named = _named(gradient.leaves, (lookup, head))
    return {n.removeprefix("gradient.") for n, value in named.items() if _moved(value, right[n])}


def _moved(value: Array, right: Array) -> bool:
    return bool(np.max(np.abs(value - right)) > CHANGED * np.max(np.abs(right)) > 0)


RIGHT = Fault(name="none", stage="", family="", sentence="", breaks=(), level="gradient")
