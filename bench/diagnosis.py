"""How often the diagnosis is right: every fault of the bank that shows, with stages, with logits and gradients alone.

    python -m decoderspec.bench.diagnosis [--json FILE] [--page docs/diagnosis.md] [--pairs NUMBER]

A fault is tried on the first case on which it shows, at the precision that it declares. The bank is named by its
digest, so that it can be seen whether it was changed after it was measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from decoderspec.faults import derivatives
from decoderspec.faults.bank import BANK, by_name
from decoderspec.faults.case import Case as Setting
from decoderspec.faults.diagnosis import Observed, diagnose_case
from decoderspec.faults.fault import Fault, FaultyModel, FaultyReference
from decoderspec.faults.hypotheses import between, paired
from decoderspec.properties.cases import Case, arrays, draw_parameters, fixed_cases, long_cases
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe

SMALL = Case(Config(5, 8, 2, 3, 2, 6, 30.0, 1e-2), batch=2, tokens=4, seed=3, note="two small blocks")
PAIRS = 12  # each takes some seconds
FEW = ("embedding", "after_attention", "output", "final_norm", "logits")  # of what somebody may have at hand
SETTINGS: dict[tuple[Case, str], Setting] = {}
TARGETS = {  # the rates that are wanted, by the name of the measurement
    "stage, with stages": 1.0, "stage, logits alone": 0.95, "fault, logits alone": 0.90, "stage, left out": 0.85,
}  # fmt: skip


def candidates() -> list[Case]:
    """Cases to try, the quickest first."""
    return [SMALL, *sorted(fixed_cases() + long_cases("default"), key=lambda case: case.tokens > 40)]


def setting(case: Case, precision: Any) -> Setting:
    """What is computed of a case at a precision, once for all faults."""
    key, rule = (case, str(precision)), recipe(precision)
    if key not in SETTINGS:
        SETTINGS[key] = Setting(case.config, draw_parameters(case, rule), *arrays(case), rule, case.seed)
    return SETTINGS[key]


@dataclass(frozen=True)
class Shown:
    """A fault on the first case on which it shows."""

    fault: Fault
    case: Case
    at: Setting
    model: FaultyModel
    observed: Observed


def shown(fault: Fault, observe: Callable[[FaultyModel, Setting], Observed]) -> Shown | None:
    """Where a fault first shows in what is observed; nothing where it shows nowhere, or only in a shape."""
    for case in candidates():
        at = setting(case, fault.precision)
        model = FaultyReference(fault).build(case.config, at.parameters)
        try:
            seen = observe(model, at)
        except (ValueError, IndexError):  # refused, or of a wrong shape: told without a diagnosis
            continue
        logits = seen.stages.get("logits", seen.logits)
        if logits is not None and logits.shape != (*at.tokens.shape, case.config.vocabulary_size):
            return None
        if diagnose_case(at, seen, bank=()).wrong:
            return Shown(fault, case, at, model, seen)
    return None


def logits_alone(model: FaultyModel, at: Setting) -> Observed:
    """The least that an implementation gives out."""
    return Observed(logits=model.logits(at.tokens))


def stages_alone(model: FaultyModel, at: Setting) -> Observed:
    """Everything inside."""
    return Observed(stages=model.stages(at.tokens))


def gradients_alone(model: FaultyModel, at: Setting) -> Observed:
    """No stages, no logits, no loss."""
    batch = at.tokens, at.targets
    return Observed(gradients=model.gradients(*batch), role_gradients=model.role_gradients(*batch))


@dataclass
class Measured:
    """One measurement: how many of how many, and what was missed."""

    tried: int = 0
    right: int = 0
    missed: list[str] = field(default_factory=list)
    alone: int = 0  # of the right: with no other beside it
    largest: int = 0  # number of causes that were named together
    silent: int = 0  # of the missed: said to be unknown, rather than something wrong
    hidden: list[str] = field(default_factory=list)  # that show on no case, and are not counted

    def count(self, fault: str, right: bool, said: str | None) -> None:
        """One more; `said` is what was said instead, nothing where nothing was."""
        self.tried, self.right = self.tried + 1, self.right + right
        if not right:
            self.missed.append(f"{fault}: {said or 'said to be unknown'}")
            self.silent += said is None

    @property
    def rate(self) -> float:
        """The part that is right."""
        return self.right / self.tried if self.tried else 0.0


# --- The forward pass ---


def forward(bank: Sequence[Fault] = BANK) -> dict[str, Measured]:
    """Every fault of the forward pass that shows: with all stages, with a few, with logits alone, known or left out."""
    found = {name: Measured() for name in WORDS}
    for fault in bank:
        seen = shown(fault, logits_alone) if fault.level == "forward" else None
        if seen is not None:
            others = [other for other in bank if other is not fault]
            _with_stages(seen, others, found)
            _with_logits(seen, bank, others, found)
        elif fault.level == "forward" and (inside := shown(fault, stages_alone)) is not None:
            _with_stages(inside, [other for other in bank if other is not fault], found)
        elif fault.level == "forward":
            found["stage, with stages"].hidden.append(fault.name)
        if fault.level == "forward" and fault.precision == "float64":
            _rounded(replace(fault, precision="float32"), bank, found)
    return found


def _rounded(fault: Fault, bank: Sequence[Fault], found: dict[str, Measured]) -> None:
    """What is given has roundings that no hypothesis has, as somebody's own code would."""
    seen = shown(fault, logits_alone)
    if seen is not None:
        causes = [cause.fault for cause in diagnose_case(seen.at, seen.observed, bank=bank).causes]
        found["fault, logits alone, float32"].count(fault.name, fault.name in causes, ", ".join(causes) or None)


