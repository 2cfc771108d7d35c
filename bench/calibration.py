"""Calibration of the limits: how far right formulations stray, over thousands of cases, in both statistics.

    python -m decoderspec.bench.calibration --cases 20000 --precision float32 --seed 0 --json float32.json
    python -m decoderspec.bench.calibration --page docs/calibration.md float64.json float32.json ..

The truth of float32 and coarser formats is the float64 reference: its own error is 2^-29 of a unit and less. The truth
of float64 is extended precision, 2^-11 of a unit off, checked against the certified oracle on some of the cases.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoderspec.bench.calibration_cases import parameters, random_cases
from decoderspec.bench.formulations import FORMULATIONS, LONG, Formulation, Kernels, exact, number_type
from decoderspec.properties.cases import Array, Case, arrays, elementwise
from decoderspec.reference import certified, decoder, oracle, units
from decoderspec.reference.limits import (
    FALSE_ALARMS,
    GRADIENT_FALSE_ALARMS,
    independent,
    spread_allowed,
    worst_allowed,
)
from decoderspec.reference.operations import OPERATIONS, Operations
from decoderspec.spec.precision import FORMATS, Recipe, recipe
from decoderspec.spec.stages import suffix

PRECISIONS = ("float64", "float32", "bfloat16", "float16", "float32-kv16", "float32-tf32")
STEEP = 0.25  # the largest score times the unit roundoff
STAGES_EVERY = 2  # stages on their own inputs, and slopes of one, in one case of so many, of one formulation in turn
CERTIFIED_EVERY = 250  # one case of so many has its extended truth checked against the oracle
TOLD_EVERY = 1000  # cases between two words of progress
COPIES = ("embedding", "attention.merged")  # round nothing

UNDRAWN = ("loud", "shouting")  # styles that the suite has one fixed case of and never draws

Measured = tuple[float, float, int, float]


@dataclass(frozen=True)
class Scale:
    """What one named result is judged by, for all formulations of a case."""

    truth: Array
    unit: Array
    freedom: float

    def measure(self, got: Array) -> Measured:
        """Worst element and root mean square in noise units; elements, and independent ones."""
        error = np.asarray(got.astype(self.truth.dtype) - self.truth, np.float64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(error == 0, 0.0, np.abs(error) / self.unit)
            ratio = np.where(np.isnan(ratio), np.inf, ratio)
        return float(np.max(ratio)), float(np.sqrt(np.mean(np.square(ratio)))), ratio.size, self.freedom


@dataclass
class Collected:
    """The numbers of every comparison and its case, by formulation and result; and what lies beyond a limit."""

    numbers: dict[tuple[str, str], array[float]] = field(default_factory=lambda: defaultdict(lambda: array("f")))
    failed: list[str] = field(default_factory=list)
    examples: int = 0
    overflowed: int = 0

    def add(self, how: Formulation, name: str, case: Case, measured: Measured) -> None:
        """Keep one comparison."""
        worst, spread, count, freedom = measured
        self.numbers[how.name, kind(name, case)].extend((*measured, self.examples))
        chance = GRADIENT_FALSE_ALARMS if name.startswith("gradient.") else FALSE_ALARMS
        allowed, mean_allowed = worst_allowed(count, chance), spread_allowed(freedom, chance)
        if is_judged(name, case) and (worst > allowed or spread > mean_allowed):
            note = f"{worst:.3g} of {allowed:.1f}, mean {spread:.3g} of {mean_allowed:.2f}"
            self.failed.append(f"{how.name}: {name}: {note}: {case.describe()}")


def is_judged(name: str, case: Case) -> bool:
    """Whether the suite judges such a result: gradients element by element in the smallest models alone."""
    return not name.startswith("gradient.") or elementwise(case)


def kind(name: str, case: Case) -> str:
    """The name without its layer: all layers are counted together; what the suite never draws or judges apart."""
    if case.style in UNDRAWN:
        return "loud" if is_judged(name, case) else "larger loud gradient"
    larger = "" if is_judged(name, case) else "larger "
    if name.startswith("slope of "):
        return "slope of one"
    for prefix in ("gradient.", "stage "):
        if name.startswith(prefix + "blocks."):
            return larger + prefix + name.split(".", 3 if prefix == "gradient." else 2)[-1]
    return larger + name


# --- One case ---


def examine(case: Case, declared: Recipe, collected: Collected, local: Formulation | None) -> None:
    """Every formulation of one case; the noise is drawn once for all of them.

    Stages on their own inputs, and the slopes of each parameter alone, are those of one formulation.
    """
    weights, batch = parameters(case, declared), arrays(case)
    moved = units.deviations(units.training_values(case.config, weights, *batch), declared, case.seed)
    known = scales(case, declared, weights, moved)
    slopes = Slope.each(known, moved, case.seed, alone=local is not None)
    steep = is_steep(case, declared, weights)
    for how in FORMULATIONS:
        got = run(how, declared, case, weights)
        if not all(np.isfinite(value).all() for value in got.values()):
            collected.overflowed += 1
            continue
        for name, scale in known.items():
            if name in ("logits", "loss") or not steep:
                collected.add(how, name, case, scale.measure(got[name]))
        for name, slope in slopes.items():
            if name == "slope" or local is how:
                collected.add(how, name, case, slope.measure(got))
        if local is how:
            judge_stages(how, declared, case, weights, got, collected)
    collected.examples += 1


def is_steep(case: Case, declared: Recipe, weights: Mapping[str, Array]) -> bool:
    """Whether rounding moves a score so far that gradients do not follow in proportion: units say nothing of them then.

    A score of 110 in bfloat16 is off by half, and a probability by as much; each gradient element that hangs on one
    is scattered with a fourth moment of a hundred times that of a normal error.
    """
    unit = max(form.unit for form in declared.used)
    if unit <= FORMATS["float32"].unit:
        return False
    found = decoder.stages(case.config, weights, arrays(case)[0])
    pairs = [
        (found[f"blocks.{n}.attention.rotated_query"], found[f"blocks.{n}.attention.rotated_key"])
        for n in range(case.config.layers)
    ]
    largest = max((float(np.max(np.abs(q @ k.swapaxes(-1, -2)))) for q, k in pairs), default=0.0)
    return bool(largest / np.sqrt(case.config.head_width) * unit > STEEP)


def run(how: Formulation, declared: Recipe, case: Case, weights: Mapping[str, Array]) -> dict[str, Array]:
    """All results of one formulation, in its number type."""
    dtype = number_type(declared)
    cast = {name: value.astype(dtype) for name, value in weights.items()}
    with np.errstate(all="ignore"):
        compute = units.training_values(case.config, cast, *arrays(case))
        found: dict[str, Array] = compute(Kernels(how, declared, dtype, cast).operations())
    return found


def truth_of(declared: Recipe, weights: Mapping[str, Array]) -> tuple[Operations, dict[str, Array]]:
    """The operations that are exact enough, and the parameters in their number type."""
    if declared.results.name != "float64":
        return OPERATIONS, dict(weights)
    wide = {name: value.astype(LONG) for name, value in weights.items()}
    return exact(wide), wide


def scales(case: Case, declared: Recipe, weights: Mapping[str, Array], moved: Mapping[str, Array]) -> dict[str, Scale]:
    """Truth and units of the logits, the loss and every gradient."""
    operations, wide = truth_of(declared, weights)
    with np.errstate(all="ignore"):
        truth = units.training_values(case.config, wide, *arrays(case))(operations)
    wanted = [name for name in truth if name in ("logits", "loss") or name.startswith("gradient.")]
    found = {name: scale(truth[name], moved[name]) for name in wanted}
    return {name: replace(each, freedom=1.0) if name.startswith("gradient.") else each for name, each in found.items()}


def scale(truth: Array, moved: Array) -> Scale:
    """Equal rows count once."""
    unit, plain = units.unit(moved), np.asarray(truth, np.float64)
    return Scale(truth, unit, independent(plain, unit, units.freedom(moved, unit)))


@dataclass(frozen=True)
class Slope:
    """Some gradients projected on one direction, as the properties judge them where every element is too dear."""

    directions: Mapping[str, Array]
    scale: Scale

    @classmethod
    def each(
        cls, known: Mapping[str, Scale], moved: Mapping[str, Array], seed: int, *, alone: bool
    ) -> dict[str, Slope]:
        """Of all parameters together (GRA-1), and where asked of each parameter and role alone (GRA-4, TIE-3)."""
        rng = np.random.default_rng((seed, 3))
        names = [name for name in known if name.startswith("gradient.")]
        whole = [name for name in names if name not in (units.LOOKUP, units.HEAD)]
        return {"slope": cls.of(whole, known, moved, rng)} | {
            f"slope of {name}": cls.of([name], known, moved, rng) for name in names if alone
        }

    @classmethod
    def of(
        cls, names: Sequence[str], known: Mapping[str, Scale], moved: Mapping[str, Array], rng: np.random.Generator
    ) -> Slope:
        """Every element weighed by its noise unit, with a random sign."""
        directions = {name: units.direction(known[name].unit, rng) for name in names}
        truth = sum(np.sum(known[name].truth * directions[name]) for name in names)
        return cls(directions, Scale(np.asarray(truth), units.along(moved, directions), 1.0))

    def measure(self, got: Mapping[str, Array]) -> Measured:
        """As `Scale.measure`, of one number."""
        wide = self.scale.truth.dtype
        return self.scale.measure(
            np.asarray(sum(np.sum(got[name].astype(wide) * d) for name, d in self.directions.items()))
        )


def judge_stages(
    how: Formulation,
    declared: Recipe,
    case: Case,
    weights: Mapping[str, Array],
    got: Mapping[str, Array],
    collected: Collected,
) -> None:
    """Every stage on its own inputs; blocked attention has no weights to hand out."""
    given = {name: np.asarray(value, np.float64) for name, value in got.items() if _is_stage(name)}
    if how.blocked:
        given = {name: value for name, value in given.items() if suffix(name) != "attention.weights"}
    operations, wide = truth_of(declared, weights)
    widened = {name: value.astype(next(iter(wide.values())).dtype) for name, value in given.items()}
    tokens = arrays(case)[0]
    with np.errstate(all="ignore"):
        truth = units.stage_values(case.config, wide, tokens, widened)(operations)
    moved = units.deviations(units.stage_values(case.config, weights, tokens, given), declared, case.seed)
    for name, value in given.items():
        if suffix(name) not in COPIES:
            collected.add(how, f"stage {name}", case, scale(truth[name], moved[name]).measure(value))


def _is_stage(name: str) -> bool:
    return name != "loss" and not name.startswith("gradient.")


def check_truth(case: Case, declared: Recipe) -> float:
    """How far extended precision is from the certified oracle, in noise units of the logits and the loss."""
    weights, (tokens, targets) = parameters(case, declared), arrays(case)
    moved = units.deviations(units.training_values(case.config, weights, tokens, targets), declared, case.seed)
    known = scales(case, declared, weights, moved)
    true = certified.values(
        lambda digits, a: oracle.forward(case.config, weights, tokens, digits=digits, arithmetic=a, keep=("logits",))
    )["logits"]
    loss = np.asarray(oracle.loss_of_logits(true, targets), object)
    return max(_apart(known["logits"], true), _apart(known["loss"], loss))


def _apart(known: Scale, true: Any) -> float:
    high = true.astype(np.float64)
    low = np.asarray(true - high, object).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(np.asarray((known.truth - high) - low, np.float64)) / known.unit
    return float(np.max(np.where(known.unit > 0, ratio, 0.0)))


# --- Many cases ---


def collect(word: str, cases: Iterable[Case], seconds: float = float("inf")) -> tuple[Collected, dict[str, Any]]:
    """All cases at one precision, or as many as the time allows; and what there is to say about how."""
    declared, collected, apart, start = recipe(word), Collected(), [0.0], time.perf_counter()
    for index, case in enumerate(cases):
        if time.perf_counter() - start > seconds:
            break
        if index % TOLD_EVERY == 0:
            print(f"{index} cases, {time.perf_counter() - start:.0f} s", file=sys.stderr)
        turn, last = divmod(index, STAGES_EVERY)
        examine(case, declared, collected, None if last else FORMULATIONS[turn % len(FORMULATIONS)])
        if word == "float64" and index % CERTIFIED_EVERY == 0:
            apart.append(check_truth(case, declared))
    facts: dict[str, Any] = {
        "precision": word,
        "cases": collected.examples,
        "overflowed": collected.overflowed,
        "seconds": round(time.perf_counter() - start),
        "truth": "float64 reference" if word != "float64" else f"extended precision, {np.finfo(LONG).nmant + 1} bits",
        "truth_off": max(apart),
        "certified": len(apart) - 1,
    }
    return collected, facts


def main(arguments: list[str] | None = None) -> None:
    """Run the calibration of one precision, or write the page of several."""
    from decoderspec.bench import calibration_page

    parser = argparse.ArgumentParser(prog="python -m decoderspec.bench.calibration", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop there, with as many cases as fit")
    parser.add_argument("--json", type=Path, help="where the distributions go")
    parser.add_argument("--samples", type=Path, help="where every comparison goes, as .npz")
    parser.add_argument("--page", type=Path, help="write the page from the JSON files that are named")
    parser.add_argument("files", type=Path, nargs="*")
    given = parser.parse_args(arguments)
    if given.page:
        found = [json.loads(path.read_text(encoding="utf-8")) for path in given.files]
        given.page.write_text(calibration_page.page(found), encoding="utf-8")
        return
    collected, facts = collect(given.precision, random_cases(given.cases, given.seed), given.seconds)
    if given.samples:
        samples = {"|".join(key): np.asarray(value) for key, value in collected.numbers.items()}
        np.savez(given.samples, allow_pickle=False, **samples)
    document = facts | {"seed": given.seed} | calibration_page.summary(collected.numbers, collected.failed)
    text = json.dumps(document, indent=1)
    print(text if not given.json else f"{facts}; beyond a limit: {len(collected.failed)}")
    if given.json:
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
