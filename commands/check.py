"""`decoderspec check`: a verdict on an implementation."""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoderspec.properties import replay
from decoderspec.properties.causes import Group, groups
from decoderspec.properties.check import check
from decoderspec.properties.loading import LoadError
from decoderspec.properties.report import Report
from decoderspec.properties.subject import read_claims
from decoderspec.properties.summary import grades, render
from decoderspec.properties.xfails import XfailError, read_xfails
from decoderspec.spec.precision import DeclarationError
from decoderspec.spec.protocol import CONTRACTS

CASES = Path("decoderspec-cases")  # beside whoever runs it
SELF = "decoderspec.reference:Reference"
EXAMPLES = """examples:
  decoderspec check --self                                   the reference itself
  decoderspec check mine.py:Adapter                          a class, an instance, a factory
  decoderspec check mine.py:logits --precision float32 --claims forward   a plain function
  decoderspec check kernels.py:rms_norm --as rms_norm        one operation
  decoderspec check mine.py:Adapter --profile quick --json report.json

OMP_NUM_THREADS is 1 unless you set it: the cases are tiny.

exit status: 0 everything claimed and required conforms, 1 something does not, 2 nothing could be tested"""


def parser() -> argparse.ArgumentParser:
    """The arguments, with examples."""
    made = argparse.ArgumentParser(
        prog="decoderspec check", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("implementation", nargs="?", help="module:attribute or path/to/file.py:attribute")
    made.add_argument("--self", action="store_true", dest="itself", help="check the reference")
    made.add_argument("--as", dest="operation", default="", metavar="OPERATION", help="it is one operation, or a block")
    made.add_argument("--profile", default="default", help="quick, default or thorough")
    made.add_argument("--precision", help="overrides what it declares: float64, float32, bfloat16, float16, ..")
    made.add_argument("--claims", help=f"overrides what it claims: some of {', '.join(CONTRACTS)}")
    made.add_argument("--require", default="", metavar="CONTRACTS", help="contracts that must hold for you")
    made.add_argument("--xfails", type=Path, metavar="FILE", help="known failures with their reasons, JSON or TOML")
    made.add_argument("--seed", type=int, default=0, help="of the search; the same seed draws the same cases")
    made.add_argument("--case", type=Path, metavar="FILE", help="this saved case alone")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    made.add_argument(
        "-n", dest="workers", type=int, default=0, metavar="WORKERS", help="processes (needs pytest-xdist)"
    )
    return made


def _workers(text: str) -> int:
    """A number of processes."""
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{count} is not a number of processes")
    return count


def run(arguments: Sequence[str]) -> int:
    """Check, print the summary, write the report."""
    given, further = _split(list(arguments))
    options = parser().parse_args(given)
    options.json = options.json.resolve() if options.json else None  # the implementation may change the folder
    name = SELF if options.itself else options.implementation
    if not name:
        print("nothing is named: give module:attribute or file.py:attribute, or --self", file=sys.stderr)
        return 2
    try:
        if options.json:
            require_writable(options.json)
        report = _checked(name, options, further)
    except (LoadError, DeclarationError, XfailError, replay.ReplayError, OSError) as reason:
        print(f"decoderspec: {reason}", file=sys.stderr)
        return 2
    found = groups(report.run, report.failures())
    report.extras["grades"] = grades(report.rows())
    report.extras["findings"] = [group.to_json() for group in found]
    if options.json:
        options.json.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    print(render(report, found, [_next(report, group, name) for group in found]), end="")
    if not report.tested or not report.decided or report.errors() or report.extras["problems"]:
        return 2
    return 0 if report.conforms else 1


def require_writable(path: Path) -> None:
    """Raise `OSError` now for a file that could not be written after all the work."""
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise OSError(f"{path} cannot be written")


def _next(report: Report, group: Group, name: str) -> str:
    """The command that goes on from a finding: its case is saved for it."""
    run = report.run
    if group.case is None or run.only or run.cases or group.diagnosis is None:
        return ""
    requirement = group.shown["requirements"][0]
    identity = f"{run.subject.name} {run.subject.recipe.declared} {group.case.describe()}"
    path = CASES / f"{requirement}-{zlib.crc32(identity.encode()):08x}.json"
    try:
        replay.write(path, run.truth(group.case), [requirement], run.subject.recipe.declared)
    except OSError:  # a folder that cannot be written to
        return ""
    return f"decoderspec explain {name} --case {path}"


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what comes after `--` for pytest."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _checked(name: str, options: argparse.Namespace, further: Sequence[str]) -> Report:
    required = read_claims(options.require)
    with Progress() as progress:
        return check(
            name,
            operation=options.operation,
            profile=options.profile,
            seed=options.seed,
            precision=options.precision,
            claims=options.claims,
            required=required,
            xfails=read_xfails(options.xfails) if options.xfails else (),
            workers=0 if options.case else options.workers,  # one case is one process's work
            cases=[replay.read(options.case)] if options.case else (),
            pytest_arguments=further,
            progress=progress,
        )


class Progress:
    """One line on a terminal that says which requirement was judged last; nothing where nobody looks."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._count = 0

    def __enter__(self) -> Progress:
        return self

    def __call__(self, record: dict[str, Any]) -> None:
        """Show a record."""
        self._count += 1
        if self._shown:
            text = f"{self._count:3d}  {'+'.join(record['requirements'])}  {record['status']}"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