def _with_stages(seen: Shown, others: Sequence[Fault], found: dict[str, Measured]) -> None:
    fault, stages = seen.fault, seen.model.stages(seen.at.tokens)
    named = diagnose_case(seen.at, Observed(stages=stages), bank=[fault]).first_wrong_stage
    found["stage, with stages"].count(fault.name, bool(named and fault.starts_at(named)), named)
    left_out = diagnose_case(seen.at, Observed(stages=stages), bank=others).first_wrong_stage
    found["stage, left out"].count(fault.name, bool(left_out and fault.starts_at(left_out)), left_out)
    few = {name: value for name, value in stages.items() if name.rpartition(".")[2] in FEW}
    some = diagnose_case(seen.at, Observed(stages=few), bank=())
    if (first := some.first_wrong_stage) is not None:  # some show inside alone
        window = between(seen.case.config.layers, some.after, first)
        found["stage, left out, a few stages"].count(fault.name, any(map(fault.starts_at, window)), first)


def _with_logits(seen: Shown, bank: Sequence[Fault], others: Sequence[Fault], found: dict[str, Measured]) -> None:
    fault = seen.fault
    known = diagnose_case(seen.at, seen.observed, bank=bank)
    stage = known.causes[0].stage if known.causes else None
    found["stage, logits alone"].count(fault.name, bool(stage and fault.starts_at(stage)), stage)
    causes = [cause.fault for cause in known.causes]
    named = found["fault, logits alone"]
    named.count(fault.name, fault.name in causes, ", ".join(causes) or None)
    named.alone += causes == [fault.name]
    named.largest = max(named.largest, len(causes))
    unknown = diagnose_case(seen.at, seen.observed, bank=others)
    stage = unknown.causes[0].stage if unknown.causes else None
    found["stage, left out, logits alone"].count(fault.name, bool(stage and fault.starts_at(stage)), stage)


# --- The backward pass ---


@dataclass
class Derivatives:
    """What was said of gradient faults from the gradients alone."""

    named: Measured = field(default_factory=Measured)  # with the bank: the fault, or its group
    placed: Measured = field(default_factory=Measured)  # without it: the right operation is among those that are said
    decided: int = 0  # of those placed: it alone is said
    said: dict[str, tuple[str, ...]] = field(default_factory=dict)


def backward(bank: Sequence[Fault] = BANK) -> Derivatives:
    """Every fault of a derivative that shows in the gradients."""
    found = Derivatives()
    for fault in bank:
        seen = shown(fault, gradients_alone) if fault.level == "gradient" else None
        if seen is not None:
            known = diagnose_case(seen.at, seen.observed, bank=bank)
            causes = [cause.fault for cause in known.causes]
            found.named.count(fault.name, fault.name in causes, ", ".join(causes) or None)
            said = known.derivatives or diagnose_case(seen.at, seen.observed, bank=()).derivatives
            right = any(of_operation(each, fault.stage) for each in said)
            found.placed.count(fault.name, right, " or ".join(said) or None)
            found.decided += right and len(said) == 1
            found.said[fault.name] = said
    return found


