"""`decoderspec explain`: the first stage that is wrong, how wrong each is, and what it behaves like."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoderspec.commands.against import against
from decoderspec.commands.command import add_options, name_of
from decoderspec.commands.outputs import require_writable
from decoderspec.faults.diagnosis import Diagnosis, Example
from decoderspec.faults.words import HINTS, describe
from decoderspec.properties import replay
from decoderspec.properties.cases import Case
from decoderspec.properties.causes import diagnosis, signature
from decoderspec.properties.dump import DumpError, read_dump
from decoderspec.properties.findings import Finding
from decoderspec.properties.loading import LoadError
from decoderspec.properties.operation_causes import operation_diagnosis
from decoderspec.properties.printable import one_line, printable
from decoderspec.properties.report import plain
from decoderspec.properties.run import Run
from decoderspec.properties.session import make_run, operation_run
from decoderspec.properties.settings import read_precision
from decoderspec.properties.smallest import smallest
from decoderspec.properties.test_operation import runnable
from decoderspec.spec.precision import DeclarationError

EXAMPLES = """examples:
  decoderspec explain mine.py:Adapter                                   the first fixed case that fails
  decoderspec explain mine.py:Adapter --case decoderspec-cases/VAL-1-1c2d3e4f.json
  decoderspec explain mine.py:Adapter --hint 1                          the stage alone; 2 the kind too, 3 the cause too
  decoderspec explain mine.py:Adapter --against theirs.py:Adapter       which is nearer the truth, stage by stage
  decoderspec explain kernels.py:rms_norm --as rms_norm                 one operation
  decoderspec explain --dump stages.npz --precision float32             an engine that is not here (docs/dump.md)

