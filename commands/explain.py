"""`decoderspec explain`: the first stage that is wrong, how wrong each is, and what it behaves like."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from decoderspec.commands.check import require_writable
from decoderspec.faults.diagnosis import Diagnosis
from decoderspec.properties import replay
from decoderspec.properties.cases import Case
from decoderspec.properties.causes import diagnosis
from decoderspec.properties.findings import Finding
from decoderspec.properties.loading import LoadError
from decoderspec.properties.run import Run
from decoderspec.properties.session import make_run
from decoderspec.spec.precision import DeclarationError

EXAMPLES = """examples:
  decoderspec explain mine.py:Adapter                                   the first fixed case that fails
  decoderspec explain mine.py:Adapter --case decoderspec-cases/VAL-1-1c2d3e4f.json
  decoderspec explain mine.py:Adapter --against theirs.py:Adapter       which is nearer the truth, stage by stage

exit status: 0 nothing is wrong, 1 something is, 2 nothing could be said"""


def parser() -> argparse.ArgumentParser:
    """The arguments, with examples."""
    made = argparse.ArgumentParser(
        prog="decoderspec explain", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("implementation", help="module:attribute or path/to/file.py:attribute")
    made.add_argument("--against", metavar="OTHER", help="another implementation, on the same case")
    made.add_argument("--case", type=Path, metavar="FILE", help="a saved case")
    made.add_argument("--precision", help="overrides what it declares")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the diagnosis there")
    return made


def run(arguments: Sequence[str]) -> int:
    """Diagnose, print, write."""
    options = parser().parse_args(list(arguments))
    try:
        if options.json:
            require_writable(options.json)
        subject = make_run(options.implementation, precision=options.precision)
        other = make_run(options.against) if options.against else None
        case = replay.read(options.case) if options.case else None
        first = case or subject.fixed[0]
        subject.model(first).logits(subject.truth(first).batch[0])  # what cannot be called cannot be explained
        case, found = (case, diagnosis(subject, case)) if case else first_wrong(subject)
        beside = diagnosis(other, case) if other else None
    except (LoadError, DeclarationError, replay.ReplayError, Finding, OSError) as reason:
        print(f"decoderspec: {reason}", file=sys.stderr)
        return 2
    print(f"{subject.subject.name} on {case.note + ': ' if case.note else ''}{case.describe()}\n")
    print(found.describe())
    if beside is not None and other is not None:
        print(f"\n{nearer(found, beside, subject, other)}")
    if options.json:
        options.json.write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    return 1 if found.wrong else 0


def first_wrong(subject: Run) -> tuple[Case, Diagnosis]:
    """The first short fixed case on which something is wrong, or the first of all."""
    short = [case for case in subject.fixed if case.tokens <= 40 and case.config.vocabulary_size <= 1000]
    cases = short or subject.fixed[:1]
    for case in cases:
        found = diagnosis(subject, case)
        if found.wrong:
            return case, found
    return cases[0], diagnosis(subject, cases[0])


def nearer(found: Diagnosis, beside: Diagnosis, subject: Run, other: Run) -> str:
    """Both implementations' errors, stage by stage, and which of them is nearer the truth."""
    theirs = {report.name: report for report in beside.stages}
    first, second = subject.subject.name, other.subject.name
    lines = [f"{'stage':<34} {first[:20]:>20} {second[:20]:>20}   bits right, each on its own inputs"]
    wins = {first: 0, second: 0}
    for report in found.stages:
        if report.name in theirs:
            bits = (report.bits, theirs[report.name].bits)
            mark = "" if abs(bits[0] - bits[1]) < 1 else f"   {first if bits[0] > bits[1] else second}"
            wins[first] += bits[0] >= bits[1] + 1
            wins[second] += bits[1] >= bits[0] + 1
            lines.append(f"{report.name:<34} {bits[0]:>20.1f} {bits[1]:>20.1f}{mark}")
    counts = f"nearer by a bit or more: {first} in {wins[first]} stages, {second} in {wins[second]}"
    return "\n".join([*lines, counts])
