"""`decoderspec check`: a verdict on an implementation."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoderspec.commands import outputs, scoreboard
from decoderspec.commands.command import add_options, name_of
from decoderspec.properties import replay
from decoderspec.properties.causes import Group, groups
from decoderspec.properties.check import check
from decoderspec.properties.database import ALLOWED
from decoderspec.properties.loading import LoadError
from decoderspec.properties.printable import printable
from decoderspec.properties.report import Report
from decoderspec.properties.session import further_options
from decoderspec.properties.settings import WORDS, Settings, project_settings
from decoderspec.properties.summary import WIDTH, finding_json, grades, render
from decoderspec.properties.xfails import XfailError
from decoderspec.spec.precision import DeclarationError
from decoderspec.spec.protocol import CONTRACTS

CASES = Path("decoderspec-cases")  # beside whoever runs it
LOG_SECONDS = 60.0  # between the lines of progress where no terminal shows them
SELF = "decoderspec.reference:Reference"
NOTHING = (
    "nothing is named: give module:attribute, file.py:attribute, --command or --self,"
    " or implementation in [tool.decoderspec] of a pyproject.toml"
)
EXAMPLES = """examples:
  decoderspec check --self                                   the reference itself
  decoderspec check mine.py:Adapter                          a class, an instance, a factory
  decoderspec check mine.py:logits --precision float32 --claims forward   a plain function
  decoderspec check kernels.py:rms_norm --as rms_norm        one operation
  decoderspec check --command ./decoder                      a program in any language (docs/protocol.md)
  decoderspec check mine.py:Adapter --profile quick --json report.json --html report.html
  decoderspec check a.py:Adapter b.py:Adapter --csv marks.csv   several: one table
  decoderspec check mine.py:Adapter --profile thorough -n 4 --database redis://host:6379/0 --time-limit 3600
  decoderspec check                                          what [tool.decoderspec] in pyproject.toml names

OMP_NUM_THREADS is 1 unless you set it: the cases are tiny.

exit status: 0 everything claimed and required conforms, 1 something does not, 2 nothing could be tested.
Of several implementations it is the worst: 0 all conform, 2 one could not be tested. With a selection of tests (after
`--`), one --case or a --time-limit that was reached, 0 says that what was run holds: the verdict is then `partial`."""


def parser() -> argparse.ArgumentParser:
    """The arguments, with examples."""
    made = argparse.ArgumentParser(
        prog="decoderspec check", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "names", nargs="*", metavar="implementation", help="module:attribute or path/to/file.py:attribute; one or more"
    )
    add_options(made)
    made.add_argument("--self", action="store_true", dest="itself", help="check the reference")
    made.add_argument("--as", metavar="OPERATION", help="it is one operation, or a block")
    made.add_argument("--profile", help="quick, default or thorough")
    made.add_argument("--precision", help="overrides what it declares: float64, float32, bfloat16, float16, ..")
    made.add_argument("--claims", help=f"overrides what it claims: some of {', '.join(CONTRACTS)}")
    made.add_argument("--require", metavar="CONTRACTS", help="contracts that must hold for you")
    made.add_argument("--xfails", type=Path, metavar="FILE", help="known failures with their reasons, JSON or TOML")
    made.add_argument("--seed", type=int, help="of the search, 0 unless given; the same seed draws the same cases")
    made.add_argument("--case", type=Path, metavar="FILE", help="this saved case alone")
    outputs.add_options(made)
    made.add_argument(
        "-n", dest="workers", type=_workers, default=0, metavar="WORKERS", help="processes (needs pytest-xdist)"
    )
    made.add_argument("--database", metavar="PLACE", help=f"keeps failures, and replays them first: {ALLOWED}")
    made.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="end with what has been judged by then: the rest is not run"
    )
    return made


def _workers(text: str) -> int:
    """A number of processes."""
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{count} is not a number of processes")
    return count


def run(arguments: Sequence[str]) -> int:
    """Check, print the summary, write the reports."""
    given, further = _split(list(arguments))
    options = parser().parse_args(given)
    options.implementation = options.names[0] if options.names else None
    here = Path.cwd()  # the implementation may change it
    try:
        files = outputs.given(options)
        if len(options.names) > 1:
            return _several(options, further, files)
        settings = _settings(options)
        if settings is None:
            print(NOTHING, file=sys.stderr)
            return 2
        report = _checked(settings, options, further)
    except (LoadError, DeclarationError, XfailError, replay.ReplayError, OSError) as reason:
        print(f"decoderspec: {printable(str(reason))}", file=sys.stderr)
        return 2
    found = groups(report.run, report.failures())
    commands = [_next(report, group, settings.implementation, here) for group in found]
    report.extras["grades"] = grades(report.rows()) | report.extras.get("processes", {})
    report.extras["findings"] = [finding_json(report, *each) for each in zip(found, commands, strict=True)]
    print(render(report, found, commands), end="")
    print(_unreached(report, options.time_limit), end="")
    for problem in report.extras["lost"]:
        print(f"decoderspec: {printable(problem)}", file=sys.stderr)
    try:
        outputs.write(report.to_json(), files)
    except OSError as reason:  # a full disk, say: what was found has been said
        print(f"decoderspec: {printable(str(reason))}", file=sys.stderr)
        return 2
    return report.status


def _unreached(report: Report, limit: float | None) -> str:
    """The requirements that a time limit left out; nothing where it was not reached."""
    if not report.extras["unreached"]:
        return ""
    text = f"the time limit of {limit:g} s was reached; not judged, or not wholly: {', '.join(report.not_run)}"
    return textwrap.fill(text, WIDTH, break_on_hyphens=False) + "\n"


def _settings(options: argparse.Namespace) -> Settings | None:
    """What is to be tested and how: of the command line where it names something, else of the project's table."""
    name = SELF if options.itself else name_of(options)
    if name == "":  # an unset variable in somebody's CI
        return None
    found = project_settings() if name is None else Settings(name)
    return found and found.overridden({key: getattr(options, key) for key in WORDS})