def of_operation(derivative: str, stage: str) -> bool:
    """Whether a derivative that is said is of the operation that a fault's stage names (`gradient.OPERATION`)."""
    others = {"gradient.table": (derivatives.ADDED_UP, derivatives.TOLD_APART), "gradients": (derivatives.FINISHED,)}
    if stage in others:
        return derivative in others[stage]
    return derivative.split()[0] == stage.removeprefix("gradient.")


# --- Pairs ---


@dataclass
class Pairs:
    """Two faults at once, from logits alone."""

    measured: Measured
    tried: int = 0  # hypotheses, on average
    seconds: float = 0.0  # of the processor, for one diagnosis, on average


def pairs(count: int, bank: Sequence[Fault] = BANK) -> Pairs:
    """A sample of pairs of faults that show on the small case, drawn by a fixed seed."""
    at = setting(SMALL, "float64")
    drawn = list(islice(_drawn_pairs(at, bank), count))
    found, tried, start = Measured(), 0, time.process_time()
    for fault in drawn:
        logits = FaultyReference(fault).build(SMALL.config, at.parameters).logits(at.tokens)
        said = diagnose_case(at, Observed(logits=logits), bank=bank, pairs=True)
        causes = [cause.fault for cause in said.causes]
        found.count(fault.name, any(_alike(at, cause, fault.name) for cause in causes), ", ".join(causes) or None)
        tried += said.tried
    return Pairs(found, tried // max(1, len(drawn)), (time.process_time() - start) / max(1, len(drawn)))


def _drawn_pairs(at: Setting, bank: Sequence[Fault]) -> Iterator[Fault]:
    generator = np.random.default_rng(0)
    visible = [fault for fault in bank if fault.level == "forward" and fault.precision == "float64"]
    while True:
        a, b = (visible[i] for i in generator.choice(len(visible), 2, replace=False))
        both = paired(a, b)
        singly = [diagnose_case(at, Observed(logits=_logits(at, f)), bank=()).wrong for f in (a, b)]
        if both is not None and all(singly):
            yield both


def _logits(at: Setting, fault: Fault) -> Any:
    return FaultyReference(fault).build(at.config, at.parameters).logits(at.tokens)


def _alike(at: Setting, pair: str, other: str) -> bool:
    """Whether two pairs are of the same functions on this case."""
    first, second = ([_logits(at, by_name(name)) for name in names.split(" and ")] for names in (pair, other))
    if len(first) != len(second):
        return False
    crossed = zip(first, reversed(second), strict=True)
    return _equal(zip(first, second, strict=True)) or _equal(crossed)


def _equal(pairs_of: Iterator[tuple[Any, Any]]) -> bool:
    return all(a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True) for a, b in pairs_of)


# --- The page ---

HEAD = """\
# Diagnosis, measured

How often `decoderspec explain` names the right stage and the right fault. Made by

    python -m decoderspec.bench.diagnosis --page docs/diagnosis.md

on a bank of {count} faults (digest `{digest}`), frozen before it was measured: `tests/test_diagnosis.py` compares.
Each fault is tried on the first case on which it shows (a case of two small blocks, then the fixed cases of the suite),
at the precision that it declares. {forward} of {of_forward} faults of the forward pass show in values and
{backward} of {of_backward} of a derivative. The others show in shapes, in refusals or in later calls alone:
{hidden}.
"""
WORDS = {
    "stage, with stages": "all stages given: the first wrong stage is where the fault starts",
    "stage, logits alone": "logits alone: the stage of the likeliest cause is where the fault starts",
    "fault, logits alone": "logits alone: the fault is named, alone or among faults that are the same function",
    "fault, logits alone, float32": "the same, where what is given was rounded to float32",
    "stage, left out": "all stages given, the fault left out of the hypotheses: the stage",
    "stage, left out, a few stages": "the residual stream and logits given, left out: the stages between which it lies",
    "stage, left out, logits alone": "logits alone, left out: the stage, by another fault that does the same",
}


