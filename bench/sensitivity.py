"""Sensitivity: the smallest relative error in each operation that the fixed cases of the default profile still catch.

    python -m decoderspec.bench.sensitivity docs/sensitivity.md

An error of 2^-20 is put into one operation, as independent errors of its elements or as one factor for all, and scaled
to where it reaches a limit: effects are linear. What comes out is verified by injecting it, on the case that sees best.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from decoderspec.bench.formulations import FORMULATIONS, Kernels
from decoderspec.properties.cases import Array, Case, arrays, draw_parameters, fixed_cases
from decoderspec.properties.sensitivity import PROBE, TESTED, disturbed
from decoderspec.reference import decoder, units
from decoderspec.reference.limits import Comparison, compare
from decoderspec.reference.operations import OPERATIONS, Operations
from decoderspec.spec.arrays import round_to
from decoderspec.spec.precision import FORMATS, Format, Recipe, recipe
from decoderspec.spec.stages import suffix

ROOM = 0.2  # relative: another matrix library rounds the probes otherwise
PRECISIONS = ("float64", "float32", "bfloat16", "float16", "bfloat16-mixed", "float32-kv16")
TARGETS = {"float64": 1e-13, "float32": 1e-5}
LARGEST = 512  # words: larger tables only make it slow
SIX_BITS = Format("six bits", 6, -126, 0.0, FORMATS["bfloat16"].largest)
BEYOND, WITHIN = 2.0, 0.4  # times the smallest error: the first must be caught, the second let through


@dataclass(frozen=True)
class Judge:
    """What one case compares: values by name with their units and how many elements err independently."""

    case: Case
    exact: Mapping[str, Array]
    noise: Mapping[str, tuple[Array, float]]
    compute: Callable[[Operations], dict[str, Array]]

    def errors(self, operations: Operations) -> Iterator[Comparison]:
        """Comparisons of what the operations give, by element and in the mean."""
        with np.errstate(all="ignore"):
            got = self.compute(operations)
        return (self.compared(name, got[name] - self.exact[name]) for name in self.exact)

    def compared(self, name: str, error: Array) -> Comparison:
        """One value that is off by so much."""
        return compare(self.exact[name] + error, error, *self.noise[name])


def judges(case: Case, declared: Recipe) -> tuple[Judge, Judge]:
    """Of the logits alone, and of every stage on its own inputs."""
    weights, tokens = draw_parameters(case, declared), arrays(case)[0]

    def logits(operations: Operations) -> dict[str, Array]:
        return {"logits": decoder.decoder(operations, case.config, weights, tokens)}

    exact = decoder.stages(case.config, weights, tokens)
    stages = units.stage_values(case.config, weights, tokens, exact)
    return _judge(case, declared, logits), _judge(case, declared, stages)


def _judge(case: Case, declared: Recipe, compute: Callable[[Operations], dict[str, Array]]) -> Judge:
    moved = units.deviations(compute, declared, case.seed)
    noise = {name: units.noise(deviation) for name, deviation in moved.items()}
    return Judge(case, compute(OPERATIONS), noise, compute)


@dataclass(frozen=True)
class Smallest:
    """The smallest error that is caught, who catches it, and whether an injection confirms it."""

    size: float
    judge: Judge | None = None
    confirmed: bool | None = None


def smallest(name: str, common: bool, among: list[Judge]) -> Smallest:
    """By linear scaling over all cases, then verified on the best."""
    best = Smallest(math.inf)
    for judge in among:
        excess = max((each.excess for each in judge.errors(disturbed(name, judge.case.seed, common))), default=0.0)
        if excess > 0 and PROBE / excess < best.size:
            best = Smallest(PROBE / excess, judge)
    if best.judge is None or not 0 < best.size < 1e-2:  # beyond it, effects are not linear
        return best
    seen = partial(_caught, name, common, best.judge)
    return Smallest(best.size, best.judge, seen(best.size * BEYOND) and not seen(best.size * WITHIN))


def _caught(name: str, common: bool, judge: Judge, size: float) -> bool:
    """Whether an error of that size is beyond a limit."""
    return not all(each.conforms for each in judge.errors(disturbed(name, judge.case.seed, common, size)))


def measure(word: str) -> dict[str, dict[str, Smallest]]:
    """By operation: independent errors and a common factor, from the logits alone and with stages."""
    cases = [case for case in fixed_cases() if case.config.vocabulary_size <= LARGEST]
    pairs = [judges(case, recipe(word)) for case in cases]
    among = {"logits": [pair[0] for pair in pairs], "stages": [pair[1] for pair in pairs]}
    return {
        name: {
            f"{kind} {seen}": smallest(name, kind == "common", among[seen])
            for seen in ("logits", "stages")
            for kind in ("independent", "common")
        }
        for name in TESTED
    }


# --- A wrong rounding step ---


def six_bits() -> dict[str, dict[str, float]]:
    """By stage: how far right bfloat16 and one with 6 bits in that stage are in the mean, over their limit."""
    declared, found = recipe("bfloat16"), dict[str, dict[str, float]]()
    for case in fixed_cases():
        if case.config.vocabulary_size > LARGEST or case.config.layers == 0:
            continue
        weights, tokens = draw_parameters(case, declared), arrays(case)[0]
        cast = {name: value.astype(np.float32) for name, value in weights.items()}
        kernels = Kernels(FORMULATIONS[0], declared, np.float32, cast).operations()
        with np.errstate(all="ignore"):
            given = {k: v.astype(np.float64) for k, v in decoder.stages(case.config, cast, tokens, kernels).items()}
        judge = _judge(case, declared, units.stage_values(case.config, weights, tokens, given))
        for name, value in given.items():
            right = judge.compared(name, value - judge.exact[name])
            wrong = judge.compared(name, round_to(value, SIX_BITS) - judge.exact[name])
            row = found.setdefault(suffix(name), {"right": 0.0, "wrong": 0.0, "caught": 0, "of": 0})
            row["right"] = max(row["right"], right.spread / right.spread_allowed)
            row["wrong"] = max(row["wrong"], wrong.spread / wrong.spread_allowed)
            row["caught"] += wrong.spread > wrong.spread_allowed
            row["of"] += 1
    return found


# --- The page ---

HEAD = """# Sensitivity