def _several(options: argparse.Namespace, further: list[str], files: dict[str, Path]) -> int:
    """One table of several implementations, each tested by itself with the same options."""
    if set(files) - {"csv"} or options.itself or options.command or options.case:
        raise LoadError("several implementations have one table, and --csv; other reports and --case are for one each")
    if not all(options.names):
        raise LoadError("one of the implementations has an empty name")
    same = [f"--{key}={value}" for key in WORDS if (value := getattr(options, key)) is not None]
    same += [f"-n{options.workers}"] if options.workers else []
    further_options(options.database, options.time_limit)  # refused once, before the table
    same += [f"--database={options.database}"] if options.database is not None else []
    same += [f"--time-limit={options.time_limit}"] if options.time_limit is not None else []
    return scoreboard.run(options.names, same, further, files.get("csv"))


def _next(report: Report, group: Group, name: str, here: Path) -> str:
    """The command that goes on from a finding: its case is saved for it, but of an operation, which has its own."""
    run = report.run
    if run.only:
        return f"decoderspec explain {shlex.quote(name)} --as {run.only}"
    if group.case is None or run.cases or group.diagnosis is None:
        return ""
    requirement = group.shown["requirements"][0]
    identity = f"{run.subject.name} {run.subject.recipe.declared} {group.case.describe()}"
    path = CASES / f"{requirement}-{zlib.crc32(identity.encode()):08x}.json"
    try:
        replay.write(here / path, run.truth(group.case), [requirement], run.subject.recipe.declared)
    except OSError:  # a folder that cannot be written to
        return ""
    return f"decoderspec explain {shlex.quote(name)} --case {path}"


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what comes after `--` for pytest."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _checked(settings: Settings, options: argparse.Namespace, further: Sequence[str]) -> Report:
    with Progress(options.time_limit) as progress:
        return check(
            settings.implementation,
            operation=settings.operation,
            profile=settings.profile,
            seed=settings.seed,
            precision=settings.precision,
            claims=settings.claims,
            required=settings.required,
            xfails=settings.xfails,
            workers=0 if options.case else options.workers,  # one case is one process's work
            cases=[replay.read(options.case)] if options.case else (),
            database=options.database,
            time_limit=options.time_limit,
            pytest_arguments=further,
            progress=progress,
        )


class Progress:
    """How far a run is: one line on a terminal, a line a minute in the log of a long one."""

    def __init__(self, limit: float | None = None) -> None:
        self._terminal = sys.stderr.isatty()
        self._count = 0
        self._limit = "" if limit is None else f" of {limit:g}"
        self._start = self._said = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __call__(self, record: dict[str, Any]) -> None:
        """Show a record."""
        self._count += 1
        now = time.monotonic()
        if not self._terminal and now - self._said < LOG_SECONDS:
            return
        self._said = now
        text = f"{self._count:3d}  {'+'.join(record['requirements'])}  {record['status']}"
        text += f"  {now - self._start:.0f}{self._limit} s"
        sys.stderr.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
