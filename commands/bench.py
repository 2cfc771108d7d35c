"""`decoderspec bench`: how fast an implementation is, and whether it became slower."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from decoderspec import bench
from decoderspec.bench import growth
from decoderspec.bench.stored import Comparison, Stored, StoredError, compare, read
from decoderspec.bench.verdict import RISK, SAME
from decoderspec.bench.work import covered, sizes_of
from decoderspec.commands.outputs import require_writable
from decoderspec.properties.findings import Absent, Finding
from decoderspec.properties.loading import LoadError
from decoderspec.properties.run import Run
from decoderspec.properties.session import make_run
from decoderspec.spec.precision import DeclarationError

EXAMPLES = """examples:
  decoderspec bench mine.py:Adapter                              tokens per second, about a minute
  decoderspec bench mine.py:Adapter --save main.json             keep the figures
  decoderspec bench mine.py:Adapter --against main.json          faster, same, slower or too noisy to tell
  decoderspec bench mine.py:Adapter --against main.json --fail-above 5
  decoderspec bench mine.py:Adapter --growth                     exponents in T, d, N and V beside the formulas'

Each figure is divided by a yardstick (matrix products and memory sweeps of its size) measured in turns with it, so
that figures of different machines and noisy hours compare. Files are pytest-benchmark's.

