"""Faults as hypotheses: the reference with a fault, compared with what an implementation gave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from decoderspec.faults.case import Case
from decoderspec.faults.fault import Fault, Substitution, alone, in_turn, unchanged
from decoderspec.reference import units
from decoderspec.reference.decoder import decoder as right_decoder
from decoderspec.reference.limits import Comparison, compare
from decoderspec.reference.noise import RUNS, Noise, Place, injection_scale
from decoderspec.reference.operations import OPERATIONS, Array, Operation, Operations
from decoderspec.reference.rounding import noisy, softmax
from decoderspec.spec.stages import stage_names, suffix

CLOSEST = 3  # hypotheses whose own noise is computed at least: about 5 ms each
CHECKED_PAIRS = 40_000  # of distinct functions there are some 26,000, at a third of a millisecond each
BETTER = 0.9  # of the distance at which the right formulas are: what is no nearer than they are explains nothing
NEAR = 1000.0  # times its limit: what is farther off shares no more than the leading digits, as anything does
SAME = 1e-9  # relative: predictions of one function differ by their rounding alone

RIGHT = Fault(name="none", stage="", family="", sentence="", breaks=(), level="gradient")


@dataclass(frozen=True)
class Cause:
    """A hypothesis, and how well it reproduces what was given."""

    fault: str
    stage: str
    noise: float
    allowed: float
    reproduces: bool
    sentence: str
    source: str = ""
    family: str = ""

    @property
    def near(self) -> bool:
        """Whether it comes near enough for its distance to say anything."""
        return self.noise <= NEAR * self.allowed

    def at(self, stage: str) -> Cause:
        """The same with another name of its stage."""
        return replace(self, stage=stage)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "fault": self.fault, "stage": self.stage, "family": self.family, "noise": self.noise,
            "allowed": self.allowed, "near": self.near, "sentence": self.sentence, "source": self.source,
        }  # fmt: skip


Found = tuple[tuple[Cause, ...], Cause | None, int]  # causes, the next hypothesis, how many were tried
Values = dict[str, Array]


@dataclass(frozen=True)
class Hypothesis:
    """One fault, or two, with a way to compute what would be seen."""

    faults: tuple[Fault, ...]
    place: str  # what it predicts, to know it again on the same case; empty where that depends on what was given
    values: Callable[[Substitution], Values]  # under a substitution on top of the fault's own: noise, or nothing

    @property
    def name(self) -> str:
        """The names of its faults."""
        return " and ".join(fault.name for fault in self.faults)

    def cause(self, comparison: Comparison) -> Cause:
        """What a comparison says of it."""
        first = self.faults[0]
        return Cause(
            self.name, first.stage, comparison.worst, comparison.allowed, comparison.conforms,
            "; ".join(fault.sentence for fault in self.faults), "; ".join(f.source for f in self.faults if f.source),
            " and ".join(dict.fromkeys(fault.family for fault in self.faults)),
        )  # fmt: skip


def of_forward(
    case: Case, given: Mapping[str, Array], first: str, after: str | None, bank: Sequence[Fault], pairs: bool
) -> Found:
    """Forward faults against the first wrong stage, computed from the stages given before it, and the logits."""
    names = stage_names(case.config.layers)
    before = {name: given[name] for name in names[: names.index(first)] if name in given}
    seen = {name: given[name] for name in (first, "logits") if name in given}
    forward = [fault for fault in bank if fault.level == "forward"]
    allowed = {suffix(name) for name in between(case.config.layers, after, first)}
    place = "" if before else "logits"
    right = Hypothesis((RIGHT,), place, _forward_values(case, RIGHT, before, first))
    single = [Hypothesis((f,), place, _forward_values(case, f, before, first)) for f in forward]
    found = ranked(case, single, seen, right, allowed if before else None)
    if before and "logits" in given:
        found = _by_logits(case, found, given["logits"], forward)
    if before:
        found = tuple(_placed(cause, first, forward) for cause in found[0]), *found[1:]
    elif not found[0]:
        once = [Hypothesis((f,), place, _forward_values(case, f, before, first)) for f in _alone(case, forward)]
        found = _together(found, ranked(case, once, seen, right))
    if pairs and not found[0]:
        some = _starting_in(allowed, forward) if before else _distinct(case, single)
        both = (((a, b), paired(a, b)) for a, b in combinations(some, 2))
        two = [Hypothesis(pair, "", _forward_values(case, f, before, first)) for pair, f in both if f is not None]
        found = _together(found, ranked(case, two[:CHECKED_PAIRS], seen, right))
    return found


def _placed(cause: Cause, first: str, forward: Sequence[Fault]) -> Cause:
    """The cause, with the stage where it was seen for the first of those where it may start."""
    return cause.at(suffix(first)) if any(f.name == cause.fault and f.starts_at(first) for f in forward) else cause


def _alone(case: Case, forward: Sequence[Fault]) -> Iterator[Fault]:
    """Every fault of an operation at one stage only, of those where it may start: in one block, or in one norm."""
    for fault in forward:
        places = [name for name in stage_names(case.config.layers) if fault.starts_at(name)]
        for place in places if fault.decoder is right_decoder and len(places) > 1 else ():
            yield replace(
                fault, name=f"{fault.name} at {place} alone", stage=place, also=(),
                operations=alone(place, fault.operations),
            )  # fmt: skip


def _starting_in(stages: set[str], forward: Sequence[Fault]) -> list[Fault]:
    return [fault for fault in forward if stages & {fault.stage, *fault.also}]


def _distinct(case: Case, single: Sequence[Hypothesis]) -> list[Fault]:
    """One fault for each function that differs, on this case, from the right one and from the others."""
    right = right_decoder(OPERATIONS, case.config, case.parameters, case.tokens)
    step, found = SAME * (_size(right) or 1.0), dict[bytes, Fault]()
    for each in single:
        value = computed(case, each).get("logits")
        if value is not None and value.shape == right.shape and not np.allclose(value, right, rtol=SAME, atol=step):
            with np.errstate(all="ignore"):
                found.setdefault((np.round(value / step / 10) + 0.0).tobytes(), each.faults[0])
    return list(found.values())


def _together(single: Found, pairs: Found) -> Found:
    """What the pairs explain, and the nearest of both that does not."""
    beyond = [cause for cause in (single[1], pairs[1]) if cause is not None]
    return pairs[0], min(beyond, key=lambda cause: cause.noise, default=None), single[2] + pairs[2]


def between(layers: int, after: str | None, first: str) -> tuple[str, ...]:
    """The stages after one that is right, from the embedding on where none is, up to the first that is wrong."""
    names = stage_names(layers)
    return names[names.index(after) + 1 if after else 0 : names.index(first) + 1]


def _by_logits(case: Case, found: Found, logits: Array, forward: Sequence[Fault]) -> Found:
    """Causes of the same local result: first those that also lead to the logits that were given."""
    whole = {f.name: Hypothesis((f,), "logits", _forward_values(case, f, {}, "logits")) for f in forward}
    size = {"logits": _size(logits) or 1.0}
    gaps = {cause.fault: distance(case, whole[cause.fault], {"logits": logits}, size) for cause in found[0]}
    near = min(gaps.values(), default=0.0)
    ordered = sorted(found[0], key=lambda cause: gaps[cause.fault] > 1e3 * near + 1e-9)
    return tuple(ordered), found[1], found[2]


def _forward_values(
    case: Case, fault: Fault, before: Mapping[str, Array], first: str
) -> Callable[[Substitution], Values]:
    """The stage `first` from the values before it, or the logits from the tokens on."""

    def values(over: Substitution) -> Values:
        changed = over(fault.operations(OPERATIONS))
        if not before:
            return {"logits": fault.decoder(changed, case.config, case.parameters, case.tokens)}
        try:
            fault.decoder(_anchored(changed, before, first), case.config, case.parameters, case.tokens)
        except _Reached as reached:
            return {first: reached.value}
        return {}

    return values


class _Reached(Exception):
    """The stage that was wanted has been computed; what comes after it is not needed."""

    def __init__(self, value: Array) -> None:
        super().__init__()
        self.value = value


def _anchored(operations: Operations, before: Mapping[str, Array], first: str) -> Operations:
    """The same operations, going on from the given values, and raising `_Reached` at one stage."""

    def wrap(operation: Operation) -> Operation:
        def perform(stage: str, *inputs: Any) -> Array:
            output = operation(stage, *inputs)
            if stage == first:
                raise _Reached(output)
            return before.get(stage, output)

        return replace(operation, perform=perform)

    return operations.each(wrap)


def paired(a: Fault, b: Fault) -> Fault | None:
    """Two faults at once; None where both are another composition, or change the same stage."""
    composed = [fault.decoder for fault in (a, b) if fault.decoder is not right_decoder]
    if len(composed) > 1 or a.stage == b.stage:
        return None
    decoder = composed[0] if composed else right_decoder
    operations = in_turn(a.operations, b.operations)
    return replace(a, name=f"{a.name} and {b.name}", decoder=decoder, operations=operations)


# --- Ranking ---


def ranked(
    case: Case,
    tried: Sequence[Hypothesis],
    seen: Mapping[str, Array],
    right: Hypothesis,
    stages: set[str] | None = None,
) -> Found:
    """Hypotheses by how near they come: the nearest few are judged by the noise of their own computation.

    In a coarse precision many come within the noise, the right formulas too: a cause must come nearer than these do.
    """
    sizes = {name: _size(value) or 1.0 for name, value in seen.items()}
    enough = BETTER * distance(case, right, seen, sizes)
    gaps = ((distance(case, each, seen, sizes), i) for i, each in enumerate(tried))
    near = sorted((pair for pair in gaps if np.isfinite(pair[0]) and pair[0] <= enough), key=lambda pair: pair[0])
    judged = [_judged(case, tried[i], seen) for _, i in near[:CLOSEST]]
    while judged and judged[-1].reproduces and len(judged) < len(near):  # a large group of the same function
        judged.append(_judged(case, tried[near[len(judged)][1]], seen))
    within = sorted((c for c in judged if c.reproduces), key=lambda c: (not _fits(c, tried, stages), c.noise))
    beyond = sorted((c for c in judged if not c.reproduces), key=lambda c: c.noise)
    return tuple(within), (beyond[0] if beyond else None), len(tried)


def _fits(cause: Cause, tried: Sequence[Hypothesis], stages: set[str] | None) -> bool:
    """Whether a cause starts in one of the stages where the fault must lie."""
    faults = next(each.faults for each in tried if each.name == cause.fault)
    return stages is None or any(stage in stages for f in faults for stage in (f.stage, *f.also))


def computed(case: Case, hypothesis: Hypothesis) -> Values:
    """What the hypothesis predicts; nothing where it cannot be computed on this case."""
    key = (hypothesis.name, hypothesis.place)
    if not hypothesis.place or key not in case.predicted:
        case.predicted[key] = _attempted(hypothesis, unchanged) or {}
    return case.predicted[key]


def _attempted(hypothesis: Hypothesis, over: Substitution) -> Values | None:
    try:
        with np.errstate(all="ignore"):
            return hypothesis.values(over)
    except (ValueError, IndexError, ZeroDivisionError):  # a wrong shape somewhere inside
        return None


def distance(case: Case, hypothesis: Hypothesis, seen: Mapping[str, Array], sizes: Mapping[str, float]) -> float:
    """Root mean square difference over what was seen, relative to its size; infinite where shapes differ."""
    values = computed(case, hypothesis)
    common = [name for name in values if name in seen]
    if not common or any(values[name].shape != seen[name].shape for name in common):
        return np.inf
    return max(_relative(error(seen[name], values[name]), sizes[name]) for name in common)


def _relative(gap: Array, size: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(np.sqrt(np.mean(np.square(gap / size))), nan=np.inf))


def error(got: Array, value: Array) -> Array:
    """`got - value`, and nothing where both are equally not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        same = (got == value) | (np.isnan(got) & np.isnan(value))
        return np.where(same, 0.0, got - value)


