"""Making a run from names and options: for the plugin, for `check`, and for anybody's own test file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from decoderspec.properties.loading import LoadError, attribute, implementation, load
from decoderspec.properties.run import PROFILES, Run
from decoderspec.properties.strategies import check_limits
from decoderspec.properties.subject import read_subject


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


def conformance(subject: Any, **options: Any) -> Callable[..., None]:
    """One parametrized test, a case per requirement, for somebody's own test file.

    `test_decoder = conformance(MyAdapter())`: each property becomes `test_decoder[VAL-1-..]`. A name
    (`"package.module:Adapter"`) lets bad input be asked in a child process; so does an instance of an importable class.
    """
    import pytest

    from decoderspec.properties.properties import all_properties

    named = isinstance(subject, str)
    run = (
        make_run(subject, **options)
        if named
        else run_over(implementation(subject, "conformance"), name_of(subject), **options)
    )
    tests = all_properties()
    ids = ["+".join(test.property.requirements) + f"-{test.__name__}" for test in tests]

    @pytest.mark.parametrize("property_test", tests, ids=ids)
    def test_conformance(property_test: Callable[..., None]) -> None:
        from decoderspec.properties.findings import Absent, Finding, NotJudged
        from decoderspec.properties.run import Entry

        run.entry = Entry()
        try:
            property_test(run)
        except (Absent, NotJudged) as reason:
            pytest.skip(str(reason))
        except Finding as finding:
            case = finding.details.get("case")
            where = f"\nsmallest case: {case.describe()}" if case else ""
            if not run.claims(property_test.property.requirements):  # type: ignore[attr-defined]
                pytest.xfail(f"not claimed: {finding}")
            pytest.fail(f"{finding}{where}", pytrace=False)

    made: Callable[..., None] = test_conformance
    return made


def name_of(subject: Any) -> str:
    """A name under which a child process finds the same implementation; empty when there is none."""
    found = subject if hasattr(subject, "__qualname__") else type(subject)
    module, qualified = found.__module__, found.__qualname__
    if "<" in qualified or module == "__main__":
        return ""
    path = getattr(sys.modules.get(module), "__file__", "") or ""
    return f"{os.path.abspath(path)}:{qualified}" if path else f"{module}:{qualified}"
