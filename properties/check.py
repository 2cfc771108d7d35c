"""The main job: run the properties over what is named, and make a report of the records."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from decoderspec.properties.cases import Case
from decoderspec.properties.conduct import spent
from decoderspec.properties.loading import LoadError
from decoderspec.properties.observed import explained, observed_bits, observed_recipe
from decoderspec.properties.processes import repeated
from decoderspec.properties.properties import all_properties
from decoderspec.properties.registry import FIRST, FURTHER
from decoderspec.properties.report import Report
from decoderspec.properties.run import Run
from decoderspec.properties.sensitivity import caught
from decoderspec.properties.session import further_options, make_run, operation_run
from decoderspec.properties.stage_errors import stage_errors
from decoderspec.properties.xfails import Xfail

Progress = Callable[[dict[str, Any]], None]


class Collector:
    """A pytest plugin that keeps the record of every property, and tells the caller as they come."""

    def __init__(self, progress: Progress) -> None:
        self.records: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.unreached: list[list[str]] = []  # requirements of each property that the time limit left undone
        self.lost: dict[str, None] = {}  # why the database was given up, in the words of each process
        self.expected = 0  # tests: properties, or their two parts
        self._progress = progress

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what the plugin attached to a report."""
        for key, value in report.user_properties:
            if key == "decoderspec" and isinstance(value, dict):
                self.records.append(value)
                self._progress(value)
            elif key == "decoderspec-unreached" and isinstance(value, list):
                self.unreached.append(value)
            elif key == "decoderspec-problem":
                self.lost[str(value)] = None

    def judged(self) -> list[dict[str, Any]]:
        """The records that stand.

        What holds in one property, or one part of it, says little of a requirement that another left undone. The first
        part of a property speaks for both where it fails, and a part without a case says nothing beside one that had.
        """
        parts: dict[str, set[str]] = {}
        for r in self.records:
            parts.setdefault(r["property"], set()).add(r["part"])
        left = {name for names in self.unreached for name in names}
        left |= {
            name for r in self.records if r["part"] and len(parts[r["property"]]) < 2 for name in r["requirements"]
        }
        failing = {r["property"] for r in self.records if r["part"] == FIRST and r["status"] in ("fail", "error")}
        shown = {r["property"] for r in self.records if r["examples"]}
        return [
            r
            for r in self.records
            if (r["status"] in ("fail", "error") or not left & set(r["requirements"]))
            and not (r["part"] == FURTHER and r["property"] in failing)
            and not (r["status"] == "not_judged" and not r["examples"] and r["property"] in shown)
        ]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Know how many are to come."""
        self.expected = sum(hasattr(getattr(item, "function", None), "property") for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """With workers the first process collects nothing: each of them tells what it has, all of them the same."""
        here = {path.name for path in Path(__file__).parent.glob("test_*.py")}
        self.expected = sum(Path(name.partition("::")[0]).name in here for name in ids)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """An end that the arguments asked for, as -x does, is none of ours; the report says what was not run."""
        if session.shouldfail:
            self.expected = len(self.records) + len(self.unreached)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be collected is a problem of ours."""
        if report.failed:
            self.problems.append(str(report.longrepr))


def check(
    name: str,
    *,
    operation: str = "",
    profile: str = "default",
    seed: int = 0,
    precision: str | Mapping[str, str] | None = None,
    claims: Sequence[str] | None = None,
    required: Sequence[str] = (),
    xfails: Sequence[Xfail] = (),
    workers: int = 0,
    database: str | None = None,
    time_limit: float | None = None,
    cases: Sequence[Case] = (),
    pytest_arguments: Sequence[str] = (),
    progress: Progress = lambda record: None,
) -> Report:
    """Check what is named and report. Raises `LoadError` or `DeclarationError` before anything is run.

    `database` is where failures are kept and replayed from; properties that are not done within `time_limit` seconds
    count as not run.
    """
    start = time.perf_counter()
    spent()  # before this run
    further = further_options(database, time_limit)
    options: dict[str, Any] = {"profile": profile, "seed": seed, "precision": precision, "claims": claims}
    run = operation_run(name, operation, **options) if operation else make_run(name, **options)
    if workers and importlib.util.find_spec("xdist") is None:
        raise LoadError("several workers need pytest-xdist: pip install 'decoderspec[parallel]'")
    run.cases, run.options["required"] = tuple(cases), tuple(required)
    run.options |= further
    collector = Collector(progress)
    given: dict[str, Any] = {"implementation": name, "decoderspec-as": operation, "decoderspec-database": database}
    given["decoderspec-time-limit"] = time_limit and max(0.001, further["until"] - time.perf_counter())
    words = {"claims": None if claims is None else claims if isinstance(claims, str) else ",".join(claims)}
    given |= {f"decoderspec-{key}": value for key, value in (options | words).items()}
    arguments = [f"--{key}={value}" for key, value in given.items() if value not in (None, "")]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_the_users_options())
        if not pytest_arguments:
            sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(sink))
        status = pytest.main([*_base(workers), *arguments, *pytest_arguments], plugins=[collector, Shared(run)])
    report = Report(run, collector.judged(), tuple(required), list(xfails))
    report.extras["problems"] = [*collector.problems, *_unfinished(collector, status, partial=bool(pytest_arguments))]
    report.extras["unreached"] = len(collector.unreached)
    report.extras["lost"] = list(collector.lost)
    if not operation:
        report.extras |= _insights(run)
    own = sum(record["own_seconds"] for record in collector.records) + spent()
    report.extras["seconds"] = {"total": round(time.perf_counter() - start, 2), "implementation": round(own, 2)}
    return report


def _unfinished(collector: Collector, status: int, partial: bool) -> list[str]:
    """Why some properties left no record: what was not run must not read as what holds."""
    if status == pytest.ExitCode.INTERRUPTED:
        return ["the run was interrupted before its end"]
    expected = collector.expected or (0 if partial else len(all_properties()))
    lost = expected - len(collector.records) - len(collector.unreached)
    return [f"{lost} tests were not run: the process that ran them ended"] if lost > 0 else []


class Shared:
    """Hands the run that was already made to the plugin, so that truths computed here and there are the same."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def pytest_configure(self, config: pytest.Config) -> None:
        """Put the run where the fixture looks."""
        from decoderspec.properties.plugin import RUN

        config.stash[RUN] = self._run


@contextlib.contextmanager
def _without_the_users_options() -> Iterator[None]:
    """Options in the environment are for the user's own tests: a `-k` among them would thin ours out in silence."""
    kept = os.environ.pop("PYTEST_ADDOPTS", None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ["PYTEST_ADDOPTS"] = kept


def _base(workers: int) -> list[str]:
    """Arguments that keep the user's own pytest configuration out of it."""
    here = Path(__file__).parent
    tests = sorted(str(path) for path in here.glob("test_*.py"))
    quiet = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(here), "--import-mode=importlib"]
    return [*tests, *quiet, *(["-n", str(workers)] if workers else [])]


def _insights(run: Run) -> dict[str, Any]:
    """What a run tells beside its verdict; a subject that fails here has failed before."""
    found: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        found["bits"] = observed_bits(run)
        if inferred := observed_recipe(found["bits"]):
            found["recipe"] = explained(run, inferred) or explained(run, run.subject.recipe.declared)
        found["stages"] = stage_errors(run, found["bits"])
    with contextlib.suppress(Exception):
        found["caught"] = caught(run)
    with contextlib.suppress(Exception):
        found["processes"] = repeated(run)
    return found