def _judged(case: Case, hypothesis: Hypothesis, seen: Mapping[str, Array]) -> Cause:
    """The worst comparison of what was seen with what the hypothesis predicts, in its own noise."""
    exact = computed(case, hypothesis)
    noise = own_noise(case, hypothesis, exact)
    comparisons = [_comparison(seen[name], exact[name], *noise[name]) for name in exact if name in seen]
    return hypothesis.cause(max(comparisons, key=lambda comparison: comparison.excess))


def _comparison(got: Array, value: Array, unit: Array, freedom: float | None) -> Comparison:
    """Both sides are rounded, so their difference is larger by the root of two."""
    gap = error(got, value) / np.sqrt(2)
    return compare(np.where(np.isfinite(got) | (gap == 0), 0.0, np.inf), gap, unit, freedom)


def own_noise(case: Case, hypothesis: Hypothesis, exact: Values) -> dict[str, tuple[Array, float | None]]:
    """`units.noise` of a faulty computation: the same wrong formulas with every rounding replaced by noise."""
    noise = Noise(case.recipe, np.random.default_rng(case.seed), RUNS, injection_scale(case.recipe))
    moved = _attempted(hypothesis, lambda operations: _noisy(noise, operations))
    if moved is None:  # a wrong operation that cannot take the runs: a rounding of each value
        size = case.recipe.results.unit
        return {name: (size * np.maximum(np.abs(value), _size(value)), None) for name, value in exact.items()}
    return {name: units.noise(_deviation(moved[name], value) / noise.scale) for name, value in exact.items()}


