"""Which operation's derivative is wrong, from the gradients alone and with no knowledge of the faults.

Two questions to each place where a derivative could be wrong. Would other gradients be wrong than those that are?
And, where it may give out anything at all, is there something that leads to just the gradients that were given?
What comes after a derivative is linear in what it gives out, so the second is a least-squares problem: many more
gradients than unknowns, and a place that is not at fault leaves a remainder. Places that leave none are all possible;
more than one means that these gradients cannot decide between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoderspec.faults.case import Case
from decoderspec.faults.hypotheses import RIGHT
from decoderspec.faults.training import GradientReport, named, pulled_back
from decoderspec.reference.operations import OPERATIONS, Array, Gradients, Operation, Operations
from decoderspec.reference.tape import Gradient
from decoderspec.spec.parameters import TABLE
from decoderspec.spec.stages import suffix

CHANGED = 1e-6  # relative: what a spoiled derivative changes is far beyond this
UNKNOWNS = 600  # more make a system that takes seconds, and that nearly everything solves
REMAINDER = 1e-8  # of what is to be explained: rounding leaves 1e-13 of it, a wrong place 1e-3 and more
IN_NOISE = 10.0  # times the noise, where that is coarser: the solution has as much as the gradients
ADDED_UP = "the table's two roles, added up"
TOLD_APART = "the table, told apart by its roles"
FINISHED = "none: the finished gradients were changed, for those of the stream are right"


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

    def holds(self, operation: str, stage: str) -> bool:
        """Whether a call is one of those meant."""
        return operation == self.operation and (not self.stage or suffix(stage) == self.stage)


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
BY_ONE_FORMULA = ("scores", "mix", "multiply")  # whose two derivatives are one mistake, such as a scale left out
WHOLE = (
    *(Derivative(name) for name in ("embed", "rotate", "softmax", "silu", "nll")),
    *(Derivative(name, (slot,)) for name in INPUTS for slot in (0, 1)),
    *(Derivative(name, (0, 1)) for name in BY_ONE_FORMULA),
)
SINGLE = tuple(
    Derivative(name, slots, stage)
    for name, stages in STAGES.items()
    for stage in stages
    for slots in (((0,), (1,)) if name in INPUTS else ((0,),))
)
BOTH = tuple(Derivative(name, (0, 1)) for name in INPUTS if name not in BY_ONE_FORMULA)  # two mistakes at once


def suspects(case: Case, reports: Sequence[GradientReport], given: Mapping[str, Array]) -> tuple[str, ...]:
    """Operations whose derivative alone would make these gradients what they are; several are undecidable.

    `given` are the gradients by the names of `training.named`. Where no single derivative does, what is done with
    the finished gradients may.
    """
    wrong, known = ({r.name for r in reports if not r.conforms}, {r.name for r in reports})
    for places in ((*WHOLE, *SINGLE), BOTH):
        alike = [place for place in places if _changed(case, place) & known == wrong]
        if fitting := [place for place in alike if _explains(case, place, given)]:
            return tuple(map(str, _narrowest(fitting)))
    return _assembled(wrong, known)


def _narrowest(places: Sequence[Derivative]) -> list[Derivative]:
    """Without those of an operation everywhere, where one place of it is enough."""
    single = {(place.operation, place.slots) for place in places if place.stage}
    return [place for place in places if place.stage or (place.operation, place.slots) not in single]


def _assembled(wrong: set[str], known: set[str]) -> tuple[str, ...]:
    """What is left where no derivative does it: the table's two roles, or gradients changed after they were right."""
    if wrong == {TABLE} and {"lookup", "head"} <= known:
        return (ADDED_UP,)
    if wrong and wrong <= {"lookup", "head"}:
        return (TOLD_APART,)
    return (FINISHED,) if wrong and "lookup" in known - wrong else ()


# --- Would other gradients be wrong? ---


