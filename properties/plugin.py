"""The pytest plugin: options, the fixture `decoderspec_run`, and the record that each property leaves behind.

Loaded with every pytest of whoever has the wheel installed, so it imports nothing of the suite before it is needed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from decoderspec.properties.run import Run
    from decoderspec.properties.settings import Settings

ORDER = (
    "test_forward",
    "test_causality",
    "test_batch",
    "test_training",
    "test_state",
    "test_weights",
    "test_big",
    "test_inputs",
)
OPERATION = "test_operation"
PROPERTIES = "decoderspec.properties"
NOTHING = (
    "nothing is under test: give --implementation module:attribute or file.py:attribute,"
    " or implementation in [tool.decoderspec] of a pyproject.toml"
)
DATABASE, TIME_LIMIT = "--decoderspec-database", "--decoderspec-time-limit"
RUN = pytest.StashKey[Any]()
SETTINGS = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the suite; `decoderspec check` sets them."""
    group = parser.getgroup("decoderspec", "conformance tests for LLaMA-style decoders (decoderspec)")
    group.addoption(
        "--implementation", metavar="NAME", help="what is under test: module:attribute or file.py:attribute"
    )
    group.addoption("--decoderspec-profile", metavar="P", help="quick, default or thorough")
    group.addoption("--decoderspec-seed", type=int, metavar="N", help="seed of the search")
    group.addoption("--decoderspec-precision", metavar="WORD", help="overrides the declared precision")
    group.addoption("--decoderspec-as", metavar="OPERATION", help="the implementation is one operation, or a block")
    group.addoption("--decoderspec-claims", metavar="LIST", help="overrides the claimed contracts")
    group.addoption("--decoderspec-require", metavar="LIST", help="contracts that must hold, though not claimed")
    group.addoption("--decoderspec-xfails", metavar="FILE", help="known failures with their reasons, JSON or TOML")
    group.addoption("--decoderspec-database", metavar="PLACE", help="failures to replay: a directory, or redis://..")
    group.addoption("--decoderspec-time-limit", type=float, metavar="SECONDS", help="end with what it has by then")