Generated by `python -m decoderspec.bench.sensitivity docs/sensitivity.md`. Do not edit.

The smallest relative error in one operation that the fixed cases of the default profile catch: in every call of that
operation, either independent in each element (a standard deviation) or one factor for all. *Logits* is what an
implementation that hands out nothing else is held to, *stages* what each stage shows on its own inputs. A star marks
what an injection of twice the size did not confirm, or one of 0.4 times did not clear; `any` is any change at all,
where a right implementation rounds nothing.
"""
CANCELS = """
A common factor on `embed` or `add` scales the stream, and every norm after it divides the scale out again: it shows in
the logits through epsilon and through the branches that are added to it later, in the stages at once.
"""


def page() -> str:
    """All of it in Markdown."""
    columns = [f"{kind} {seen}" for seen in ("logits", "stages") for kind in ("independent", "common")]
    parts = [HEAD]
    for word in PRECISIONS:
        table, target = measure(word), TARGETS.get(word)
        parts += [f"\n## {word}\n"]
        parts += ["| operation | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
        parts += [
            f"| {name} | " + " | ".join(_cell(row[each]) for each in columns) + " |" for name, row in table.items()
        ]
        if target:
            late = [f"{n}, {each}" for n, row in table.items() for each in columns if row[each].size > target]
            parts += ["", f"Target {target:g}: " + (f"missed by {'; '.join(late)}." if late else "met by all.")]
    return "\n".join([*parts, CANCELS, _rounding(six_bits())])


def _cell(found: Smallest) -> str:
    if found.size < 1e-30:
        return "any"
    return f"{found.size:.1e}" + ("*" if found.confirmed is False else "")


def _rounding(found: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        "## A wrong rounding step: 6 bits for 8 in bfloat16",
        "",
        "One stored stage is rounded to 6 bits where bfloat16 has 8. The mean over its elements over its limit: the",
        "most of any case for right bfloat16 and for the wrong one, and how many fixed cases betray it by the mean.",
        "",
        "| stage | right | wrong | caught |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, row in found.items():
        lines.append(
            f"| {name} | {row['right']:.2f} | {min(row['wrong'], 999):.2f} | {row['caught']:.0f} of {row['of']:.0f} |"
        )
    return "\n".join([*lines, ""])


def changed(text: str, stored: str) -> list[str]:
    """The lines of a stored page that are not those of a new one: other words, or numbers off by more than `ROOM`."""
    pairs = zip_longest(text.splitlines(), stored.splitlines(), fillvalue="")
    return [f"stored {old!r}, now {new!r}" for new, old in pairs if not _alike(new.split(), old.split())]


def _alike(new: list[str], old: list[str]) -> bool:
    return len(new) == len(old) and all(a == b or _near(a, b) for a, b in zip(new, old, strict=True))


def _near(a: str, b: str) -> bool:
    try:
        return math.isclose(float(a.rstrip("*")), float(b.rstrip("*")), rel_tol=ROOM)
    except ValueError:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Print the page, write it, or compare it with the one that is there."""
    parser = argparse.ArgumentParser(prog="python -m decoderspec.bench.sensitivity", description=__doc__)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--check", action="store_true", help="say where the page no longer holds, with status 1")
    given: Any = parser.parse_args(arguments)
    text = page()
    if given.page is None:
        print(text)
        return 0
    if not given.check:
        given.page.write_text(text, encoding="utf-8")
        return 0
    found = changed(text, given.page.read_text(encoding="utf-8"))
    print("\n".join(found) or f"{given.page} holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
