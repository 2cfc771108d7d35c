"""Making a run from names and options: for the plugin, for `check`, and for anybody's own test file."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from decoderspec.properties.database import opened
from decoderspec.properties.loading import LoadError, attribute, implementation, load
from decoderspec.properties.printable import printable
from decoderspec.properties.run import PROFILES, Entry, Run
from decoderspec.properties.settings import Settings, project_settings
from decoderspec.properties.strategies import check_limits
from decoderspec.properties.subject import read_claims, read_subject
from decoderspec.properties.xfails import known, read_xfails
from decoderspec.spec.precision import DeclarationError
from decoderspec.spec.requirements import requirements


def make_run(name: str, *, profile: str = "default", seed: int = 0, precision: Any = None, claims: Any = None) -> Run:
    """A run over what is named. Raises `LoadError` or `DeclarationError`."""
    name = absolute(name)
    return run_over(load(name), name, profile=profile, seed=seed, precision=precision, claims=claims)


def operation_run(
    name: str, operation: str, *, profile: str = "default", seed: int = 0, precision: Any = None, claims: Any = None
) -> Run:
    """A run over one operation or one block. Raises `LoadError` or `DeclarationError`."""
    function = attribute(name)
    declared = getattr(function, "precision", "float64") if precision is None else precision
    stand_in = SimpleNamespace(
        name=f"{operation} ({name})",
        claims=getattr(function, "claims", None),
        limits=getattr(function, "limits", None),
    )
    run = run_over(stand_in, name, profile=profile, seed=seed, precision=declared, claims=claims)
    run.only = operation
    _ = run.operation  # raises for what cannot be loaded
    return run


def absolute(name: str) -> str:
    """The name with its file's whole path: the implementation may change the folder that it runs in."""
    place, colon, path = name.rpartition(":")
    return f"{os.path.abspath(place)}{colon}{path}" if place.endswith(".py") and os.path.exists(place) else name


def run_over(
    subject: Any, name: str = "", *, profile: str = "default", seed: int = 0, precision: Any = None, claims: Any = None
) -> Run:
    """A run over an implementation at hand; `name` lets a child process load it again."""
    if profile not in PROFILES:
        raise LoadError(f"there is no profile {profile!r}; allowed: {', '.join(PROFILES)}")
    read = read_subject(subject, precision, claims)
    check_limits(read.limits)
    options = {"precision": precision, "claims": claims}
    return Run(read, name, PROFILES[profile], seed=seed, options=options)


def run_of(settings: Settings) -> Run:
    """The run that the settings describe. Raises `LoadError` or `DeclarationError`."""
    options = {key: getattr(settings, key) for key in ("profile", "seed", "precision", "claims")}
    if settings.operation:
        return operation_run(settings.implementation, settings.operation, **options)
    return make_run(settings.implementation, **options)


def further_options(database: str | None, time_limit: float | None) -> dict[str, Any]:
    """Of a run: the opened database of failures, and when it must end, counted from now. Raises `LoadError`."""
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise LoadError(f"a time limit of {time_limit:g} s cannot be kept; allowed: seconds above 0")
    return {
        "database": None if database is None else opened(database),
        "until": math.inf if time_limit is None else time.perf_counter() + time_limit,
    }


def counts(run: Run, required: Collection[str], names: Collection[str]) -> bool:
    """Whether a failure of these requirements fails anything: it is in a contract that is claimed or required."""
    return run.claims(tuple(names)) or any(requirements()[name].contract in required for name in names)


def expected(run: Run, settings: Settings, made: dict[str, Any]) -> str:
    """Why a failure was to be expected, in words; empty where it was not, and then it fails the test.

    Also notes in the record which entry of the xfail file it falls under, so that whoever sums up can tell those
    that no longer fail.
    """
    listed = [entry for entry in settings.xfails if entry.requirement in made["requirements"]]
    made["listed"] = [f"{entry.requirement} ({entry})" for entry in listed]
    if made["status"] != "fail":
        return ""
    entry = known(listed, made["requirements"], made["worst_noise"])
    if entry is not None:
        return f"known: {entry}"
    return "" if counts(run, settings.required, made["requirements"]) else f"not claimed: {made['reason']}"


