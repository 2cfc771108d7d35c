"""The pytest plugin: options, the fixture `decoderspec_run`, and the record that each property leaves behind.

Loaded with every pytest of whoever has the wheel installed, so it imports nothing of the suite before it is needed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from decoderspec.properties.run import Run

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
NOTHING = "nothing is under test: give --implementation module:attribute or file.py:attribute"
RUN = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the suite; `decoderspec check` sets them."""
    group = parser.getgroup("decoderspec", "conformance tests for LLaMA-style decoders (decoderspec)")
    group.addoption(
        "--implementation", metavar="NAME", help="what is under test: module:attribute or file.py:attribute"
    )
    group.addoption("--decoderspec-profile", default="default", metavar="P", help="quick, default or thorough")
    group.addoption("--decoderspec-seed", type=int, default=0, metavar="N", help="seed of the search")
    group.addoption("--decoderspec-precision", metavar="WORD", help="overrides the declared precision")
    group.addoption("--decoderspec-as", metavar="OPERATION", help="the implementation is one operation, or a block")
    group.addoption("--decoderspec-claims", metavar="LIST", help="overrides the claimed contracts")


@pytest.fixture
def decoderspec_run(request: pytest.FixtureRequest) -> Run:
    """The session's run over the implementation under test, with a fresh entry for this property."""
    from decoderspec.properties.run import Entry

    run = _session_run(request.config)
    run.entry = Entry()
    return run


def _session_run(config: pytest.Config) -> Run:
    if RUN not in config.stash:
        from decoderspec.properties.session import make_run, operation_run

        name = config.getoption("--implementation")
        if not name:
            raise pytest.UsageError(NOTHING)
        options = {key: config.getoption(f"--decoderspec-{key}") for key in ("profile", "seed", "precision", "claims")}
        only = config.getoption("--decoderspec-as")
        config.stash[RUN] = operation_run(name, only, **options) if only else make_run(name, **options)
    found: Run = config.stash[RUN]
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Say once, before any test, that what is named cannot be loaded."""
    config = session.config
    if not config.getoption("--implementation") or hasattr(config, "workerinput"):
        return
    from decoderspec.properties.loading import LoadError
    from decoderspec.spec.precision import DeclarationError

    try:
        _session_run(config)
    except (LoadError, DeclarationError) as reason:
        raise pytest.UsageError(f"decoderspec: {reason}") from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Values first, bad input last, since it may leave a device unusable; operations only where one is under test."""
    mine = {item: _module(item) for item in items if hasattr(getattr(item, "function", None), "property")}
    if not mine:
        return
    named = RUN in config.stash or config.getoption("--implementation") or config.option.collectonly
    if not named and not hasattr(config, "workerinput"):  # a worker of pytest-xdist cannot raise here
        raise pytest.UsageError(NOTHING)
    wanted = (OPERATION,) if config.getoption("--decoderspec-as") else ORDER
    items[:] = sorted(
        (item for item in items if mine.get(item, wanted[0]) in wanted),
        key=lambda item: wanted.index(mine[item]) if item in mine else -1,
    )


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
    from decoderspec.properties.record import record

    run = item.config.stash.get(RUN, None)
    made = record(found, run, call.excinfo.value if call.excinfo else None)
    report.user_properties.append(("decoderspec", made))
    if made["status"] in ("skip", "not_judged"):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: {made['reason']}")
    elif made["status"] == "fail" and run is not None and not run.claims(found.requirements):
        report.outcome = "skipped"
        report.wasxfail = f"not claimed: {made['reason']}"
    elif made["status"] == "fail":
        report.longrepr = "\n".join(f"{key}: {made[key]}" for key in ("requirements", "reason", "case") if made[key])
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name what is under test."""
    name = config.getoption("--implementation")
    return [f"decoderspec: {name}"] if name else []