exit status: 0 nothing is wrong, 1 something is, 2 nothing could be said"""
LONG = 40  # tokens; beyond them, and beyond as many words, the oracle takes its time
LARGE = 1000
Diagnose = Callable[[Case], Diagnosis]


def parser() -> argparse.ArgumentParser:
    """The arguments, with examples."""
    made = argparse.ArgumentParser(
        prog="decoderspec explain", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("implementation", nargs="?", help="module:attribute or path/to/file.py:attribute")
    add_options(made)
    made.add_argument("--against", metavar="OTHER", help="another implementation, on the same case")
    made.add_argument("--as", dest="operation", default="", metavar="OPERATION", help="it is one operation, or a block")
    made.add_argument("--dump", type=Path, metavar="FILE", help="named stages, .safetensors or .npz")
    made.add_argument("--config", type=Path, metavar="FILE", help="the configuration of a dump, as JSON")
    made.add_argument("--case", type=Path, metavar="FILE", help="a saved case")
    made.add_argument("--hint", type=int, choices=HINTS, default=0, help="so many steps: 1 stage, 2 kind, 3 cause")
    made.add_argument("--precision", help="overrides what it declares")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the diagnosis there")
    return made


@dataclass(frozen=True)
class Explained:
    """A diagnosis with what it is of, and what is said beside it."""

    name: str
    where: str  # the case, in words
    found: Diagnosis
    case: Case | None = None
    beside: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self, hint: int) -> Any:
        """Plain data."""
        return plain({"implementation": self.name, "case": self.where, **self.found.to_json(hint), **self.data})


def run(arguments: Sequence[str]) -> int:
    """Diagnose, print, write."""
    made = parser()
    options = made.parse_args(list(arguments))
    name = name_of(options)
    if problem := _mismatch(options, name):
        made.error(problem)
    try:
        if options.json:
            require_writable(options.json)
        explained = _explained(options, name or "")
    except (LoadError, DeclarationError, replay.ReplayError, DumpError, Finding, OSError) as reason:
        print(f"decoderspec: {printable(str(reason))}", file=sys.stderr)
        return 2
    head = one_line(f"{explained.name} on {explained.where}")
    print(f"{head}\n\n{describe(explained.found, options.hint)}{printable(explained.beside)}")
    if options.json:
        text = json.dumps(explained.to_json(options.hint), indent=2, allow_nan=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 1 if explained.found.wrong else 0


def _mismatch(options: argparse.Namespace, name: str | None) -> str:
    """Why these options do not go together; empty where they do."""
    if (name is None) == (options.dump is None):
        return "give an implementation or --dump FILE, one of them"
    if options.against and (options.dump or options.operation or options.hint):
        return "--against compares two implementations of a decoder, whole: without --dump, --as and --hint"
    if options.operation and (options.dump or options.case):
        return "--as is for a function on cases of its own: without --dump and --case"
    return "--config belongs to --dump" if options.config and not options.dump else ""


def _explained(options: argparse.Namespace, name: str) -> Explained:
    """Whatever is named, diagnosed. Raises what `run` catches."""
    case = replay.read(options.case) if options.case else None
    if options.dump:
        return _of_dump(options, case)
    precision = read_precision(options.precision)
    if options.operation:
        subject = operation_run(name, options.operation, precision=precision)
        cases = [each for each in _short(subject) if runnable(each)]
        return _of_cases(subject, cases, lambda each: operation_diagnosis(subject, each), example=not options.hint)
    subject = make_run(name, precision=precision)
    other = make_run(options.against) if options.against else None
    first = case or subject.fixed[0]
    subject.model(first).logits(subject.truth(first).batch[0])  # what cannot be called cannot be explained
    cases = [case] if case else _short(subject)
    explained = _of_cases(subject, cases, lambda each: diagnosis(subject, each), example=not options.hint)
    if other is None or explained.case is None:
        return explained
    beside, data = against(explained.found, diagnosis(other, explained.case, bank=()), (subject, other))
    return replace(explained, beside=f"\n\n{beside}", data={**explained.data, "against": data})


def _short(subject: Run) -> list[Case]:
    short = [case for case in subject.fixed if case.tokens <= LONG and case.config.vocabulary_size <= LARGE]
    return short or subject.fixed[:1]


def _of_dump(options: argparse.Namespace, case: Case | None) -> Explained:
    dump = read_dump(options.dump, options.config, options.precision, case)
    found = dump.diagnosis(pairs=True)
    return Explained(str(options.dump), dump.describe(), _with_example(found, dump.describe(), found))


# --- Cases ---


def _of_cases(subject: Run, cases: Sequence[Case], diagnose: Diagnose, *, example: bool) -> Explained:
    """The first case on which something is wrong, or the first of all."""
    if not cases:
        raise LoadError(f"the limits of {subject.subject.name} leave no case to look at")
    first: Diagnosis | None = None
    for case in cases:
        found = diagnose(case)
        first = first or found
        if found.wrong:
            return _of_wrong(subject, case, found, example)
    count = f"{len(cases)} cases, such as " if len(cases) > 1 else ""
    assert first is not None
    return Explained(subject.subject.name, count + _words(cases[0]), first, cases[0], data={"cases": len(cases)})


def _of_wrong(subject: Run, case: Case, found: Diagnosis, example: bool) -> Explained:
    """Pairs of faults where none alone does it, and the smallest example if it is to be shown."""
    if not found.causes and not subject.only:
        found = diagnosis(subject, case, pairs=True)
    kept = {case: found}

    def alike(other: Case) -> bool:
        try:
            kept[other] = _lightly(subject, other)
        except Finding:
            return False
        return signature(kept[other]) == signature(found)

    least = smallest(subject, case, alike) if example else case
    shown = _with_example(found, _words(least), kept[least])
    return Explained(subject.subject.name, _words(case), shown, case)


def _lightly(subject: Run, case: Case) -> Diagnosis:
    """What is wrong, without asking which fault does it."""
    return operation_diagnosis(subject, case, ()) if subject.only else diagnosis(subject, case, bank=())


def _with_example(found: Diagnosis, case: str, least: Diagnosis) -> Diagnosis:
    """The diagnosis with the worst element of what is wrong on the smallest case."""
    comparisons = [(report.name, report.comparison) for report in (*least.stages, *_gradients(least))]
    wrong = [(name, comparison) for name, comparison in comparisons if not comparison.conforms]
    if wrong:
        name, worst = wrong[0]
        return replace(found, example=Example(case, name, worst.index, worst.got, worst.got - worst.error))
    if least.loss is not None and not least.loss.conforms:
        return replace(found, example=Example(case, "loss", (), least.loss.got, least.loss.expected))
    return found


def _gradients(found: Diagnosis) -> list[Any]:
    return [replace(report, name=f"gradient of {report.name}") for report in found.gradients]


def _words(case: Case) -> str:
    return (f"{case.note}: " if case.note else "") + case.describe()