def conformance(subject: Any = None, **options: Any) -> Callable[..., None]:
    """One parametrized test, a case per requirement, for somebody's own test file.

    `test_decoder = conformance(MyAdapter())`: each property becomes `test_decoder[VAL-1-..]`. A name
    (`"package.module:Adapter"`) lets bad input be asked in a child process; so does an instance of an importable class.
    Without a subject everything is taken from `[tool.decoderspec]` in the pyproject.toml. Options are those of
    `Settings`: `profile, seed, precision, claims, required, xfails`. Raises `LoadError` or `DeclarationError`.
    """
    import pytest

    from decoderspec.properties.properties import all_properties

    settings = _settings(subject, options)
    if subject is None or isinstance(subject, str):
        run = run_of(settings)
    else:
        further = {key: getattr(settings, key) for key in ("profile", "seed", "precision", "claims")}
        run = run_over(implementation(subject, "conformance"), name_of(subject), **further)
    tests = all_properties()
    ids = ["+".join(test.property.requirements) + f"-{test.__name__}" for test in tests]

    @pytest.mark.parametrize("property_test", tests, ids=ids)
    def test_conformance(property_test: Any, record_property: Callable[[str, object], None]) -> None:
        from decoderspec.properties.record import record

        raised = _raised(property_test, run)
        made = record(property_test.property, run, raised)
        why = expected(run, settings, made)
        record_property("decoderspec", made)
        if made["status"] in ("skip", "not_judged"):
            pytest.skip(printable(made["reason"]))
        if made["status"] == "fail" and why:
            pytest.xfail(printable(why))
        if made["status"] == "fail":
            where = f"\nsmallest case: {made['case']}" if made["case"] else ""
            pytest.fail(printable(f"{made['reason']}{where}"), pytrace=False)
        if raised is not None:
            raise raised

    test: Callable[..., None] = test_conformance
    return test


def _settings(subject: Any, options: dict[str, Any]) -> Settings:
    """Those of the call; over those of the project's table where no subject is given."""
    known_options = {"profile", "seed", "precision", "claims", "required", "xfails"}
    if unknown := set(options) - known_options:
        raise DeclarationError(
            f"conformance has no option {min(unknown)!r}; allowed: {', '.join(sorted(known_options))}"
        )
    xfails = options.get("xfails")
    if isinstance(xfails, (str, os.PathLike)):
        options["xfails"] = tuple(read_xfails(Path(xfails)))
    for key in ("claims", "required"):
        if options.get(key) is not None:
            options[key] = read_claims(options[key])
    if subject is not None:
        return Settings(subject if isinstance(subject, str) else "").changed(**options)
    found = project_settings()
    if found is None:
        raise LoadError("conformance() needs a subject, or implementation in [tool.decoderspec] of a pyproject.toml")
    if found.operation:
        raise LoadError("conformance() tests a whole decoder; for one operation use `decoderspec check --as`")
    return found.changed(**options)


def _raised(property_test: Any, run: Run) -> BaseException | None:
    """What a property raises, which is what it found."""
    run.entry = Entry()
    try:
        property_test(run)
    except Exception as found:
        return found
    return None


def name_of(subject: Any) -> str:
    """A name under which a child process finds the same implementation; empty when there is none."""
    found = subject if hasattr(subject, "__qualname__") else type(subject)
    module, qualified = found.__module__, found.__qualname__
    if "<" in qualified or module == "__main__":
        return ""
    path = getattr(sys.modules.get(module), "__file__", "") or ""
    return f"{os.path.abspath(path)}:{qualified}" if path else f"{module}:{qualified}"
