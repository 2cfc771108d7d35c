"""One run of the suite over one subject: profile, seed, shared truths, and what each requirement saw."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from decoderspec.properties import strategies
from decoderspec.properties.cases import Array, Case
from decoderspec.properties.child import Outcome, ask
from decoderspec.properties.findings import Finding, NotJudged
from decoderspec.properties.operation import OperationSubject, load_operation
from decoderspec.properties.subject import Subject, SubjectModel
from decoderspec.properties.truth import Truth
from decoderspec.reference.limits import Comparison
from decoderspec.spec.config import Config


@dataclass(frozen=True)
class Profile:
    """How long to look."""

    name: str
    examples: int  # random ones, per property
    seconds: float  # of search, per property
    shrink_seconds: float


PROFILES = {
    "quick": Profile("quick", 4, 2.0, 1.0),
    "default": Profile("default", 40, 8.0, 3.0),
    "thorough": Profile("thorough", 400, 120.0, 20.0),
}
DEAR_BUILD = 0.5  # seconds: a build above this is worth sparing
DEAR_CONFIGURATIONS = 5
KEPT_TRUTHS = 256


@dataclass
class Entry:
    """What one property saw: how many examples, and the comparison nearest to its limit."""

    examples: int = 0
    worst: Comparison | None = None
    where: str = ""
    case: str = ""
    seconds: float = 0.0


@dataclass
class Run:
    """Shared by all properties of one session."""

    subject: Subject
    name: str  # how the subject was named, so that a child process can load it again; empty when it cannot
    profile: Profile
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    truths: OrderedDict[Case, Truth] = field(default_factory=OrderedDict)
    entry: Entry = field(default_factory=Entry)  # of the property that is running
    cases: tuple[Case, ...] = ()  # these alone, where they are given
    only: str = ""  # the name of the operation under test, where it is one

    @cached_property
    def fixed(self) -> list[Case]:
        """The cases given, or else the fixed ones within the subject's limits."""
        if self.cases:
            return list(self.cases)
        return strategies.fixed(self.subject.limits, self.profile.name)[0]

    @cached_property
    def not_covered(self) -> list[str]:
        """What the limits keep out."""
        lost = [f"case: {note}" for note in strategies.fixed(self.subject.limits, self.profile.name)[1]]
        return [f"{field} outside {limit}" for field, limit in self.subject.limits.items()] + lost

    @cached_property
    def pool(self) -> tuple[Config, ...]:
        """The few configurations to draw from where a build is dear, as `limits` or a build tells; else empty."""
        count = self.subject.limits.get("configurations")
        if count is None and not self.only and self.build_seconds > DEAR_BUILD:
            count = DEAR_CONFIGURATIONS
        return tuple(dict.fromkeys(case.config for case in self.fixed))[:count] if count else ()

    @cached_property
    def build_seconds(self) -> float:
        """What a build costs: that of the second configuration, since the first also pays for warming up."""
        self.model(self.fixed[0])
        start = time.perf_counter()
        self.model(self.fixed[1 % len(self.fixed)])
        return time.perf_counter() - start

    @cached_property
    def operation(self) -> OperationSubject:
        """The operation under test. Raises `LoadError`."""
        return load_operation(self.name, self.only, self.subject.recipe)

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """What became of every bad input, asked in a child process."""
        if not self.name:
            raise NotJudged("bad input is asked in a child process, which needs a name to load the implementation by")
        self.subject.close()
        return ask(self.name, precision=self.options.get("precision"), claims=self.options.get("claims"))

    def model(self, case: Case) -> SubjectModel:
        """The subject's model of a case."""
        return self.subject.model(case)

    def truth(self, case: Case) -> Truth:
        """The truth of a case, kept for whichever property asks next."""
        if case not in self.truths:
            self.truths[case] = Truth(case, self.subject.parameters(case), self.subject.recipe)
            while len(self.truths) > KEPT_TRUTHS:
                self.truths.popitem(last=False)
        self.truths.move_to_end(case)
        return self.truths[case]

    def judge(self, what: str, comparison: Comparison, stage: str = "") -> None:
        """Note a comparison, and raise a finding when it is beyond its limits."""
        if self.entry.worst is None or comparison.excess > self.entry.worst.excess:
            self.entry.worst, self.entry.where = comparison, what
        if not comparison.conforms:
            raise Finding(described(what, comparison), stage or what, comparison)

    def same_bits(self, what: str, got: Array, expected: Array, why: str) -> None:
        """Raise a finding unless two arrays are equal to the last bit."""
        differ = (got != expected) & ~(np.isnan(got) & np.isnan(expected))  # what is finite is judged
        if differ.any():
            index = tuple(int(i[0]) for i in differ.nonzero())
            raise Finding(
                f"{why}: {what}{list(index)} was {expected[index]!r} and became {got[index]!r}"
                f" ({int(differ.sum())} of {differ.size} elements differ)",
                what,
            )


def described(what: str, comparison: Comparison) -> str:
    """A comparison in words: how far, where, got and expected."""
    expected = comparison.got - comparison.error
    return (
        f"{what}: off by {comparison}; worst at {list(comparison.index)}:"
        f" got {comparison.got:.9g}, expected {expected:.9g} (noise unit {comparison.unit:.2g})"
    )