def digest(bank: Sequence[Fault] = BANK) -> str:
    """The bank by the names of its faults: sixteen hexadecimal digits of SHA-256."""
    return hashlib.sha256("\n".join(sorted(fault.name for fault in bank)).encode()).hexdigest()[:16]


def page(found: dict[str, Any]) -> str:
    """The measurements in Markdown."""
    parts = [HEAD.format(**found["bank"]), _forward_table(found["forward"]), _backward_text(found["backward"])]
    parts += [_pairs_text(found["pairs"]), _missed(found)]
    return "\n".join(parts)


def _forward_table(rows: dict[str, Any]) -> str:
    lines = ["## The forward pass", "", "| what is given, and what is to be said | right | of | rate | wanted |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, row in rows.items():
        wanted = f"{TARGETS[name]:.0%}" if name in TARGETS else ""
        rate = row["right"] / row["tried"]
        lines.append(f"| {WORDS[name]} | {row['right']} | {row['tried']} | {rate:.1%} | {wanted} |")
    alone, named = rows["stage, left out, logits alone"], rows["fault, logits alone"]
    lines += ["", f"With logits alone, {named['alone']} are named alone, the others in groups of up to"
              f" {named['largest']}: on that case they are one function, within the noise."]  # fmt: skip
    lines += ["", f"Left out and with logits alone, {alone['silent']} are said to be unknown, as they should be, and"
              f" {alone['tried'] - alone['right'] - alone['silent']} are laid to another stage.", ""]  # fmt: skip
    return "\n".join(lines)


def _backward_text(found: dict[str, Any]) -> str:
    named, placed = found["named"], found["placed"]
    several = placed["right"] - found["decided"]
    wrong = placed["tried"] - placed["right"] - placed["silent"]
    return f"""\
## The gradients alone

Of {placed["tried"]} faults that show in the gradients, the operation whose derivative is wrong is said for
{placed["right"]} ({placed["right"] / placed["tried"]:.1%}) with no knowledge of the faults: for {found["decided"]}
it alone, for {several} as one of several between which these gradients cannot decide, and said so.
For {placed["silent"]} nothing is said, and for {wrong} something wrong.
With the bank, {named["right"]} ({named["right"] / named["tried"]:.1%}) are named, alone or with their like.
"""


def _pairs_text(found: dict[str, Any]) -> str:
    measured = found["measured"]
    return f"""\
## Pairs

Of {measured["tried"]} pairs of faults drawn by a fixed seed, with logits alone, {measured["right"]} are named
(or faults that are the same function on the case). {found["tried"]:,} hypotheses are tried, which took
{found["seconds"]:.0f} s of processor time a diagnosis on the machine that measured.
"""


def _missed(found: dict[str, Any]) -> str:
    rows = {**found["forward"], "derivative, gradients alone": found["backward"]["placed"],
            "fault, gradients alone": found["backward"]["named"], "pairs": found["pairs"]["measured"]}  # fmt: skip
    lines = ["## What was missed", ""]
    for name, row in rows.items():
        if row["missed"] and name != "stage, left out, logits alone":
            lines += [f"{name}:", "", *[f"- {line}" for line in row["missed"]], ""]
    return "\n".join(lines)


def measure(count: int, bank: Sequence[Fault] = BANK) -> dict[str, Any]:
    """Everything, as plain data."""
    ahead, behind = forward(bank), backward(bank)
    both = pairs(count, bank)
    levels = [fault.level for fault in bank]
    known = {
        "count": len(bank), "digest": digest(bank), "forward": ahead["stage, with stages"].tried,
        "of_forward": levels.count("forward"), "backward": behind.placed.tried,
        "of_backward": levels.count("gradient"), "hidden": ", ".join(ahead["stage, with stages"].hidden) or "none",
    }  # fmt: skip
    rows = {name: asdict(row) for name, row in ahead.items()}
    return {"bank": known, "forward": rows, "backward": asdict(behind), "pairs": asdict(both)}


def main() -> None:
    """Measure, print the rates, write what is asked for."""
    parser = argparse.ArgumentParser(description="How often the diagnosis is right, over the whole bank of faults.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="NUMBER", help=f"pairs to try, else {PAIRS}")
    options = parser.parse_args()
    found = measure(options.pairs)
    text = page(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.page:
        options.page.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
