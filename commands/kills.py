"""The machinery of the kill table: which requirement kills a fault, after how many examples, and with what chance.

A fault is an implementation like any other, so it is run through the properties; those that it declares to break come
first. Fixed cases are the same in every run and kill for certain. Where they let a fault live, the search must find it,
and its chance is estimated from many more examples than a run draws.
"""

from __future__ import annotations

import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from decoderspec.faults.bank import by_name
from decoderspec.faults.fault import Fault, FaultyReference
from decoderspec.properties.bad_input import REQUIREMENTS as ASKED_IN_A_CHILD
from decoderspec.properties.cases import Case
from decoderspec.properties.child import ask
from decoderspec.properties.findings import Finding
from decoderspec.properties.properties import all_properties
from decoderspec.properties.registry import Property, asked, attempt, caught, examine, search
from decoderspec.properties.run import Entry, Run
from decoderspec.properties.session import run_over
from decoderspec.properties.strategies import cases
from decoderspec.properties.truth import Truth

ESTIMATED_FROM = 500  # examples
CERTAIN_ENOUGH = 0.999  # chance of a kill in one run
HOME = "decoderspec.faults.bank"


@dataclass(frozen=True)
class Kill:
    """What became of a fault, as plain data."""

    fault: str
    requirement: str = ""  # that killed it; empty when it survived
    test: str = ""  # the name of the property
    declared: bool = False
    examples: int = 0  # up to the one that killed, of that property
    seconds: float = 0.0  # truth is shared with other faults
    fixed: bool = False  # the case is in every run
    chance: float = 0.0  # that one run kills it by that property
    case: str = ""
    size: float = 0.0  # of the error, relative to what it is an error of; 0 where it is none of numbers
    message: str = ""
    shows: tuple[str, ...] = ()  # all fixed cases on which that property kills it, where they were tried
    hides: tuple[str, ...] = ()  # .. and those on which it does not
    also: tuple[str, ...] = ()  # further declared requirements that kill it, on fixed cases
    holds: tuple[str, ...] = ()  # .. and those that do not
    tests: tuple[str, ...] = ()  # the names of all declared properties that kill it

    @property
    def as_declared(self) -> bool:
        """Whether the requirements that the fault declares kill it, all of them, and as good as always."""
        return self.declared and self.chance >= CERTAIN_ENOUGH and not self.holds

    def faults(self) -> list[str]:
        """What is not as declared, in words."""
        said = [] if self.declared else ["a requirement that it does not declare"]
        said += [f"the chance must be {CERTAIN_ENOUGH}"] if self.chance < CERTAIN_ENOUGH else []
        return said + [f"{requirement} holds, though declared broken" for requirement in self.holds]


@dataclass
class Table:
    """Runs faults one by one; truth depends on case and precision alone, so that all of them share it."""

    profile: str = "default"
    seed: int = 0
    truths: dict[str, OrderedDict[Case, Truth]] = field(default_factory=dict)

    def run(self, fault: Fault) -> Run:
        """A run over the fault."""
        run = run_over(FaultyReference(fault), f"{HOME}:{fault.name}", profile=self.profile, seed=self.seed)
        run.truths = self.truths.setdefault(str(fault.precision), OrderedDict())
        return run

    def kill(self, name: str, spread: bool = False) -> Kill:
        """The first property that kills a fault, declared ones and fixed cases first; with `spread` on which cases."""
        fault = by_name(name)
        run, start = self.run(fault), time.perf_counter()
        try:
            found = next(_kills(run, fault), Kill(name))
            if found.declared:
                found = _with_every(run, fault, found)
            if found.fixed and spread:
                found = _with_spread(run, found)
        except Exception:  # a fault that the suite cannot even judge has survived
            found = Kill(name, message=f"the suite itself failed: {traceback.format_exc()[-2000:]}")
        run.subject.close()
        return replace(found, seconds=time.perf_counter() - start)


def properties() -> list[Property]:
    """Of a whole model at the default profile, in the order in which they run."""
    return [test.property for test in all_properties() if "BIG-1" not in test.property.requirements]


def declared(fault: Fault) -> list[Property]:
    """The properties of the requirements that a fault declares to break, in that order."""
    known = properties()
    return list({p.name: p for r in fault.breaks for p in known if r in p.requirements}.values())


