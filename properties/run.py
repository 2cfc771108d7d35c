"""One run of the suite over one subject: profile, seed, shared truths, and what each requirement saw."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy

from decoderspec.properties import strategies
from decoderspec.properties.bad_input import REQUIREMENTS
from decoderspec.properties.cases import STYLES, Array, Case, arrays
from decoderspec.properties.child import Outcome, ask
from decoderspec.properties.findings import Absent, Finding, NotJudged
from decoderspec.properties.operation import OperationSubject, load_operation
from decoderspec.properties.subject import Subject, SubjectModel
from decoderspec.properties.truth import Truth
from decoderspec.reference.limits import Comparison
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import parameter_count
from decoderspec.spec.protocol import CAPABILITIES
from decoderspec.spec.requirements import requirements


@dataclass(frozen=True)
class Profile:
    """How long to look."""

    name: str
    examples: int  # random ones, per property
    seconds: float  # of search, per property
    shrink_seconds: float
    shapes: int  # of tokens, where each is compiled
    most: int  # fixed cases of a property whose truth is dear
    work: float  # most of `registry.work` that a fixed case costs which every property takes


PROFILES = {
    "quick": Profile("quick", 4, 2.0, 1.0, 2, 1, 8e4),
    "default": Profile("default", 40, 8.0, 3.0, 5, 5, 1e6),
    "thorough": Profile("thorough", 400, 120.0, 20.0, 10, 10, 1e6),
}
DEAR_BUILD = 0.5  # seconds: a build above this is worth sparing
DEAR_SHAPE = 0.2  # seconds by which the first call on tokens of a new shape is slower than the second: a compilation
DEAR_CONFIGURATIONS = 5
KEPT_BYTES = 2**28  # of truths that are kept for whoever asks next
BUILDING = ("CFG-1", "CFG-2", "INP-6")  # bad input that takes a model of its own to ask


@dataclass
class Entry:
    """What one property saw: how many examples, and the comparison nearest to its limit."""

    examples: int = 0
    worst: Comparison | None = None
    where: str = ""
    seconds: float = 0.0

    def absorb(self, other: Entry) -> None:
        """Take in what was seen on another case."""
        self.examples += other.examples
        if other.worst and (self.worst is None or other.worst.excess > self.worst.excess):
            self.worst, self.where = other.worst, other.where


@dataclass(repr=False)  # pytest asks for it at every skip, and all truths take seconds to print
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
    part: str = ""  # of the properties, one of `registry.PARTS`; empty for the whole of them
    failing: set[str] = field(default_factory=set)  # properties whose first part has failed
    broken: set[str] = field(default_factory=set)  # methods that failed when they were asked in passing
    memory: dict[tuple[str, Case], tuple[Entry, Exception | None]] = field(default_factory=dict)

    @cached_property
    def _awkward(self) -> tuple[list[Case], list[str]]:
        """The fixed cases within the subject's limits, and what the limits leave out."""
        if self.subject.checkpoint is not None:
            return self.subject.checkpoint.cases(self.subject.limits), []
        return strategies.fixed(self.subject.limits, self.profile.name)

    @cached_property
    def fixed(self) -> list[Case]:
        """The cases given, or else the fixed ones; of few configurations where a build is dear."""
        if self.cases:
            return list(self.cases)
        known = [case for case in self._awkward[0] if not self.pool or case.config in self.pool]
        return known[: self._shapes]

    @cached_property
    def not_covered(self) -> list[str]:
        """What the limits and dear builds keep out."""
        lost = self._awkward[1] + [case.note for case in self._awkward[0] if case not in self.fixed]
        limits = [_outside(field, limit) for field, limit in self.subject.limits.items()]
        given = ["any configuration and parameters but those of load()"] if self.subject.checkpoint else []
        return limits + given + [f"case: {note}" for note in lost if not self.cases]

    @cached_property
    def pool(self) -> tuple[Config, ...]:
        """The few configurations to draw from where a build is dear, as `limits` or a build tells; else empty."""
        if self.subject.checkpoint is not None:
            return (self.subject.checkpoint.config,)
        count = self.subject.limits.get("configurations")
        if count is None and not self.only and (self._build_seconds[0] > DEAR_BUILD or self.has_dear_shapes):
            count = DEAR_CONFIGURATIONS
        return tuple(dict.fromkeys(case.config for case in self._awkward[0]))[:count] if count else ()

    @property
    def drawn(self) -> SearchStrategy[Case]:
        """Random cases within the limits; of shapes that are compiled already, where that is dear."""
        shapes = [(case.config, case.batch, case.tokens) for case in self.fixed] if self._shapes else ()
        styles = STYLES if self.subject.checkpoint is None else ("plain",)
        return strategies.cases(self.subject.limits, self.pool, shapes, styles)

    @property
    def _shapes(self) -> int | None:
        """How many shapes of tokens there may be, as `limits` or a first call tells; None for any number."""
        count: int | None = self.subject.limits.get("shapes")
        return self.profile.shapes if count is None and self.has_dear_shapes else count

    @cached_property
    def has_dear_shapes(self) -> bool:
        """Whether the first call on tokens of a new shape is dear, as where each shape is compiled."""
        if self.only or self.cases or "shapes" in self.subject.limits:
            return "shapes" in self.subject.limits
        case = self._awkward[0][1 % len(self._awkward[0])]  # the very first configuration also pays for warming up
        tokens = arrays(case)[0]
        shapes = filter(self.admits, (tokens, tokens[:1, : case.tokens - 1 or 1]))
        try:
            model = self.model(case)
            return min(_first_call(model, ids) for ids in shapes) > DEAR_SHAPE
        except Finding:  # whatever needs a call says so itself
            return False

    @property
    def is_dear(self) -> bool:
        """Whether even other parameters of a known configuration are dear to build."""
        return not self.only and not self.cases and self._build_seconds[1] > DEAR_BUILD

    @cached_property
    def _build_seconds(self) -> tuple[float, float]:
        """Of a second configuration, and of the same one again: the very first also pays for warming up."""
        if self.subject.checkpoint is not None:
            return 0.0, 0.0
        first, second = self._awkward[0][0], self._awkward[0][1 % len(self._awkward[0])]
        seconds = []
        try:
            self.model(first)
            for case in (second, replace(second, seed=second.seed + 1)):
                start = time.perf_counter()
                self.model(case)
                seconds.append(time.perf_counter() - start)
                if seconds[0] <= DEAR_BUILD:
                    return seconds[0], 0.0
        except Finding:  # whatever needs a model says so itself
            return 0.0, 0.0
        return seconds[0], seconds[1]

    @property
    def sample(self) -> list[Case]:
        """A few small cases for what is told beside the verdict."""
        return [case for case in self.fixed[: 1 if self.is_dear else 5] if case.tokens <= 16]

    @cached_property
    def capabilities(self) -> frozenset[str]:
        """The optional methods that the first model has; an operation has none."""
        if self.only:
            return frozenset()
        model = self.model(self.fixed[0])
        return frozenset(name for name in CAPABILITIES if model.has(name))

    def claims(self, names: tuple[str, ...]) -> bool:
        """Whether any of these requirements belongs to a contract that is claimed, as all are where nothing is said."""
        claimed = self.subject.claims
        return claimed is None or any(requirements()[name].contract in claimed for name in names)

    def need(self, capability: str) -> None:
        """Raise `Absent` unless the models have the capability."""
        if capability not in self.capabilities:
            raise Absent(CAPABILITIES[capability])

    @cached_property
    def operation(self) -> OperationSubject:
        """The operation under test. Raises `LoadError`."""
        return load_operation(self.name, self.only, self.subject.recipe)

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """What became of every bad input, asked in a child process; of each configuration only where that is cheap."""
        if not self.name:
            raise NotJudged("bad input is asked in a child process, which needs a name to load the implementation by")
        self.subject.close()
        asked = [name for name in REQUIREMENTS if name not in BUILDING] if self.unasked else None
        precision, claims = self.options.get("precision"), self.options.get("claims")
        return ask(self.name, precision=precision, claims=claims, requirements=asked)

    @property
    def unasked(self) -> str:
        """Why bad configurations and parameters are not asked; empty where they are."""
        counts = self.subject.claims is None or "inputs" in (*self.subject.claims, *self.options.get("required", ()))
        if self.profile.name != "quick" or not self.has_dear_shapes or counts:
            return ""
        return "each bad configuration is compiled: asked beyond the quick profile, or where inputs counts"

    def admits(self, tokens: Array) -> bool:
        """Whether tokens of that shape lie within the limits."""
        return strategies.admits(self.subject.limits, *tokens.shape)

    def pass_over(self) -> None:
        """Do not count the example: within the limits it has nothing to show."""
        self.entry.examples -= 1

    def model(self, case: Case) -> SubjectModel:
        """The subject's model of a case."""
        return self.subject.model(case)

    def truth(self, case: Case) -> Truth:
        """The truth of a case, kept for whichever property asks next."""
        if case not in self.truths:
            parameters = self.subject.parameters(case)
            self.truths[case] = Truth(case, parameters, self.subject.recipe, beyond=self.sampled)
            while len(self.truths) > 1 and sum(each.size for each in self.truths.values()) > KEPT_BYTES:
                self.truths.popitem(last=False)
        self.truths.move_to_end(case)
        return self.truths[case]

    @property
    def sampled(self) -> str:
        """Why samples of the stages are judged instead of the whole truth; empty where the whole is."""
        found = self.subject.checkpoint
        if found is None or found.is_whole:
            return ""
        count = parameter_count(found.config)
        return f"of {count} scalars samples of the stages are judged (BIG-1), since the whole truth costs too much"

    def judge(self, what: str, comparison: Comparison, stage: str = "") -> None:
        """Note a comparison, and raise a finding when it is beyond its limits."""
        self.entry.absorb(Entry(worst=comparison, where=what))
        if not comparison.conforms:
            raise Finding(described(what, comparison), stage or what, comparison)

    def same_bits(self, what: str, got: Array, expected: Array, why: str) -> None:
        """Raise a finding unless two arrays are equal to the last bit."""
        if got.shape != expected.shape:
            raise Finding(f"{why}: {what} had shape {expected.shape} and has {got.shape}", what)
        differ = (got != expected) & ~(np.isnan(got) & np.isnan(expected))  # what is finite is judged
        if differ.any():
            index = tuple(int(i) for i in np.argwhere(differ)[0])
            before, after = expected[index].item(), got[index].item()
            raise Finding(
                f"{why}: {what}{list(index)} was {before!r} and became {after!r}"
                f" ({int(differ.sum())} of {differ.size} elements differ)",
                what,
            )


def _first_call(model: SubjectModel, tokens: Array) -> float:
    """Seconds by which the first call on tokens of that shape was slower than the second."""
    marks = [time.perf_counter()]
    for _ in range(2):
        model.logits(tokens)
        marks.append(time.perf_counter())
    return marks[1] - marks[0] - (marks[2] - marks[1])


def _outside(field: str, limit: Any) -> str:
    """What a limit keeps out, in words."""
    return f"more than {limit} {field}" if field in strategies.COUNTS else f"{field} outside {limit}"


def described(what: str, comparison: Comparison) -> str:
    """A comparison in words: how far, where, got and expected."""
    if not np.isfinite(comparison.got):
        return f"{what}: {comparison.got} at {list(comparison.index)}, where the truth is finite"
    expected = comparison.got - comparison.error
    return (
        f"{what}: off by {comparison}; worst at {list(comparison.index)}:"
        f" got {comparison.got:.9g}, expected {expected:.9g} (noise unit {comparison.unit:.2g})"
    )