def _size(value: Array) -> float:
    """Root mean square of what is finite."""
    finite = value[np.isfinite(value)]
    largest = float(np.max(np.abs(finite), initial=0.0))  # squares of the largest numbers would overflow
    return largest * float(np.sqrt(np.mean(np.square(finite / largest)))) if largest else 0.0


def _deviation(moved: Array, value: Array) -> Array:
    """What the noise does, `[runs, *shape]`; nothing where the value is not finite."""
    gap = np.broadcast_to(moved - value, (RUNS, *value.shape))
    return np.asarray(np.nan_to_num(gap, nan=0.0, posinf=0.0, neginf=0.0))


def _noisy(noise: Noise, operations: Operations) -> Operations:
    """Noise on wrong operations too. That of the softmax takes rows to sum to one: others are scaled there and back."""
    wrong = operations.softmax

    def perform(stage: str, s: Array) -> Array:
        p = wrong(stage, s)
        total = np.sum(p, axis=-1, keepdims=True)
        total = np.where(np.abs(total - 1.0) < SAME, 1.0, total)  # noise is a function of the bits: spare them
        return np.asarray(softmax(noise, Place(noise.recipe, stage), p / total, s) * total)

    changed = noisy(noise, operations)
    return replace(changed, softmax=replace(changed.softmax, perform=perform))