# --- Killing ---


def _kills(run: Run, fault: Fault) -> Iterator[Kill]:
    """What kills a fault, the most wanted first."""
    mine = declared(fault)
    others = [found for found in properties() if found not in mine]
    for found in mine:
        if finding := _on_fixed(run, found):
            yield _killed(run, fault, found, finding, fixed=True)
    for found in mine:
        yield from _by_search(run, fault, found)
    for found in others:
        if finding := _on_fixed(run, found):
            yield _killed(run, fault, found, finding, fixed=True)
    for found in others:
        run.entry = Entry()
        if _searches(found) and (finding := caught(partial(search, run, found))):
            yield _killed(run, fault, found, finding, fixed=False)


def _on_fixed(run: Run, found: Property) -> Finding | None:
    """What a property finds on the cases that every run has."""
    run.entry = Entry()
    if found.over_cases:
        return caught(partial(examine, run, replace(found, search=False)))
    if found.requirements[0] in ASKED_IN_A_CHILD:
        run.outcomes = ask(run.name, requirements=found.requirements)
    return caught(partial(found.check, run))


def _searches(found: Property) -> bool:
    return found.over_cases and found.search


def _by_search(run: Run, fault: Fault, found: Property) -> Iterator[Kill]:
    """A kill by random examples alone, if the chance is high enough that one run has such an example."""
    if not _searches(found):
        return
    tried, failed = drawn(run, found, ESTIMATED_FROM)
    if failed:
        chance = 1 - (1 - len(failed) / tried) ** run.profile.examples
        place, finding = failed[0]
        run.entry = Entry(examples=place)
        yield replace(_killed(run, fault, found, finding, fixed=False), chance=chance)


def drawn(run: Run, found: Property, count: int) -> tuple[int, list[tuple[int, Finding]]]:
    """Random examples of a property: how many were tried, and which failed (counted from one) with what."""
    failed: list[tuple[int, Finding]] = []
    kept, run.truths, run.entry = run.truths, OrderedDict(run.truths), Entry()  # these truths are of no further use

    @seed(run.seed)
    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases(run.subject.limits, run.pool))
    def example(case: Case) -> None:
        assume(found.where(case))
        if finding := caught(partial(attempt, run, found, case)):
            failed.append((run.entry.examples, finding))

    example()
    run.truths = kept
    return run.entry.examples, failed


def _killed(run: Run, fault: Fault, found: Property, finding: Finding, *, fixed: bool) -> Kill:
    wanted = [r for r in fault.breaks if r in found.requirements]
    case, comparison = finding.details.get("case"), finding.comparison
    return Kill(
        fault.name, (wanted or found.requirements)[0], found.name, bool(wanted), run.entry.examples,
        fixed=fixed, chance=1.0 if fixed else 0.0, case=_words(case) if isinstance(case, Case) else "",
        size=0.0 if comparison is None else _size(comparison.error, comparison.got), message=finding.message,
    )  # fmt: skip


def _words(case: Case) -> str:
    return case.note or case.describe()


def _size(error: float, got: float) -> float:
    expected = abs(got - error)
    return abs(error) / expected if expected and np.isfinite(error) else 0.0


def _with_every(run: Run, fault: Fault, found: Kill) -> Kill:
    """Which of the requirements that it declares kill the fault on fixed cases, and which do not."""
    mine = declared(fault)
    dead = [each for each in mine if each.name == found.test or _on_fixed(run, each)]
    killing = {requirement for each in dead for requirement in each.requirements}
    wanted = [requirement for requirement in fault.breaks if requirement != found.requirement]
    return replace(
        found,
        also=tuple(requirement for requirement in wanted if requirement in killing),
        holds=tuple(requirement for requirement in wanted if requirement not in killing),
        tests=tuple(each.name for each in dead),
    )


def _with_spread(run: Run, found: Kill) -> Kill:
    """The fixed cases on which the fault shows to the property that kills it, and those on which it hides."""
    (each,) = (p for p in properties() if p.name == found.test)
    if not each.over_cases:
        return found
    seen = {case: caught(partial(each.check, run, case)) for case in asked(run, each)}
    return replace(
        found,
        shows=tuple(case.note for case, finding in seen.items() if finding),
        hides=tuple(case.note for case, finding in seen.items() if not finding),
    )