def _changed(case: Case, place: Derivative) -> set[str]:
    """The gradients that change when a derivative is multiplied by noise of its own size."""
    if place not in case.spoiled:
        generator = np.random.default_rng(0)
        spoiled = _substituted(place, lambda _stage, _slot, found: found * generator.uniform(0.5, 1.5, found.shape))
        values, right = _gradients(case, spoiled), case.training
        case.spoiled[place] = {n.removeprefix("gradient.") for n, value in values.items() if _moved(value, right[n])}
    return case.spoiled[place]


def _moved(value: Array, right: Array) -> bool:
    return bool(np.max(np.abs(value - right)) > CHANGED * np.max(np.abs(right)) > 0)


def _substituted(place: Derivative, change: Callable[[str, int, Array], Array]) -> Operations:
    """The right operations with what one derivative gives out changed."""

    def substitute(operation: Operation) -> Operation:
        def vjp(stage: str, *arguments: Array) -> Gradients:
            found = list(operation.vjp(stage, *arguments))
            if place.holds(operation.name, stage):
                for slot in place.slots:
                    found[slot] = change(stage, slot, found[slot])
            return tuple(found)

        return replace(operation, vjp=vjp) if operation.name == place.operation else operation

    return OPERATIONS.each(substitute)


def _gradients(case: Case, operations: Operations) -> dict[str, Array]:
    found: Gradient = pulled_back(case, operations, RIGHT)
    return named(found.leaves, (found.uses[TABLE, "embedding"], found.uses[TABLE, "logits"]))


# --- Is there anything it could have given out? ---


def _explains(case: Case, place: Derivative, given: Mapping[str, Array]) -> bool:
    """Whether some values of that derivative, whatever they are, lead to the gradients that were given.

    True, as undecided, where there are too many unknowns or what was given is not finite.
    """
    shapes: dict[tuple[str, int], tuple[int, ...]] = {}

    def nothing(stage: str, slot: int, found: Array) -> Array:
        shapes[stage, slot] = found.shape
        return np.zeros_like(found)

    base = _gradients(case, _substituted(place, nothing))
    if _count(shapes) > UNKNOWNS or not all(np.isfinite(value).all() for value in given.values()):
        return True
    each = _unit_vectors(shapes)
    moved = _gradients(case, _substituted(place, lambda stage, slot, _found: each[stage, slot]))
    effects = [np.broadcast_to(moved[n] - base[n], (_count(shapes), *base[n].shape)) for n in given]
    system = np.concatenate([effect.reshape(len(effect), -1) for effect in effects], axis=1).T
    wanted = np.concatenate([(value - case.training[n]).ravel() for n, value in given.items()])
    unit = np.concatenate([_units(case, n) for n in given])
    return _solves(system / unit[:, None], wanted / unit)


def _count(shapes: Mapping[tuple[str, int], tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _unit_vectors(shapes: Mapping[tuple[str, int], tuple[int, ...]]) -> dict[tuple[str, int], Array]:
    """One run for each unknown: it is one there, and every other unknown of every call is zero."""
    whole, start, found = np.eye(_count(shapes)), 0, {}
    for key, shape in shapes.items():
        stop = start + math.prod(shape)
        found[key], start = whole[:, start:stop].reshape(-1, *shape), stop
    return found


def _units(case: Case, name: str) -> Array:
    """Noise units of a gradient's elements, none of them zero."""
    unit = np.broadcast_to(case.training_units[name], case.training[name].shape).ravel()
    return np.asarray(np.maximum(unit, max(1e-3 * float(np.max(unit)), 1e-300)))


def _solves(system: Array, wanted: Array) -> bool:
    """Whether least squares leave no more than rounding."""
    solution = np.linalg.lstsq(system, wanted, rcond=None)[0]
    left = float(np.linalg.norm(system @ solution - wanted))
    return left <= max(REMAINDER * float(np.linalg.norm(wanted)), IN_NOISE * math.sqrt(wanted.size))
