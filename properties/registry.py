"""Turning a property into a test: fixed awkward cases first, then a search by Hypothesis, shrunk in limited time.

Under pytest a test has two parts, so that all properties see their cheap fixed cases before any sees its dear ones and
searches: whatever is wrong shows early.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis.errors import Flaky, Unsatisfiable

from decoderspec.properties.cases import Case
from decoderspec.properties.database import Scoped, scoped
from decoderspec.properties.findings import Absent, Finding, NotJudged
from decoderspec.properties.run import Entry, Run
from decoderspec.spec.parameters import parameter_count

Check = Callable[[Run, Case], None]
LONG, MANY = 30, 1000  # tokens and words: fixed cases with more are for the properties that ask for them
LAYER = 5000  # products that a layer counts for, however small: its operations are called all the same
FIRST, FURTHER = PARTS = ("first", "further")


class TimeUp(Exception):
    """The time limit of the run came before a property was done: what it saw so far is no judgement."""


@dataclass(frozen=True)
class Property:
    """A test of one or more requirements over cases, or of the subject as a whole (`cases` is false)."""

    requirements: tuple[str, ...]
    name: str
    check: Callable[..., None]
    needs: tuple[str, ...] = ()  # optional methods of the model
    where: Callable[[Case], bool] = lambda case: True
    long: bool = False  # takes the long and large fixed cases too
    search: bool = True
    most: int | None = None  # fixed cases, where truth is dear
    builds: bool = False  # models of its own beside the case's
    over_cases: bool = True

    @property
    def goes_further(self) -> bool:
        """Whether there is more than cheap fixed cases to it."""
        return self.over_cases and (self.search or self.long)


PROPERTIES: list[Property] = []


def checks(
    *requirements: str,
    needs: Iterable[str] = (),
    where: Callable[[Case], bool] = lambda case: True,
    long: bool = False,
    search: bool = True,
    most: int | None = None,
    builds: bool = False,
) -> Callable[[Check], Callable[[Run], None]]:
    """Make a test over cases from a property `(run, case)`; raises `Finding` with the smallest case that fails."""

    def decorate(function: Check) -> Callable[[Run], None]:
        return _collected(
            Property(requirements, function.__name__, function, tuple(needs), where, long, search, most, builds),
            lambda run, found: examine(run, found),
        )

    return decorate


def checks_once(
    *requirements: str, needs: Iterable[str] = ()
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Make a test from a property of the subject as a whole, `(run)`."""

    def decorate(function: Callable[[Run], None]) -> Callable[[Run], None]:
        return _collected(
            Property(requirements, function.__name__, function, tuple(needs), over_cases=False),
            lambda run, found: found.check(run),
        )

    return decorate


def _collected(found: Property, runner: Callable[[Run, Property], None]) -> Callable[[Run], None]:
    PROPERTIES.append(found)

    def test(decoderspec_run: Run) -> None:
        start = time.perf_counter()
        try:
            _in_time(decoderspec_run)
            for capability in found.needs:
                decoderspec_run.need(capability)
            if decoderspec_run.part == FURTHER and found.name in decoderspec_run.failing:
                raise NotJudged(f"{found.requirements[0]}: its first cases fail already")
            runner(decoderspec_run, found)
            if not decoderspec_run.entry.examples:
                further = "further " if decoderspec_run.part == FURTHER else ""
                where = "of these parameters" if decoderspec_run.subject.checkpoint else "within the limits"
                raise NotJudged(f"{found.requirements[0]}: no {further}case {where} can show it")
        except Finding:
            decoderspec_run.failing.add(found.name)
            raise
        finally:
            decoderspec_run.entry.seconds = time.perf_counter() - start

    functools.update_wrapper(test, found.check)
    del test.__dict__["__wrapped__"]  # pytest would ask for the arguments of the property itself
    test.__dict__["property"] = found
    return test


def examine(run: Run, found: Property) -> None:
    """The fixed cases, then the search; the search first where it has failures of earlier runs to replay."""
    searches = found.search and not run.cases and not run.is_dear
    database = _database(run, found) if searches else None
    replays = database is not None and database.saved
    if replays and run.part != FURTHER:
        search(run, found, database)
    for case in asked(run, found):
        _in_time(run)
        (recall if run.is_dear else attempt)(run, found, case)
    if searches and not replays and run.part != FIRST:
        search(run, found, database)