exit status: 0 measured, and nothing certainly slower by more than --fail-above; 1 something is; 2 nothing to say"""


def parser() -> argparse.ArgumentParser:
    """The arguments, with examples."""
    made = argparse.ArgumentParser(
        prog="decoderspec bench", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("implementation", help="module:attribute or path/to/file.py:attribute")
    made.add_argument("--against", type=Path, metavar="FILE", help="figures of an earlier run")
    made.add_argument("--save", type=Path, metavar="FILE", help="keep the figures of this run, for --against")
    made.add_argument("--fail-above", type=_percent, metavar="PERCENT", help="exit 1 where certainly slower by more")
    made.add_argument("--growth", action="store_true", help="also fit how time and memory grow")
    made.add_argument("--json", type=Path, metavar="FILE", help="write figures, verdicts and growth there")
    made.add_argument("--quick", action="store_true", help="about ten seconds, three sizes, wider intervals")
    made.add_argument("--profile", default="default", help="quick, default or thorough (five minutes)")
    made.add_argument("--precision", help="overrides what it declares: float64, float32, bfloat16, float16, ..")
    return made


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a percentage from 0 on")
    return value


def run(arguments: Sequence[str]) -> int:
    """Measure, compare, print, write."""
    options = parser().parse_args(list(arguments))
    for name in ("save", "json", "against"):  # the implementation may change the folder
        path = getattr(options, name)
        setattr(options, name, path.resolve() if path else None)
    if options.fail_above is not None and options.against is None:
        print("decoderspec: --fail-above needs --against FILE to compare with", file=sys.stderr)
        return 2
    profile = "quick" if options.quick else options.profile
    try:
        for path in filter(None, (options.save, options.json)):
            require_writable(path)
        before = read(options.against) if options.against else None
        under_test = make_run(options.implementation, profile=profile, precision=options.precision)
        now = measured(options.implementation, under_test, options.save)
        grown = growth.measure(under_test.subject) if options.growth else []
    except (LoadError, DeclarationError, StoredError, Absent, Finding, OSError) as reason:
        print(f"decoderspec: {reason}", file=sys.stderr)
        return 2
    compared = compare(before, now) if before is not None else None
    lost = covered(under_test.subject.limits, sizes_of(under_test.subject))[1]
    print("\n".join([*table(now, compared, lost), *growth.table(grown)]))
    if options.json:
        found = to_json(now, compared, lost, grown, options.fail_above)
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if compared is not None and not compared.changes:
        print("decoderspec: no figure of the file could be compared", file=sys.stderr)
        return 2
    return int(options.fail_above is not None and bool(compared and compared.exceeding(options.fail_above)))


class _Listening:
    """A pytest plugin that hands the run over, and keeps what failed in words."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.failures: list[str] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        """Put the run where the fixture looks."""
        from decoderspec.properties.plugin import RUN

        config.stash[RUN] = self._run

    def pytest_exception_interact(self, call: pytest.CallInfo[None]) -> None:
        """What a benchmark raised."""
        if call.excinfo is not None:
            self.failures.append(str(call.excinfo.value))


def measured(name: str, under_test: Run, save: Path | None) -> list[Stored]:
    """The figures of a run of the benchmarks under pytest-benchmark. Raises `StoredError` where there are none."""
    listening, home = _Listening(under_test), Path(bench.__file__).parent
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "figures.json"
        sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(sink))
        stack.enter_context(contextlib.redirect_stderr(sink))
        kept = os.environ.pop("PYTEST_ADDOPTS", None)
        try:
            pytest.main(
                [
                    str(home / "test_engine.py"), "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir",
                    str(home), "--import-mode=importlib", f"--implementation={name}", f"--benchmark-json={path}",
                ],
                plugins=[listening],
            )  # fmt: skip
        finally:
            if kept is not None:
                os.environ["PYTEST_ADDOPTS"] = kept
        if listening.failures or not path.exists():
            raise StoredError(next(iter(listening.failures), f"{name}: no size is within its limits"))
        if save:
            save.write_bytes(path.read_bytes())
        return read(path)


# --- Words ---


def table(now: Iterable[Stored], compared: Comparison | None, lost: Sequence[str]) -> list[str]:
    """A line for each figure, then what was not compared or covered."""
    figures = list(now)
    first = figures[0]
    lines = [f"{first.implementation}, precision {first.precision}; yardstick: {first.yardstick}", ""]
    lines += [f"{'measure':<10} {'size':<8} {'B x T':>8} {'tokens/s':>12}  {'of the yardstick':<24}"]
    for figure in figures:
        shape = f"{figure.sizes['batch']} x {figure.sizes['tokens']}"
        speed = "" if figure.measure == "build" else f"{figure.tokens_per_second:,.0f}"
        line = f"{figure.measure:<10} {figure.size:<8} {shape:>8} {speed:>12}  {figure.ratio!s:<24}"
        lines.append((line + _verdict(compared, figure)).rstrip())
    if compared is not None:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in compared.verdicts.items())
        lines += ["", f"{counts or 'nothing compared'}; same means within {SAME:.0%}, and at most one comparison in"
                  f" {1 / RISK:.0f} has an interval beside the truth"]  # fmt: skip
        lines += [f"note: {remark}" for remark in compared.remarks]
        lines += [f"not compared: {each}" for each in compared.not_compared]
    return lines + ([f"not covered by the limits: {', '.join(lost)}"] if lost else [])


def _verdict(compared: Comparison | None, figure: Stored) -> str:
    """The change of a figure with its interval, and the slowdown that would have been seen."""
    found = compared.changes.get(figure.key) if compared else None
    if found is None:
        return ""
    low, middle, high = (f"{100 * (end - 1):+.1f}" for end in vars(found.interval).values())
    seen = f"{100 * found.seen:.0f}" if found.seen < 10 else "no"
    return f" {found.verdict:<17} {middle} [{low}, {high}] percent of time; {seen} percent would be seen"


def to_json(
    now: Sequence[Stored], compared: Comparison | None, lost: Sequence[str], grown: Sequence[growth.Growth],
    fail_above: float | None,
) -> dict[str, Any]:  # fmt: skip
    """All of it as plain data."""
    figures = []
    for figure in now:
        found = compared.changes.get(figure.key) if compared else None
        changed = {"verdict": found.verdict, "change": vars(found.interval), "seen": found.seen} if found else {}
        figures.append(
            {"measure": figure.measure, "size": figure.size, "tokens_per_second": figure.tokens_per_second}
            | {"ratio": vars(figure.ratio)} | changed
        )  # fmt: skip
    too_slow = compared.exceeding(fail_above) if compared and fail_above is not None else []
    return {
        "implementation": now[0].implementation, "precision": now[0].precision, "yardstick": now[0].yardstick,
        "figures": figures, "not_covered": list(lost),
        "not_compared": list(compared.not_compared) if compared else [],
        "remarks": list(compared.remarks) if compared else [],
        "fails": [" ".join(key) for key in too_slow],
        "growth": [growth.to_json(each) for each in grown],
    }  # fmt: skip