@pytest.fixture
def decoderspec_run(request: pytest.FixtureRequest) -> Run:
    """The session's run over the implementation under test, with a fresh entry for this property."""
    from decoderspec.properties.run import Entry

    run = _session_run(request.config)
    run.entry, run.part = Entry(), getattr(request, "param", "")
    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A property that goes beyond cheap fixed cases is two tests: all the first ones run before any further one."""
    found = getattr(metafunc.function, "property", None)
    if getattr(found, "goes_further", False):
        from decoderspec.properties.registry import PARTS

        metafunc.parametrize("decoderspec_run", PARTS, indirect=True)


def _session_run(config: pytest.Config) -> Run:
    if RUN not in config.stash:
        from decoderspec.properties.session import further_options, run_of

        settings = _settings(config)
        if settings is None:
            raise pytest.UsageError(NOTHING)
        run = run_of(settings)
        run.options |= further_options(config.getoption(DATABASE), config.getoption(TIME_LIMIT))
        config.stash[RUN] = run
    found: Run = config.stash[RUN]
    return found


def _settings(config: pytest.Config) -> Settings | None:
    """Of the command line where it names an implementation, else of the project's table under the command line."""
    if SETTINGS not in config.stash:
        from decoderspec.properties.settings import WORDS, Settings, project_settings

        name = config.getoption("--implementation")
        found = Settings(name) if name else project_settings()
        words = {key: config.getoption(f"--decoderspec-{key}") for key in WORDS}
        config.stash[SETTINGS] = found and found.overridden(words)
    settings: Settings | None = config.stash[SETTINGS]
    return settings


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Say once, before any test, that what is named cannot be loaded."""
    config = session.config
    ours = any(PROPERTIES in str(argument) for argument in config.args)
    if hasattr(config, "workerinput") or not (config.getoption("--implementation") or ours):
        return
    if not _ask(config) and not config.option.collectonly:
        raise pytest.UsageError(NOTHING)


def _ask(config: pytest.Config) -> bool:
    """Whether something is named, loaded; a usage error where it cannot be."""
    from decoderspec.properties.loading import LoadError
    from decoderspec.properties.xfails import XfailError
    from decoderspec.spec.precision import DeclarationError

    try:
        return _settings(config) is not None and _session_run(config) is not None
    except (LoadError, DeclarationError, XfailError) as reason:
        raise pytest.UsageError(f"decoderspec: {reason}") from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """First parts before further ones; values first, and bad input after them; operations only where one is tested.

    Where time is limited both parts of a property come together: a requirement of which one is missing is not judged.
    """
    mine = {item: _module(item) for item in items if hasattr(getattr(item, "function", None), "property")}
    if not mine:
        return
    silent = config.option.collectonly or hasattr(config, "workerinput")  # a worker of pytest-xdist cannot raise here
    if RUN not in config.stash and not silent and not _ask(config):
        raise pytest.UsageError(NOTHING)
    wanted, limited = (OPERATION,) if _operation(config) else ORDER, config.getoption(TIME_LIMIT) is not None

    def place(item: pytest.Item) -> tuple[bool, int]:
        return (_is_further(item) and not limited, wanted.index(mine[item])) if item in mine else (False, -1)

    items[:] = sorted((item for item in items if mine.get(item, wanted[0]) in wanted), key=place)


def _is_further(item: pytest.Item) -> bool:
    from decoderspec.properties.registry import FURTHER

    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("decoderspec_run") == FURTHER


def _operation(config: pytest.Config) -> str:
    """The operation under test, where it is one."""
    if hasattr(config, "workerinput"):
        _settings(config)  # the first process has found that it can be read
    settings = config.stash.get(SETTINGS, None)
    return settings.operation if settings else config.getoption("--decoderspec-as") or ""


def _module(item: pytest.Item) -> str:
    module: str = getattr(getattr(item, "module", None), "__name__", "")
    return module.rpartition(".")[2]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn what a property raised into plain words and a record; no frame of ours is shown."""
    report = yield
    found = getattr(getattr(item, "function", None), "property", None)
    if found is None or (call.when != "call" and call.excinfo is None):
        return report
    from decoderspec.properties.printable import printable
    from decoderspec.properties.record import record
    from decoderspec.properties.registry import TimeUp
    from decoderspec.properties.session import expected

    run, settings = item.config.stash.get(RUN, None), item.config.stash.get(SETTINGS, None)
    if run is not None and (store := run.options.get("database")) and store.problem:
        report.user_properties.append(("decoderspec-problem", printable(store.problem)))
    if call.excinfo and call.excinfo.errisinstance(TimeUp):
        report.user_properties.append(("decoderspec-unreached", list(found.requirements)))
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, "Skipped: not done within the time limit")
        return report
    made = record(found, run, call.excinfo.value if call.excinfo else None)
    why = expected(run, settings, made) if run is not None and settings is not None else ""
    report.user_properties.append(("decoderspec", made))
    if made["status"] in ("skip", "not_judged"):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, printable(f"Skipped: {made['reason']}"))
    elif made["status"] == "fail" and why:
        report.outcome = "skipped"
        report.wasxfail = printable(why)
    elif made["status"] == "fail":
        words = "\n".join(f"{key}: {made[key]}" for key in ("requirements", "reason", "case") if made[key])
        report.longrepr = printable(words)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the entries of the xfail file that describe no failure of this run: reported, and no failure themselves."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    pairs = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    records = [value for key, value in pairs if key == "decoderspec" and isinstance(value, dict)]
    listed = dict.fromkeys(entry for record in records for entry in record.get("listed", ()))
    failed = {entry for record in records if record["status"] == "fail" for entry in record.get("listed", ())}
    for entry in listed:
        if entry not in failed:
            terminalreporter.write_line(f"decoderspec: the xfail file lists {entry}, which did not fail in this run")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name what is under test."""
    settings = config.stash.get(SETTINGS, None)
    return [f"decoderspec: {settings.implementation}"] if settings else []