def asked(run: Run, found: Property) -> list[Case]:
    """The fixed cases that a property takes, in this part of it."""
    cheap = {case: small(case) and work(case) <= run.profile.work for case in run.fixed}
    fixed = [case for case in run.fixed if found.where(case) and (found.long or run.cases or cheap[case])]
    most = None if found.most is None else min(found.most, run.profile.most)
    fixed = fixed[: 1 if found.builds and run.is_dear else most]
    return fixed if not (run.part and found.goes_further) else [c for c in fixed if cheap[c] == (run.part == FIRST)]


def caught(look: Callable[[], None]) -> Finding | None:
    """What a look at an implementation finds; None where it finds nothing, or has nothing to judge."""
    try:
        with np.errstate(all="ignore"):
            look()
    except Finding as found:
        return found
    except (Absent, NotJudged):
        return None
    return None


def _database(run: Run, found: Property) -> Scoped | None:
    """The stored failures of this property, where there is a database: those that the same strategy has drawn."""
    store, subject = run.options.get("database"), run.subject
    return store and scoped(store, found.name, subject.name, subject.recipe.declared, run.only, run.drawn)


def _late(run: Run) -> bool:
    """Whether the run has a time limit and has reached it."""
    return time.perf_counter() > float(run.options.get("until", math.inf))


def _in_time(run: Run) -> None:
    """Raise `TimeUp` once the time limit of the run is reached."""
    if _late(run):
        raise TimeUp


def recall(run: Run, found: Property, case: Case) -> None:
    """Where every build is dear: whoever comes to a case first runs all properties on it, while its model stands."""
    total = run.entry
    if (found.name, case) not in run.memory:
        for other in [found] if found.builds else _alike(run, case):
            run.entry = Entry()
            raised: Exception | None = None
            try:
                attempt(run, other, case)
            except (Finding, Absent, NotJudged) as reason:
                raised = reason
            run.memory[other.name, case] = run.entry, raised
    seen, outcome = run.memory[found.name, case]
    total.absorb(seen)
    run.entry = total
    if outcome is not None:
        raise outcome


def _alike(run: Run, case: Case) -> list[Property]:
    """The properties over cases that take this one and build nothing of their own."""
    return [
        other
        for other in PROPERTIES
        if other.over_cases
        and not other.builds
        and other.where(case)
        and not other.requirements[0].startswith("OPN")
        and run.capabilities.issuperset(other.needs)
    ]


def small(case: Case) -> bool:
    """Whether a case is cheap enough for every property."""
    return case.tokens <= LONG and case.config.vocabulary_size <= MANY


def work(case: Case) -> int:
    """What a pass over a case costs, about: products, of which calling the operations of a layer is worth `LAYER`."""
    return parameter_count(case.config) * case.batch * case.tokens + LAYER * case.config.layers


def attempt(run: Run, found: Property, case: Case) -> None:
    """One example; a finding learns which case it was found on."""
    run.entry.examples += 1
    try:
        found.check(run, case)
    except Finding as finding:
        finding.details.setdefault("case", case)
        raise


def _unsteady(finding: Finding) -> Finding:
    """What failed once and not again: what came before counts, or chance."""
    words = (
        f"{finding.message}\n(asked again, the same case passed: something is kept between calls, or left to chance)"
    )
    return replace(finding, message=words)


def search(run: Run, found: Property, database: Scoped | None = None) -> None:
    """Random examples: the same for all properties, which share seed and strategy, so that truth is shared too.

    Raises `TimeUp` where the time limit of the run cut it short and nothing failed.
    """
    start = time.perf_counter()
    failed: dict[str, Any] = {}
    cut: list[Case] = []

    @settings(
        max_examples=run.profile.examples,
        database=database,
        deadline=None,
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @seed(run.seed)  # below the settings: applied to them it would take the database away
    @given(run.drawn)
    def example(case: Case) -> None:
        assume(found.where(case))
        now, late = time.perf_counter(), _late(run)
        if failed:
            if (late or now - failed["since"] > run.profile.shrink_seconds) and case != failed["case"]:
                return  # enough shrinking: only the smallest failure so far still fails
        elif late or now - start > run.profile.seconds:
            cut.extend([case] if late else [])
            if database is not None:
                database.keeps = True
            return
        try:
            attempt(run, found, case)
        except Finding as finding:
            failed.setdefault("since", now)
            failed["case"], failed["finding"] = case, finding
            raise

    try:
        with suppress(Unsatisfiable):  # the limits may leave nothing that the property asks for
            example()
    except Flaky:  # its own words are about the test, not about what was tested
        raise _unsteady(failed["finding"]) from None
    if cut:
        raise TimeUp
